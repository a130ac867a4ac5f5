"""Productions whose weights are made, masked, tied, looked up or shared in odd ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from fuzz_grammar import Builder, Skip, par, production
from fuzz_layers import activation
from net_family import Net
from torch import Tensor, nn

Made = Callable[[Tensor], Tensor]
MADE: dict[str, Made] = {
    "lower": torch.tril,
    "symmetric": lambda w: w + w.t(),
    "gram": lambda w: w @ w.t(),
    "skew": lambda w: w - w.t(),
    "square": lambda w: w @ w,
    "rows softmax": lambda w: w.softmax(1),
    "columns softmax": lambda w: w.softmax(0),
    "plus identity": lambda w: w + torch.eye(len(w), dtype=w.dtype),
    "without diagonal": lambda w: w * (1 - torch.eye(len(w), dtype=w.dtype)),
    "diagonal": lambda w: torch.diag(w.diagonal()),
    "exponential": lambda w: torch.linalg.matrix_exp(0.3 * w),
    "first row zero": lambda w: torch.cat([torch.zeros_like(w[:1]), w[1:]]),
    "magnitude": lambda w: w * (w.abs() > 0.3),
    "ternary": lambda w: torch.sign(w) * w.abs().mean(),
    "row norms": lambda w: w / w.norm(dim=1, keepdim=True),
    "column norms": lambda w: w / w.norm(dim=0, keepdim=True),
    "one norm": lambda w: w / w.norm(),
    "centred rows": lambda w: w - w.mean(1, keepdim=True),
    "flipped": lambda w: w.flip(0),
    "inverse": lambda w: torch.linalg.inv(w @ w.t() + torch.eye(len(w), dtype=w.dtype)),
    "orthogonal": lambda w: torch.linalg.qr(w).Q,
    "Cayley": lambda w: torch.linalg.solve(torch.eye(len(w), dtype=w.dtype) + w - w.t(), w.t()),
    "circulant": lambda w: torch.stack([w[0].roll(k) for k in range(len(w))]),
    "sum of both": lambda w: w.sum(0, keepdim=True) + w.sum(1, keepdim=True),
    "sorted": lambda w: w.sort(0).values,
    "low rank": lambda w: w[:, :1] @ w[:1],
    "absolute": torch.abs,
}


@production(4)
def made_weight(b: Builder) -> None:
    """A square weight as a function of a parameter."""
    k = b.units_last()
    n = b.values[k].shape[-1]
    name = b.rng.choice(list(MADE))
    f = MADE[name]
    act, g = activation(b)
    b.add(f"{name} of a weight, {act}", [k], lambda m, x: g(x @ f(m.w)), w=par(n, n))


@production(4)
def one_parameter(b: Builder) -> None:
    """Several weights in one parameter: slices, rows, views, that meet or do not."""
    k = b.units_last()
    n, h = b.values[k].shape[-1], b.rng.choice([2, 3])
    act, f = activation(b)
    way = b.rng.choice([
        "slices", "overlap", "rows", "flat", "loop", "lookup", "unbound", "chunks", "bias inside", "stacked heads",
        "both sides", "as gain", "up and down",
    ])  # fmt: skip
    w = {
        "slices": (2 * h, n),
        "overlap": (h + 1, n),
        "rows": (3, h, n),
        "flat": (2 * h * n,),
        "loop": (3, n, n),
        "lookup": (4, n, n),
        "unbound": (2, h, n),
        "chunks": (h, 2 * n),
        "bias inside": (h, n + 1),
        "stacked heads": (3, h, n),
        "both sides": (h, n),
        "as gain": (n, n),
        "up and down": (2, n, n),
    }[way]

    def function(m: Net, x: Tensor) -> Tensor:
        w = m.w
        if way == "slices":
            return f(x @ w[:h].t()) * torch.tanh(x @ w[h:].t())
        if way == "overlap":
            return f(x @ w[:h].t()) + x @ w[1:].t()
        if way == "rows":
            return f(x @ w[0].t()) + f(x @ w[1].t()) * (x @ w[2].t())
        if way == "flat":
            return f(x @ w[: h * n].view(n, h)) + x @ w[h * n :].view(h, n).t()
        if way == "loop":
            for one in m.w:
                x = x + f(x @ one)
            return x
        if way == "lookup":
            for j in (0, 2, 0, 1):
                x = f(x @ w[j])
            return x
        if way == "unbound":
            a, c = w.unbind()
            return f(x @ a.t()) @ c
        if way == "chunks":
            a, c = w.chunk(2, 1)
            return f(x @ a.t()) @ c
        if way == "bias inside":
            return f(torch.cat([x, torch.ones_like(x[..., :1])], -1) @ w.t())
        if way == "stacked heads":
            return f(torch.einsum("...i,hoi->...ho", x, w)).mean(-2)
        if way == "both sides":
            return f(x @ w.t()) @ w
        if way == "as gain":
            return f(x @ w) * w[0] + w.sum(0)
        return f(x @ w[0]) @ w[1] + x

    b.add(f"one parameter {way} {act}", [k], function, w=par(*w))


@production(3)
def one_memory(b: Builder) -> None:
    """Parameters and buffers that lie in one memory."""
    k = b.units_last()
    n, h = b.values[k].shape[-1], b.rng.choice([2, 3])
    act, f = activation(b)
    way = b.rng.choice(["overlap", "transpose", "rows", "row as bias", "buffer", "columns", "twice", "flat"])
    whole = torch.randn(h + 2, n, dtype=torch.float64)
    parts: dict[str, Any] = {}
    if way == "overlap":
        parts = {"a": nn.Parameter(whole[:h]), "c": nn.Parameter(whole[2 : 2 + h])}
    elif way == "rows":
        parts = {"a": nn.Parameter(whole), "c": nn.Parameter(whole[:h])}
    elif way == "transpose":
        parts = {"a": nn.Parameter(whole[:h]), "c": nn.Parameter(whole[:h].t())}
    elif way == "row as bias":
        parts = {"a": nn.Parameter(whole[:h]), "c": nn.Parameter(whole[0])}
    elif way == "buffer":
        parts = {"a": nn.Parameter(whole[:h]), "c": whole[:h]}
    elif way == "columns":
        parts = {"a": nn.Parameter(whole[:, :1]), "c": nn.Parameter(whole)}
    elif way == "twice":
        parts = {"a": nn.Parameter(whole[:h]), "c": nn.Parameter(whole[:h])}
    else:
        parts = {"a": nn.Parameter(whole), "c": nn.Parameter(whole.view(-1)[: 2 * n])}

    def function(m: Net, x: Tensor) -> Tensor:
        if way == "transpose":
            return f(x @ m.a.t()) @ m.c.t()
        if way == "row as bias":
            return f(x @ m.a.t()).sum(-1, keepdim=True) * m.c
        if way == "columns":
            return f(x @ m.c.t()) * m.a.t()[0]
        if way == "flat":
            return f(x @ m.a.t()).sum(-1, keepdim=True) + x @ m.c.view(n, 2)
        if way == "rows":
            return f(x @ m.a.t()).sum(-1, keepdim=True) + f(x @ m.c.t())
        return f(x @ m.a.t()) + x @ m.c.t()

    b.add(f"one memory {way} {act}", [k], function, **parts)


@production(2)
def generated_weight(b: Builder) -> None:
    """A layer whose weight another makes: from the input, from a code, from a table."""
    k = b.units_last()
    n, h = b.values[k].shape[-1], b.rng.choice([2, 3])
    act, f = activation(b)
    way = b.rng.choice(["from input", "from code", "low rank update", "mixture", "fast"])
    if way == "from input":
        b.add(
            f"weight from input {act}",
            [k],
            lambda m, x: torch.einsum("...i,...io->...o", x, f(m.make(x)).unflatten(-1, (n, h))),
            make=nn.Linear(n, n * h),
        )
    elif way == "from code":
        b.add(
            f"weight from code {act}",
            [k],
            lambda m, x: F.linear(x, m.make(f(m.code)).view(h, n)),
            make=nn.Linear(4, n * h),
            code=par(4),
        )
    elif way == "low rank update":
        b.add(
            f"low rank update {act}",
            [k],
            lambda m, x: f(F.linear(x, m.w + m.up @ m.down)),
            w=par(h, n),
            up=par(h, 2),
            down=par(2, n),
        )
    elif way == "mixture":
        b.add(
            f"mixed weight {act}",
            [k],
            lambda m, x: f(x @ torch.einsum("e,eio->io", m.mix.softmax(0), m.w)),
            mix=par(3),
            w=par(3, n, h),
        )
    else:
        b.add(
            f"fast weight {act}",
            [k],
            lambda m, x: x @ (f(m.key(x)).flatten(0, -2).t() @ m.value(x).flatten(0, -2) / 10),
            key=nn.Linear(n, n),
            value=nn.Linear(n, h),
        )


@production(3)
def unit_by_unit(b: Builder) -> None:
    """Units told apart in a loop, ensembles and heads in a list, dense growth."""
    k = b.units_last()
    n, h = b.values[k].shape[-1], b.rng.choice([2, 3])
    act, f = activation(b)
    way = b.rng.choice(["loop", "shared loop", "ensemble", "weighted ensemble", "dense", "branches", "pairs", "odd"])
    if way == "loop":
        layers = nn.ModuleList([nn.Linear(1, 1) for _ in range(n)])
        b.add(
            f"a layer for each unit {act}",
            [k],
            lambda m, x: f(torch.cat([layer(x[..., j : j + 1]) for j, layer in enumerate(m.layers)], -1)),
            layers=layers,
        )
    elif way == "shared loop":
        b.add(
            f"one layer for each unit {act}",
            [k],
            lambda m, x: torch.stack([f(m.layer(x[..., j : j + 1])).sum(-1) for j in range(x.shape[-1])], -1),
            layer=nn.Linear(1, h),
        )
    elif way in ("ensemble", "weighted ensemble"):
        layers = nn.ModuleList([nn.Sequential(nn.Linear(n, h), nn.Tanh(), nn.Linear(h, 2)) for _ in range(3)])
        weights = par(3) if way != "ensemble" else torch.ones(3, dtype=torch.float64)
        b.add(
            way,
            [k],
            lambda m, x: torch.stack([layer(x) * w for layer, w in zip(m.layers, m.weights, strict=True)]).mean(0),
            layers=layers,
            weights=weights,
        )
    elif way == "dense":
        b.add(
            f"dense growth {act}",
            [k],
            lambda m, x: torch.cat([x, f(m.a(x)), f(m.c(torch.cat([x, f(m.a(x))], -1)))], -1),
            a=nn.Linear(n, h),
            c=nn.Linear(n + h, 2),
        )
    elif way == "branches":
        b.add(
            f"added branches {act}",
            [k],
            lambda m, x: sum(f(layer(x)) for layer in m.layers),
            layers=nn.ModuleList([nn.Linear(n, h) for _ in range(2)]),
        )
    elif way == "pairs":
        b.add(
            f"pairs {act}",
            [k],
            lambda m, x: f(m.a(torch.stack([x, x.roll(1, -1)], -1))).flatten(-2),
            a=nn.Linear(2, 2),
        )
    else:
        b.add(f"every other unit {act}", [k], lambda m, x: torch.stack([f(x[..., 0]), x[..., -1], x.mean(-1)], -1))


@production(3)
def norm_of_places(b: Builder) -> None:
    """Norms over axes that are not those of units alone."""
    k = b.pick(lambda kinds, x: kinds in ("btu", "but", "buss", "btuu", "buu"))
    x = b.values[k]
    layers: dict[str, nn.Module] = {
        "layer norm of two axes": nn.LayerNorm(x.shape[-2:]),
        "whole layer norm": nn.LayerNorm(x.shape[1:], elementwise_affine=False),
        "group norm of places": nn.GroupNorm(1, x.shape[1]),
        "instance norm of places": nn.InstanceNorm2d(x.shape[1]) if x.dim() == 4 else nn.InstanceNorm1d(x.shape[1]),
        "batch norm of axis 1": nn.BatchNorm2d(x.shape[1]) if x.dim() == 4 else nn.BatchNorm1d(x.shape[1]),
        "softmax of two": nn.Flatten(1),
    }
    name = b.rng.choice(list(layers))
    if name == "softmax of two":
        b.add(name, [k], lambda m, x: x.flatten(1).softmax(1).view(x.shape) * 5)
    else:
        b.add(name, [k], lambda m, x: m.layer(x), layer=layers[name])


@production(3)
def odd_convolution(b: Builder) -> None:
    """Convolutions along units, circular, dilated, of other borders; shuffled channels; folds."""
    k = b.pick(lambda kinds, x: kinds in ("btu", "but", "buss", "bu"))
    kinds = b.kinds[k]
    act, f = activation(b)
    channels = b.values[k].shape[kinds.index("u")]
    if kinds == "bu":
        size = b.rng.choice([1, 3])
        b.add(
            f"conv along units {size} {act}",
            [k],
            lambda m, x: f(m.layer(x[:, None])).mean(1),
            layer=nn.Conv1d(1, 3, size, padding=size // 2),
        )
    elif kinds == "btu":
        b.add(
            f"conv of places as channels {act}",
            [k],
            lambda m, x: f(m.layer(x)),
            layer=nn.Conv1d(b.values[k].shape[1], 3, 1),
        )
    else:
        way = b.rng.choice(["circular", "reflect", "dilated", "shuffled", "squeezed", "separable", "attended"])
        make = nn.Conv2d if kinds == "buss" else nn.Conv1d
        if way in ("circular", "reflect"):
            layer = make(channels, channels, 3, padding=1, padding_mode=way)
            b.add(f"{way} conv {act}", [k], lambda m, x: f(m.layer(x)), layer=layer)
        elif way == "dilated":
            b.add(f"dilated {act}", [k], lambda m, x: f(m.layer(x)), layer=make(channels, 3, 3, padding=2, dilation=2))
        elif way == "shuffled" and channels % 2 == 0:
            b.add("shuffled", [k], lambda m, x: x.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2))
        elif way == "squeezed":
            b.add(
                f"squeezed {act}",
                [k],
                lambda m, x: (
                    x * torch.sigmoid(m.up(f(m.down(x.flatten(2).mean(-1))))).view(len(x), -1, *[1] * (x.dim() - 2))
                ),
                down=nn.Linear(channels, 2),
                up=nn.Linear(2, channels),
            )
        elif way == "separable":
            b.add(
                f"separable {act}",
                [k],
                lambda m, x: f(m.c(f(m.a(x)))),
                a=make(channels, channels, 3, padding=1, groups=channels),
                c=make(channels, 3, 1),
            )
        elif way == "attended":
            b.add(
                "max of channels",
                [k],
                lambda m, x: x * torch.sigmoid(x.amax(1, keepdim=True) + x.mean(1, keepdim=True)),
            )
        else:
            raise Skip


@production(3)
def graph(b: Builder) -> None:
    """Messages along constant or soft edges, over places or the batch."""
    k = b.pick(lambda kinds, x: kinds in ("btu", "bu"))
    n, d = b.values[k].shape[-1], 0 if b.kinds[k] == "bu" else 1
    act, f = activation(b)
    way = b.rng.choice(["edges", "soft", "distances", "neighbours", "mean", "segments"])
    source, target = torch.tensor([0, 1, 0, 1]), torch.tensor([1, 0, 0, 1])

    def function(m: Net, x: Tensor) -> Tensor:
        y = m.a(x)
        if way == "edges":
            return x + torch.zeros_like(x).index_add(d, m.target, f(y).index_select(d, m.source))
        if way == "soft":
            scores = y @ x.transpose(-1, -2)
            return scores.softmax(-1) @ x
        if way == "distances":
            return torch.exp(-torch.cdist(x, y)) @ x
        if way == "neighbours":
            return x + f(y.roll(1, d)) - y.roll(-1, d)
        if way == "segments":
            return x + f(y).scatter_reduce(
                d,
                m.target.view(-1, 1).expand(4, n) if d == 0 else torch.zeros_like(y[:, :1], dtype=torch.long),
                y,
                "amax",
            )
        return x + f(y).mean(d, keepdim=True)

    b.add(f"graph {way} {act}", [k], function, a=nn.Linear(n, n), source=source, target=target)


@production(3)
def complex_numbers(b: Builder) -> None:
    k = b.units_last()
    n = b.values[k].shape[-1]
    way = b.rng.choice(["pairs", "phases", "polar", "parts", "spectrum of time", "spectrum of units"])
    if way == "pairs" and n % 2 == 0:
        b.add(
            way,
            [k],
            lambda m, x: torch.view_as_real(
                torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * torch.complex(m.w, m.v)
            ).flatten(-2),
            w=par(n // 2),
            v=par(n // 2),
        )
    elif way == "phases":
        b.add(way, [k], lambda m, x: (x * torch.polar(torch.ones_like(m.w), m.w)).real, w=par(n))
    elif way == "polar":
        b.add(way, [k], lambda m, x: torch.polar(x.abs() + 0.1, m.a(x)).imag, a=nn.Linear(n, n))
    elif way == "parts":
        b.add(way, [k], lambda m, x: (torch.complex(m.a(x), m.c(x)) ** 2).abs(), a=nn.Linear(n, 3), c=nn.Linear(n, 3))
    elif way == "spectrum of time" and b.kinds[k] == "btu":
        b.add(way, [k], lambda m, x: torch.fft.irfft(torch.fft.rfft(x, dim=1) * m.w, n=x.shape[1], dim=1), w=par(n))
    elif way == "spectrum of units":
        b.add(way, [k], lambda m, x: torch.fft.fft(x, dim=-1).real)
    else:
        raise Skip


@production(2)
def nested_loop(b: Builder) -> None:
    """Fixed-point rounds, halting, unrolled optimisation, two layers over time."""
    k = b.units_last()
    n = b.values[k].shape[-1]
    act, f = activation(b)
    way = b.rng.choice(["fixed point", "halting", "descent", "momentum", "delayed", "by size"])
    a = nn.Linear(n, n)

    def function(m: Net, x: Tensor) -> Tensor:
        z = torch.zeros_like(x)
        if way == "fixed point":
            for _ in range(3):
                z = torch.tanh(m.a(z) + x)
            return z
        if way == "halting":
            left = torch.ones_like(x[..., :1])
            for _ in range(2):
                stop = torch.sigmoid(m.a(x)[..., :1])
                z, left = z + left * stop * x, left * (1 - stop)
                x = torch.tanh(m.a(x))
            return z + left * x
        if way == "descent":
            for _ in range(2):
                z = F.softshrink(z - 0.1 * (z @ m.a.weight.t() - x) @ m.a.weight, 0.01)
            return z
        if way == "momentum":
            v = torch.zeros_like(x)
            for _ in range(2):
                v = 0.9 * v + m.a(x)
                x = x + 0.1 * v
            return x
        if way == "delayed":
            memory = [torch.zeros_like(x)]
            for _ in range(3):
                memory.append(torch.tanh(m.a(memory[-1]) + memory[max(0, len(memory) - 2)] + x))
            return f(memory[-1])
        for _ in range(min(x.shape[0], 4)):
            x = x + 0.3 * torch.tanh(m.a(x))
        return x

    b.add(f"{way} {act}", [k], function, a=a)


@production(2)
def numbers_as_arguments(b: Builder) -> None:
    """Powers and scales that are parameters."""
    k = b.some()
    n = b.values[k].shape[-1] if b.kinds[k].endswith("u") else 1
    way = b.rng.choice(["power", "threshold", "scale there and back", "gated scalar", "two scalars", "root", "clamped"])
    ways: dict[str, tuple[Callable[[Net, Tensor], Tensor], dict[str, Any]]] = {
        "power": (lambda m, x: (x.abs() + 1e-3) ** torch.sigmoid(m.w), {"w": par(n)}),
        "threshold": (lambda m, x: torch.where(x > m.w, x, 0.2 * x), {"w": par(n)}),
        "scale there and back": (lambda m, x: torch.tanh(x * m.w) / m.w, {"w": par()}),
        "gated scalar": (lambda m, x: x * torch.sigmoid(m.w) + (1 - torch.sigmoid(m.w)) * x.relu(), {"w": par(n)}),
        "two scalars": (lambda m, x: x * m.w * m.v, {"w": par(), "v": par()}),
        "root": (lambda m, x: (x**2 * m.w.exp() + 1e-2).sqrt(), {"w": par(n)}),
        "clamped": (lambda m, x: torch.minimum(torch.maximum(x, -m.w.abs()), m.w.abs()), {"w": par(n)}),
    }
    f, parts = ways[way]
    b.add(f"{way} of {n}", [k], f, **parts)
