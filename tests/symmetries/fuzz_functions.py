"""Productions without parameters, or hardly any: functions of numbers, along axes, and of shapes."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from fuzz_grammar import Builder, Skip, par, production
from net_family import Net
from torch import Tensor, nn

Function = Callable[[Tensor], Tensor]

SMOOTH: dict[str, Function] = {
    "tanh": torch.tanh,
    "gelu": F.gelu,
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "sin": torch.sin,
    "softplus": F.softplus,
    "elu": F.elu,
    "mish": F.mish,
    "softsign": F.softsign,
    "erf": torch.erf,
    "atan": torch.atan,
    "tanhshrink": F.tanhshrink,
    "exp of minus": lambda x: torch.exp(-x.abs()),
    "cosine": lambda x: x.cos() + 0.1 * x,
    "plus one": lambda x: x + 1,
    "cube": lambda x: x**3 / (1 + x**2),
    "logged": lambda x: torch.log1p(x.abs()),
    "reciprocal": lambda x: 1 / (x.abs() + 0.5),
    "hypot": lambda x: torch.hypot(x, torch.ones_like(x)),
    "snake": lambda x: x + torch.sin(x) ** 2,
    "quick gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "written silu": lambda x: x / (1 + torch.exp(-x)),
    "written tanh gelu": lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
}
HOMOGENEOUS: dict[str, Function] = {
    "relu": F.relu,
    "leaky": lambda x: F.leaky_relu(x, 0.3),
    "abs": torch.abs,
    "square": torch.square,
    "relu squared": lambda x: F.relu(x) ** 2,
    "times mask": lambda x: x * (x > 0),
    "where": lambda x: torch.where(x > 0, x, 0.1 * x),
    "threshold": lambda x: F.threshold(x, 0.0, 0.0),
    "maximum": lambda x: torch.maximum(x, 0.1 * x),
    "clamp at zero": lambda x: x.clamp(min=0),
    "signed root": lambda x: x.sign() * (x.abs() + 1e-3).sqrt(),
    "signed square": lambda x: x * x.abs(),
    "neg": torch.neg,
    "times": lambda x: x * -1.5,
    "over two": lambda x: x / 2,
    "both sides": lambda x: F.relu(x) - 0.5 * F.relu(-x),
    "pow": lambda x: x.pow(2),
    "masked fill": lambda x: x.masked_fill(x < 0, 0.0),
    "heaviside": lambda x: x * (x > 0).to(x.dtype),
    "relu in place": lambda x: torch.relu_(x.clone()),
    "minimum": lambda x: torch.minimum(x, torch.zeros_like(x)),
    "product": lambda x: x * x * x,
}
KINKED: dict[str, Function] = {
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 0.7),
    "relu6": lambda x: F.relu6(3 * x),
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "clamp": lambda x: x.clamp(-1, 1),
    "above one": lambda x: torch.where(x > 0.3, x, -x),
    "softshrink": lambda x: F.softshrink(x, 0.2),
    "hardshrink": lambda x: F.hardshrink(x, 0.2),
    "sign": lambda x: x.sign() * 0.5 + x,
    "rounded": lambda x: (4 * x).round() / 4 + x,
    "floor": lambda x: x - x.floor(),
    "celu": lambda x: F.celu(x, 0.7),
    "threshold away": lambda x: F.threshold(x, 0.2, -1.0),
    "finite": lambda x: torch.nan_to_num(x),
}
UNARY = {**SMOOTH, **HOMOGENEOUS, **KINKED}


@production(6)
def unary(b: Builder) -> None:
    name = b.rng.choice(list(UNARY))
    f = UNARY[name]
    b.add(name, [b.some()], lambda m, x: f(x))


@production(5)
def homogeneous(b: Builder) -> None:
    name = b.rng.choice(list(HOMOGENEOUS))
    f = HOMOGENEOUS[name]
    b.add(name, [b.some()], lambda m, x: f(x))


ALONG: dict[str, Callable[[Tensor, int], Tensor]] = {
    "softmax": lambda x, d: x.softmax(d),
    "log softmax": lambda x, d: x.log_softmax(d),
    "softmin": lambda x, d: F.softmin(x, d),
    "cumsum": lambda x, d: x.cumsum(d),
    "cumprod": lambda x, d: x.cumprod(d),
    "cummax": lambda x, d: x.cummax(d).values,
    "flip": lambda x, d: x.flip(d),
    "roll": lambda x, d: x.roll(1, d),
    "sort": lambda x, d: x.sort(d).values,
    "minus mean": lambda x, d: x - x.mean(d, keepdim=True),
    "over std": lambda x, d: x / (x.std(d, keepdim=True, unbiased=False) + 0.1),
    "over max": lambda x, d: x / (x.abs().amax(d, keepdim=True) + 0.1),
    "over sum": lambda x, d: x / (x.abs().sum(d, keepdim=True) + 1e-3),
    "plus max": lambda x, d: x + x.max(d, keepdim=True)[0],
    "normalise": lambda x, d: F.normalize(x, dim=d),
    "top mask": lambda x, d: x * (x >= x.topk(min(2, x.shape[d]), d).values.amin(d, keepdim=True)),
    "above mean": lambda x, d: torch.where(x > x.mean(d, keepdim=True), x, 0.3 * x),
    "zeroed front": lambda x, d: torch.cat([torch.zeros_like(x.narrow(d, 0, 1)), x.narrow(d, 1, x.shape[d] - 1)], d),
    "shifted": lambda x, d: torch.cat([torch.zeros_like(x.narrow(d, 0, 1)), x.narrow(d, 0, x.shape[d] - 1)], d),
    "gathered": lambda x, d: x.gather(d, x.argsort(d)),
    "best": lambda x, d: x + x.gather(d, x.argmax(d, keepdim=True)),
    "one hot": lambda x, d: F.one_hot(x.argmax(d), x.shape[d]).movedim(-1, d) + x.softmax(d),
    "median": lambda x, d: x - x.median(d, keepdim=True).values,
    "logsumexp": lambda x, d: x - x.logsumexp(d, keepdim=True),
    "ranks": lambda x, d: x + 0.1 * x.argsort(d).argsort(d),
    "scattered top": lambda x, d: torch.zeros_like(x).scatter(
        d, x.topk(min(2, x.shape[d]), d).indices, x.topk(min(2, x.shape[d]), d).values
    ),
    "straight through": lambda x, d: (F.one_hot(x.argmax(d), x.shape[d]).movedim(-1, d) - x).detach() + x,
    "renormalised": lambda x, d: x * torch.rsqrt(x.pow(2).mean(d, keepdim=True) + 1e-5),
    "quantile": lambda x, d: x - x.quantile(0.5, d, keepdim=True),
    "differences": lambda x, d: x - x.roll(1, d),
    "nucleus": lambda x, d: torch.where(x.softmax(d) > 0.3, x, torch.zeros_like(x)),
}


@production(5)
def along(b: Builder) -> None:
    k = b.some()
    d = b.axis(k, b.rng.choice(["u", "u", "u", "t", "s", "b"]))
    name = b.rng.choice(list(ALONG))
    f = ALONG[name]
    b.add(f"{name} along {b.kinds[k]}[{d}]", [k], lambda m, x: f(x, d))


REDUCTIONS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "mean": lambda x, d: x.mean(d),
    "sum": lambda x, d: x.sum(d),
    "amax": lambda x, d: x.amax(d),
    "max values": lambda x, d: x.max(d)[0],
    "amin": lambda x, d: x.amin(d),
    "prod": lambda x, d: x.prod(d),
    "std": lambda x, d: (x.var(d, unbiased=False) + 1e-3).sqrt(),
    "logsumexp": lambda x, d: x.logsumexp(d),
    "norm": lambda x, d: (x.square().sum(d) + 1e-3).sqrt(),
    "vector norm": lambda x, d: torch.linalg.vector_norm(x, dim=d),
    "one norm": lambda x, d: x.norm(p=1, dim=d),
    "top mean": lambda x, d: x.topk(min(2, x.shape[d]), d).values.mean(d),
    "last": lambda x, d: x.select(d, -1),
    "first": lambda x, d: x.select(d, 0),
    "range": lambda x, d: x.amax(d) - x.amin(d),
    "share above": lambda x, d: (x > 0.1).to(x.dtype).mean(d) + x.mean(d),
    "median": lambda x, d: x.median(d).values,
    "argmax": lambda x, d: x.argmax(d).to(x.dtype) + x.mean(d),
    "weighted": lambda x, d: (x * x.softmax(d)).sum(d),
    "by place": lambda x, d: (x.movedim(d, -1) * torch.arange(1, x.shape[d] + 1, dtype=x.dtype)).sum(-1),
}


@production(3)
def reduction(b: Builder) -> None:
    k = b.pick(lambda kinds, x: len(kinds) > 2)
    d = b.axis(k, b.rng.choice(["u", "t", "s", "ut"]))
    name = b.rng.choice(list(REDUCTIONS))
    f = REDUCTIONS[name]
    rest = len(b.kinds[k]) + d
    b.add(f"{name} of {b.kinds[k]}[{d}]", [k], lambda m, x: f(x, d), b.kinds[k][:rest] + b.kinds[k][rest + 1 :])


BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y,
    "multiply": lambda x, y: x * y,
    "gate": lambda x, y: x * torch.sigmoid(y),
    "relu gate": lambda x, y: F.relu(x) * y,
    "divide": lambda x, y: x / (y.abs() + 1),
    "maximum": torch.maximum,
    "choice": lambda x, y: torch.where(x > y, x, 0.5 * y),
    "interpolation": lambda x, y: torch.lerp(x, y, 0.3),
    "learned mix": lambda x, y: torch.sigmoid(x) * x + (1 - torch.sigmoid(x)) * y,
    "squares": lambda x, y: (x - y) ** 2,
    "atan2": lambda x, y: torch.atan2(x, y.abs() + 0.5),
    "logaddexp": torch.logaddexp,
}


@production(5)
def binary(b: Builder) -> None:
    k = b.some()
    name = b.rng.choice(list(BINARY))
    f = BINARY[name]
    b.add(name, [k, b.like(k)], lambda m, x, y: f(x, y))


@production(2)
def broadcast(b: Builder) -> None:
    """A value of fewer axes on one of more: a gate of the batch, a bias of places."""
    k = b.pick(lambda kinds, x: kinds in ("btu", "buss", "but"))
    j = b.pick(lambda kinds, x: kinds == "bu")
    if b.values[j].shape[1] != b.values[k].shape[b.kinds[k].index("u")] or b.values[j].shape[0] != len(b.values[k]):
        j = b.linear(j, b.values[k].shape[b.kinds[k].index("u")])
    kinds, gate = b.kinds[k], b.chance()

    def function(m: Net, x: Tensor, y: Tensor) -> Tensor:
        y = y[:, None] if kinds == "btu" else y.reshape(*y.shape, *[1] * (x.dim() - 2))
        return x * torch.sigmoid(y) if gate else x + y

    b.add("gate" if gate else "shift", [k, j], function)


@production(4)
def concatenation(b: Builder) -> None:
    k = b.some()
    d = b.axis(k, b.rng.choice(["u", "u", "t"]))
    at = len(b.kinds[k]) + d

    def fits(kinds: str, x: Tensor) -> bool:
        same = [a == c for e, (a, c) in enumerate(zip(x.shape, b.values[k].shape, strict=False)) if e != at]
        return kinds == b.kinds[k] and all(same)

    j = b.pick(fits)
    if b.chance(0.3):
        b.add("both halves", [k], lambda m, x: torch.cat([F.relu(x), F.relu(-x)], d))
    else:
        b.add(f"cat {d}", [k, j], lambda m, x, y: torch.cat([x, y], d))


@production(4)
def part(b: Builder) -> None:
    """Slices, chunks and selections along units, and now and then along time."""
    k = b.some()
    d = b.axis(k, b.rng.choice(["u", "u", "u", "t"]))
    n = b.values[k].shape[d]
    if n < 2:
        raise Skip
    half, start = n // 2, b.rng.randrange(n - 1)
    ways: dict[str, Function] = {
        "first half": lambda x: x.narrow(d, 0, half),
        "chunk": lambda x: x.chunk(2, d)[1],
        "split": lambda x: x.split([half, x.shape[d] - half], d)[0],
        "swapped": lambda x: torch.cat(x.split([half, x.shape[d] - half], d)[::-1], d),
        "gated halves": lambda x: x.narrow(d, 0, half) * torch.tanh(x.narrow(d, half, half)),
        "added halves": lambda x: x.narrow(d, 0, half) + x.narrow(d, half, half),
        "every other": lambda x: x.movedim(d, -1)[..., ::2].movedim(-1, d),
        "but the first": lambda x: x.movedim(d, -1)[..., 1:].movedim(-1, d),
        "but the last": lambda x: x.movedim(d, -1)[..., :-1].movedim(-1, d),
        "narrow": lambda x: x.narrow(d, start, 1),
        "turned": lambda x: x.index_select(d, torch.arange(x.shape[d] - 1, -1, -1)),
        "taken": lambda x: x.index_select(d, torch.tensor([0, 1, 0])),
        "unbound": lambda x: torch.stack(x.unbind(d)[::-1], d),
        "rotated half": lambda x: torch.cat([-x.narrow(d, half, x.shape[d] - half), x.narrow(d, 0, half)], d),
        "recombined": lambda x: torch.cat([x.narrow(d, 0, half).relu(), x.narrow(d, half, x.shape[d] - half)], d),
        "interleaved": lambda x: torch.stack(x.chunk(2, d), -1).transpose(d - 1, -1).flatten(-1),
    }
    name = b.rng.choice(list(ways))
    f = ways[name]
    b.add(f"{name} along {b.kinds[k]}[{d}]", [k], lambda m, x: f(x))


@production(4)
def shape(b: Builder) -> None:
    """Other shapes of the same numbers, with units in odd places."""
    k = b.some()
    if not b.values[k].dim():
        return
    kinds, n = b.kinds[k], b.values[k].shape[-1]
    two = next((p for p in (2, 3) if n % p == 0 and n > p), 1)
    ways: dict[str, tuple[Function, str]] = {}
    if kinds.endswith("u") and two > 1:
        ways["view outer"] = (lambda x: x.reshape(*x.shape[:-1], two, -1), kinds + "u")
        ways["view inner"] = (lambda x: x.unflatten(-1, (-1, two)), kinds + "u")
        ways["view turned"] = (lambda x: x.unflatten(-1, (-1, two)).transpose(-1, -2), kinds + "u")
        ways["shuffled"] = (lambda x: x.unflatten(-1, (two, -1)).transpose(-1, -2).flatten(-2), kinds)
        ways["maxout"] = (lambda x: x.unflatten(-1, (-1, two)).amax(-1), kinds)
        ways["group mean"] = (lambda x: x.unflatten(-1, (two, -1)).mean(-2), kinds)
        ways["group softmax"] = (lambda x: x.unflatten(-1, (two, -1)).softmax(-1).flatten(-2), kinds)
        ways["group norm"] = (lambda x: F.normalize(x.unflatten(-1, (two, -1)), dim=-1).flatten(-2), kinds)
    if kinds.endswith("uu"):
        ways["flatten"] = (lambda x: x.flatten(-2), kinds[:-1])
        ways["flatten turned"] = (lambda x: x.transpose(-1, -2).flatten(-2), kinds[:-1])
        ways["diagonal"] = (lambda x: x.diagonal(dim1=-2, dim2=-1), kinds[:-1])
        ways["triangle"] = (torch.tril, kinds)
    if len(kinds) > 2:
        d = b.rng.randrange(1, len(kinds))
        e = b.rng.randrange(len(kinds))
        order = list(kinds)
        order[d], order[e] = order[e], order[d]
        ways["transpose"] = (lambda x: x.transpose(d, e), "".join(order))
    if kinds.endswith("u") and kinds[0] == "b" and n <= 4:
        ways["outer"] = (lambda x: x[..., :, None] * torch.tanh(x[..., None, :]), kinds + "u")
        ways["differences"] = (lambda x: x[..., :, None] - x[..., None, :], kinds + "u")
        ways["repeat"] = (lambda x: x.repeat_interleave(2, -1), kinds)
        ways["twice"] = (lambda x: torch.cat([x, x], -1), kinds)
        ways["fourier"] = (lambda x: torch.fft.rfft(x, dim=-1).abs(), kinds)
    if kinds == "btu":
        ways["flat places"] = (lambda x: x.flatten(1), "bu")
        ways["places in the batch"] = (lambda x: x.flatten(0, 1), "bu")
        ways["pairs of places"] = (lambda x: x @ x.transpose(1, 2), "btt")
        ways["gram"] = (lambda x: x.transpose(1, 2) @ x / x.shape[1], "buu")
        ways["windows"] = (lambda x: x.unfold(1, 2, 1).flatten(2), "btu")
    if kinds == "buss":
        ways["tokens"] = (lambda x: x.flatten(2).transpose(1, 2), "btu")
        ways["flat image"] = (lambda x: x.flatten(1), "bu")
        ways["pixel unshuffle"] = (lambda x: F.pixel_unshuffle(x[..., :4, :4], 2), "buss")
        ways["average"] = (lambda x: F.adaptive_avg_pool2d(x, 2), "buss")
        ways["largest"] = (lambda x: F.max_pool2d(x, 2, 1), "buss")
        ways["resized"] = (lambda x: F.interpolate(x, scale_factor=2), "buss")
    if kinds == "but":
        ways["pooled"] = (lambda x: F.avg_pool1d(x, 2), "but")
        ways["last places"] = (lambda x: x.transpose(1, 2), "btu")
    if kinds.endswith("u"):
        ways["padded"] = (lambda x: F.pad(x, (0, 1)), kinds)
        ways["ones"] = (lambda x: torch.cat([x, torch.ones_like(x[..., :1])], -1), kinds)
    if not ways:
        raise Skip
    name = b.rng.choice(list(ways))
    f, after = ways[name]
    b.add(name, [k], lambda m, x: f(x), after)


@production(2)
def constants(b: Builder) -> None:
    """Numbers, masks and positions that the model holds, along units or others."""
    k = b.some()
    d = b.axis(k, b.rng.choice(["u", "u", "t"]))
    n = b.values[k].shape[d]
    after = [1] * (-d - 1)
    name = b.rng.choice(["arange", "mask", "gain buffer", "same buffer", "half", "integer", "linspace"])
    if name == "arange":
        b.add("plus arange", [k], lambda m, x: x + torch.arange(x.shape[d], dtype=x.dtype).view(-1, *after))
    elif name == "mask":
        kept = (torch.arange(n) % 2 == 0).double()
        b.add("times mask", [k], lambda m, x: x * m.mask.view(-1, *after), mask=kept)
    elif name == "gain buffer":
        b.add("times buffer", [k], lambda m, x: x * m.held.view(-1, *after), held=torch.randn(n, dtype=torch.float64))
    elif name == "same buffer":
        b.add("times one buffer", [k], lambda m, x: x * m.held, held=torch.full((1,), 0.7, dtype=torch.float64))
    elif name == "half":
        b.add("constant front", [k], lambda m, x: torch.cat([x.narrow(d, 0, 1) * 0 + 0.5, x], d))
    elif name == "integer":
        b.add("permuted", [k], lambda m, x: x.index_select(d, m.order), order=torch.randperm(n))
    else:
        b.add("linspace", [k], lambda m, x: x * torch.linspace(0.5, 1, x.shape[d], dtype=x.dtype).view(-1, *after))


@production(2)
def in_place(b: Builder) -> None:
    """Writes into copies, and now and then into what others read."""
    k = b.pick(lambda kinds, x: len(kinds) > 1)
    d = b.axis(k, b.rng.choice(["u", "u", "t"]))
    name = b.rng.choice(["zero first", "add to rest", "fill negative", "scale", "index put", "add rows", "triangle"])

    def function(m: Net, x: Tensor) -> Tensor:
        x = x.clone()
        if name == "zero first":
            x.select(d, 0).zero_()
        elif name == "add to rest":
            x.narrow(d, 1, x.shape[d] - 1).add_(x.narrow(d, 0, x.shape[d] - 1).clone(), alpha=0.5)
        elif name == "fill negative":
            x[x < 0] = 0.0
        elif name == "scale":
            x.mul_(0.5).relu_().add_(1.0)
        elif name == "index put":
            x.movedim(d, -1)[..., torch.tensor([0, 1])] *= 2.0
        elif name == "add rows":
            x = x.index_add(d, torch.tensor([0]), x.narrow(d, 1, 1))
        else:
            x.select(d, -1).copy_(x.sum(d))
        return x

    b.add(f"{name} in place along {b.kinds[k]}[{d}]", [k], function)


@production(2)
def shape_dependent(b: Builder) -> None:
    """Branches on sizes, tables cut to the length, numbers made from sizes."""
    k = b.pick(lambda kinds, x: kinds == "btu" or kinds == "bu")
    n, time = b.values[k].shape[-1], b.kinds[k] == "btu"
    name = b.rng.choice(["branch", "table", "over size", "last rows", "first row", "first places", "one place"])
    if name == "branch":
        other = nn.Linear(n, n)
        gain = par(n)
        b.add(
            "branch on size",
            [k],
            lambda m, x: m.other(x) if x.shape[1 if time else 0] > (6 if time else 4) else x * m.gain,
            other=other,
            gain=gain,
        )
    elif name == "table" and time:
        first = b.chance()
        b.add(
            "cut table",
            [k],
            lambda m, x: x + (m.table[: x.shape[1]] if first else m.table[-x.shape[1] :]),
            table=par(b.rng.choice([5, 12]), n),
        )
    elif name == "over size":
        b.add("over size", [k], lambda m, x: x / x.shape[1] + 0.1 * x.shape[0])
    elif name == "last rows":
        b.add("not the last rows", [k], lambda m, x: torch.cat([x[:2] * 2, x[2:]]))
    elif name == "first row":
        b.add("with the first row", [k], lambda m, x: x - x[:1])
    elif name == "first places" and time:
        b.add("first places gained", [k], lambda m, x: torch.cat([x[:, :5], x[:, 5:] * m.gain], 1), gain=par(n))
    elif name == "one place" and time:
        b.add(
            "single place",
            [k],
            lambda m, x: x if x.shape[1] > 1 else x * m.gain,
            gain=par(n),
        )
    else:
        raise Skip
