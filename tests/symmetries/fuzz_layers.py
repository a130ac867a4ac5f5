"""Productions with parameters: layers, norms, attention, recurrence, routing, tied weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from fuzz_functions import HOMOGENEOUS, UNARY
from fuzz_grammar import COUNT, FLAG, LEVEL, Builder, Skip, par, production
from net_family import Net
from torch import Tensor, nn

Act = Callable[[Tensor], Tensor]


def activation(b: Builder) -> tuple[str, Act]:
    name = b.rng.choice(list(HOMOGENEOUS if b.chance() else UNARY))
    return name, UNARY[name]


@production(6)
def linear(b: Builder) -> None:
    b.linear(b.units_last())


@production(8)
def hidden_layer(b: Builder) -> None:
    k = b.linear(b.units_last())
    name, f = activation(b)
    b.add(name, [k], lambda m, x: f(x))


@production(4)
def residual(b: Builder) -> None:
    k = b.units_last()
    name, f = activation(b)
    n, h = b.values[k].shape[-1], b.width()
    up, down = nn.Linear(n, h, bias=b.chance()), nn.Linear(h, n, bias=b.chance())
    scale = par() if b.chance(0.3) else torch.ones((), dtype=torch.float64)
    b.add(f"residual {h} {name}", [k], lambda m, x: x + m.down(f(m.up(x))) * m.s, up=up, down=down, s=scale)


@production(3)
def gated(b: Builder) -> None:
    k = b.units_last()
    n, h = b.values[k].shape[-1], b.width()
    name, f = activation(b)
    if b.chance():
        g, u = nn.Linear(n, h, bias=b.chance()), nn.Linear(n, h, bias=b.chance())
        b.add(f"gated {h} {name}", [k], lambda m, x: f(m.g(x)) * m.u(x), g=g, u=u)
    else:
        both = nn.Linear(n, 2 * h)
        split = b.rng.choice(["glu", "chunk", "every other"])

        def function(m: Net, x: Tensor) -> Tensor:
            y = m.both(x)
            if split == "glu":
                return F.glu(y)
            first, second = y.chunk(2, -1) if split == "chunk" else (y[..., ::2], y[..., 1::2])
            return f(first) * second

        b.add(f"packed gate {h} {split} {name}", [k], function, both=both)


@production(2)
def bilinear(b: Builder) -> None:
    k = b.units_last()
    j = b.pick(lambda kinds, x: kinds == b.kinds[k] and x.shape[:-1] == b.values[k].shape[:-1])
    layer = nn.Bilinear(b.values[k].shape[-1], b.values[j].shape[-1], b.width(), bias=b.chance())
    b.add("bilinear", [k, j], lambda m, x, y: m.layer(x, y), layer=layer)


@production(3)
def einsum(b: Builder) -> None:
    k = b.pick(lambda kinds, x: kinds.endswith("u"))
    n = b.values[k].shape[-1]
    if b.kinds[k].endswith("uu"):
        o = b.values[k].shape[-2]
        equation, w = b.rng.choice(
            [
                ("...ij,ijo->...o", par(o, n, 3)),
                ("...ij,jo->...io", par(n, 3)),
                ("...ij,io->...oj", par(o, 2)),
                ("...ij,ijo->...io", par(o, n, 2)),
                ("...ij,ij->...i", par(o, n)),
                ("...ij,j->...i", par(n)),
            ]
        )
        left = equation.split("->")[1].count("o") + equation.split("->")[1].count("i") + equation.count("->...oj")
        kinds = b.kinds[k][:-2] + "u" * max(1, left)
    else:
        equation, w = b.rng.choice(
            [
                ("...i,io->...o", par(n, b.width())),
                ("...i,oi->...o", par(b.width(), n)),
                ("...i,i->...i", par(n)),
                ("...i,ioj->...oj", par(n, 2, 3)),
                ("...i,ij,jo->...o", par(n, 3)),
            ]
        )
        kinds = b.kinds[k] + "u" * equation.endswith("oj")
    if equation.count(",") == 2:
        b.add(equation, [k], lambda m, x: torch.einsum(equation, x, m.w, m.v), kinds, w=w, v=par(3, b.width()))
    else:
        b.add(equation, [k], lambda m, x: torch.einsum(equation, x, m.w), kinds, w=w)


@production(3)
def gain(b: Builder) -> None:
    k = b.some()
    d = b.axis(k, b.rng.choice(["u", "u", "u", "t"]))
    n = b.values[k].shape[d]
    w = par(n, *[1] * (-d - 1))
    name = b.rng.choice(["gain", "shift", "affine", "scalar", "scalar shift", "temperature", "positive gain"])
    ways: dict[str, tuple[Callable[[Net, Tensor], Tensor], dict[str, Any]]] = {
        "gain": (lambda m, x: x * m.w, {"w": w}),
        "shift": (lambda m, x: x + m.w, {"w": w}),
        "affine": (lambda m, x: x * m.w + m.v, {"w": w, "v": par(*w.shape)}),
        "scalar": (lambda m, x: x * m.w, {"w": par()}),
        "scalar shift": (lambda m, x: x + m.w, {"w": par(1)}),
        "temperature": (lambda m, x: x * m.w.exp(), {"w": par()}),
        "positive gain": (lambda m, x: x * F.softplus(m.w), {"w": w}),
    }
    f, parts = ways[name]
    b.add(f"{name} on {b.kinds[k]}[{d}]", [k], f, **parts)


@production(5)
def norm(b: Builder) -> None:
    k = b.some()
    kinds, x = b.kinds[k], b.values[k]
    n = x.shape[kinds.index("u")] if "u" in kinds else 0
    affine = b.chance(0.8)
    groups = next((g for g in (2, 3) if n % g == 0), 1)
    layers: dict[str, nn.Module] = {}
    if kinds.endswith("u"):
        layers["layer norm"] = nn.LayerNorm(x.shape[-1], elementwise_affine=affine)
        layers["rms norm"] = nn.RMSNorm(x.shape[-1], eps=1e-5, elementwise_affine=affine)
    if kinds == "bu":
        layers["batch norm"] = nn.BatchNorm1d(n, affine=affine)
        layers["group norm"] = nn.GroupNorm(groups, n, affine=affine)
    if kinds == "but":
        layers["batch norm"] = nn.BatchNorm1d(n, affine=affine)
        layers["instance norm"] = nn.InstanceNorm1d(n, affine=affine)
        layers["group norm"] = nn.GroupNorm(groups, n, affine=affine)
    if kinds == "buss":
        layers["batch norm"] = nn.BatchNorm2d(n, affine=affine)
        layers["instance norm"] = nn.InstanceNorm2d(n, affine=affine, track_running_stats=b.chance())
        layers["group norm"] = nn.GroupNorm(groups, n, affine=affine)
        layers["local response"] = nn.LocalResponseNorm(2)
    if not layers:
        raise Skip
    name = b.rng.choice(list(layers))
    b.add(f"{name} {n}", [k], lambda m, x: m.layer(x), layer=layers[name])


@production(2)
def learned_activation(b: Builder) -> None:
    k = b.some()
    kinds = b.kinds[k]
    n = b.values[k].shape[kinds.index("u")] if "u" in kinds else 1
    name = b.rng.choice(["prelu", "prelu of units", "swish", "snake", "mixture"])
    if name.startswith("prelu"):
        if name != "prelu" and (len(kinds) < 2 or kinds[1] != "u"):
            raise Skip
        b.add(name, [k], lambda m, x: m.layer(x), layer=nn.PReLU(1 if name == "prelu" else n))
    elif name == "swish":
        b.add(name, [k], lambda m, x: x * torch.sigmoid(m.w * x), w=par(n) if kinds.endswith("u") else par())
    elif name == "snake":
        b.add(name, [k], lambda m, x: x + torch.sin(m.w * x) ** 2, w=par(n) if kinds.endswith("u") else par())
    else:
        b.add(name, [k], lambda m, x: m.w[0] * F.relu(x) + m.w[1] * torch.tanh(x), w=par(2))


@production(2)
def reparametrised(b: Builder) -> None:
    k = b.units_last()
    layer = nn.Linear(b.values[k].shape[-1], b.width())
    name = b.rng.choice(["weight norm", "spectral norm", "weight norm whole", "exponential", "centred", "cosine"])
    if name == "weight norm":
        layer = nn.utils.parametrizations.weight_norm(layer)
    elif name == "weight norm whole":
        layer = nn.utils.parametrizations.weight_norm(layer, dim=None)
    elif name == "spectral norm":
        layer = nn.utils.parametrizations.spectral_norm(layer)
    if name == "exponential":
        b.add(name, [k], lambda m, x: F.linear(x, m.layer.weight.exp(), m.layer.bias), layer=layer)
    elif name == "centred":
        b.add(name, [k], lambda m, x: F.linear(x, m.layer.weight - m.layer.weight.mean(), m.layer.bias), layer=layer)
    elif name == "cosine":
        b.add(
            name,
            [k],
            lambda m, x: F.linear(F.normalize(x, dim=-1), F.normalize(m.layer.weight)),
            layer=nn.Linear(b.values[k].shape[-1], layer.out_features, bias=False),
        )
    else:
        b.add(name, [k], lambda m, x: m.layer(x), layer=layer)


@production(4)
def attention(b: Builder) -> None:
    k = b.pick(lambda kinds, x: kinds == "btu")
    j = b.pick(lambda kinds, x: kinds == "btu" and len(x) == len(b.values[k])) if b.chance(0.3) else k
    n, n_memory = b.values[k].shape[-1], b.values[j].shape[-1]
    heads, dim = b.rng.choice([(1, 2), (2, 2), (3, 2), (2, 4), (1, 4)])
    kv = 1 if b.chance(0.3) else heads
    bias, out_bias, rotary = b.chance(), b.chance(), b.chance(0.25)
    way = b.rng.choice(["sdpa", "manual", "linear", "relu", "additive scores", "packed"])
    mask = b.rng.choice(["none", "none", "causal", "bias", "slopes"])
    q_norm, residual_ = b.chance(0.2), b.chance()
    parts: dict[str, Any] = {"o": nn.Linear(heads * dim, n, bias=out_bias)}
    packed = way == "packed" and j == k and kv == heads
    if packed:
        parts["qkv"] = nn.Linear(n, 3 * heads * dim, bias=bias)
    else:
        parts["q"] = nn.Linear(n, heads * dim, bias=bias)
        parts["k"] = nn.Linear(n_memory, kv * dim, bias=bias)
        parts["v"] = nn.Linear(n_memory, kv * dim, bias=bias)
    if q_norm:
        parts["norm"] = nn.LayerNorm(dim)
    if mask == "slopes":
        parts["slopes"] = par(heads, 1, 1)

    def rotate(x: Tensor) -> Tensor:
        angle = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * torch.tensor([1.0, 0.3], dtype=x.dtype)[: dim // 2]
        angle = torch.cat([angle, angle], -1)
        a, c = x.chunk(2, -1)
        return x * angle.cos() + torch.cat([-c, a], -1) * angle.sin()

    def function(m: Net, x: Tensor, memory: Tensor) -> Tensor:
        size = x.shape[0]
        if packed:
            q, key, v = m.qkv(x).view(size, -1, 3, heads, dim).permute(2, 0, 3, 1, 4)
        else:
            q = m.q(x).view(size, -1, heads, dim).transpose(1, 2)
            key, v = (f(memory).view(size, -1, kv, dim).transpose(1, 2) for f in (m.k, m.v))
        if q_norm:
            q, key = m.norm(q), m.norm(key)
        if rotary:
            q, key = rotate(q), rotate(key)
        if kv != heads:
            key, v = (y.repeat_interleave(heads // kv, 1) for y in (key, v))
        rows, columns = q.shape[-2], key.shape[-2]
        bias = torch.zeros(rows, columns, dtype=x.dtype)
        if mask == "causal":
            bias = bias.masked_fill(torch.ones(rows, columns).triu(1) > 0, float("-inf"))
        elif mask == "bias":
            bias = -(torch.arange(rows)[:, None] - torch.arange(columns)).abs().to(x.dtype)
        elif mask == "slopes":
            bias = m.slopes * (torch.arange(rows)[:, None] - torch.arange(columns)).to(x.dtype)
        if way in ("sdpa", "packed"):
            y = F.scaled_dot_product_attention(q, key, v, bias)
        elif way == "linear":
            y = F.softplus(q) @ (F.softplus(key).transpose(-1, -2) @ v) / columns
        elif way == "additive scores":
            y = (torch.tanh(q[..., :, None, :] + key[..., None, :, :]).sum(-1) + bias).softmax(-1) @ v
        else:
            scores = q @ key.transpose(-1, -2) / dim**0.5 + bias
            y = (F.relu(scores) if way == "relu" and mask != "causal" else scores.softmax(-1)) @ v
        y = m.o(y.transpose(1, 2).reshape(size, -1, heads * dim))
        return x + y if residual_ else y

    name = f"attention {heads}x{dim} kv {kv} {way} {mask}{' rotary' * rotary}{' norm' * q_norm}"
    b.add(name, [k, j], function, **parts)


@production(2)
def torch_attention(b: Builder) -> None:
    k = b.pick(lambda kinds, x: kinds == "btu" and x.shape[-1] % 2 == 0)
    j = b.pick(lambda kinds, x: kinds == "btu" and len(x) == len(b.values[k])) if b.chance(0.4) else k
    n, n_memory = b.values[k].shape[-1], b.values[j].shape[-1]
    if b.chance(0.7):
        layer = nn.MultiheadAttention(
            n, 2, batch_first=True, bias=b.chance(), add_bias_kv=b.chance(0.2), kdim=n_memory, vdim=n_memory
        )
        b.add("multihead", [k, j], lambda m, x, y: m.layer(x, y, y, need_weights=False)[0], layer=layer)
    else:
        layer = nn.TransformerEncoderLayer(n, 2, 4, 0.0, norm_first=b.chance(), batch_first=True)
        b.add("encoder layer", [k], lambda m, x: m.layer(x), layer=layer)


@production(3)
def recurrent(b: Builder) -> None:
    k = b.pick(lambda kinds, x: kinds == "btu")
    n, h = b.values[k].shape[-1], b.rng.choice([2, 3, 4])
    make = b.rng.choice([nn.LSTM, nn.GRU, nn.RNN])
    options: dict[str, Any] = {"batch_first": True, "bias": b.chance(0.8), "num_layers": b.rng.choice([1, 1, 2])}
    options["bidirectional"] = b.chance(0.2)
    if make is nn.LSTM and b.chance(0.2) and h > 2:
        options["proj_size"] = 2
    if make is nn.RNN and b.chance():
        options["nonlinearity"] = "relu"
    layer = make(n, h, **options)
    depth = options["num_layers"] * (1 + options["bidirectional"])
    start = b.rng.choice(["none", "none", "learned", "zeros"])
    last = b.chance(0.3)

    def function(m: Net, x: Tensor) -> Tensor:
        if start == "none" or (make is nn.LSTM and "proj_size" in options):
            y, state = m.layer(x)
        else:
            first = m.first.expand(-1, len(x), -1).contiguous() if start == "learned" else x.new_zeros(depth, len(x), h)
            y, state = m.layer(x, (first, torch.tanh(first)) if make is nn.LSTM else first)
        state = state[0] if isinstance(state, tuple) else state
        return state[-1] if last else y

    name = f"{make.__name__} {h} {options['num_layers']} layers {start}{' last' * last}"
    extra = {"first": par(depth, 1, h)} if start == "learned" else {}
    b.add(name, [k], function, "bu" if last else "btu", layer=layer, **extra)


@production(3)
def loop(b: Builder) -> None:
    """A cell by hand or from torch, over time."""
    k = b.pick(lambda kinds, x: kinds == "btu")
    n, h = b.values[k].shape[-1], b.rng.choice([2, 3, 4])
    way = b.rng.choice(["elman", "gated", "leaky", "gru cell", "lstm cell", "linear", "rnn cell"])
    start = b.rng.choice(["zeros", "learned", "input"])
    name, f = activation(b)
    parts: dict[str, Any] = {"w": nn.Linear(n, 2 * h if way == "gated" else h, bias=b.chance())}
    if way in ("elman", "leaky", "gated"):
        parts["u"] = nn.Linear(h, 2 * h if way == "gated" else h, bias=b.chance())
    elif way == "linear":
        parts["decay"] = par(h)
    else:
        parts["cell"] = {"gru cell": nn.GRUCell, "lstm cell": nn.LSTMCell, "rnn cell": nn.RNNCell}[way](n, h)
    if start == "learned":
        parts["first"] = par(h)
    if start == "input":
        parts["begin"] = nn.Linear(n, h)
    bounded = torch.tanh if way != "leaky" else f
    last = b.chance()

    def function(m: Net, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), h)
        state = state + m.first if start == "learned" else m.begin(x[:, 0]) if start == "input" else state
        cell = torch.zeros_like(state)
        out = []
        for t in range(x.shape[1]):
            if way == "elman":
                state = bounded(m.w(x[:, t]) + m.u(state))
            elif way == "leaky":
                state = 0.5 * state + 0.5 * bounded(m.w(x[:, t]) + m.u(state))
            elif way == "gated":
                z, c = (m.w(x[:, t]) + m.u(state)).chunk(2, -1)
                state = torch.sigmoid(z) * state + (1 - torch.sigmoid(z)) * torch.tanh(c)
            elif way == "linear":
                state = torch.sigmoid(m.decay) * state + m.w(x[:, t])
            elif way == "lstm cell":
                state, cell = m.cell(x[:, t], (state, cell))
            else:
                state = m.cell(x[:, t], state)
            out.append(state)
        return state if last else torch.stack(out, 1)

    b.add(f"loop {way} {h} {start} {name if way == 'leaky' else ''}", [k], function, "bu" if last else "btu", **parts)


@production(2)
def rounds(b: Builder) -> None:
    """A block as often as an argument says, an early exit by a flag, a branch by a number."""
    k = b.units_last()
    n = b.values[k].shape[-1]
    _, f = activation(b)
    way = b.rng.choice(["rounds", "exit", "level", "other head", "training only"])
    a, c = nn.Linear(n, n), nn.Linear(n, n)
    if way == "rounds":

        def repeated(m: Net, x: Tensor, count: int) -> Tensor:
            for _ in range(count):
                x = x + 0.5 * torch.tanh(m.a(x))
            return x

        b.add("rounds", [k, b.number(COUNT)], repeated, a=a)
    elif way == "exit":
        b.add("early exit", [k, b.number(FLAG)], lambda m, x, flag: m.a(x) if flag else m.c(f(m.a(x))), a=a, c=c)
    elif way == "level":
        b.add(
            "by level", [k, b.number(LEVEL)], lambda m, x, level: f(m.a(x)) * level if level else m.a(x.cumsum(-1)), a=a
        )
    elif way == "other head":
        b.add("no reader", [k], lambda m, x: m.a(x) + 0 * x.sum(), a=a, c=c)
    else:
        b.add("training only", [k], lambda m, x: m.a(x) + (m.c(x) if m.training else 0.0), a=a, c=c)


@production(2)
def buffers(b: Builder) -> None:
    """State between calls: a running mean, a memory, a counter."""
    k = b.units_last()
    n = b.values[k].shape[-1]
    way = b.rng.choice(["running mean", "memory", "rebound", "counter", "first call"])
    held = torch.zeros(n, dtype=torch.float64) if way in ("memory", "first call") else torch.rand(n).double()
    w = nn.Linear(n, n)
    after = list(range(b.values[k].dim() - 1))

    def function(m: Net, x: Tensor) -> Tensor:
        if way == "counter":
            m.count.add_(1)
            return x * (1 + 0.1 * m.count)
        y = x + torch.tanh(m.w(m.held)) if way != "running mean" else x - m.held
        mean = x.mean(after)
        if way == "rebound":
            m.held = 0.5 * m.held + 0.5 * mean
        elif way == "running mean":
            m.held.mul_(0.9).add_(0.1 * mean)
        else:
            m.held.copy_(mean)
        return y

    parts = {"count": torch.zeros(())} if way == "counter" else {"held": held, "w": w}
    if way == "running mean":
        del parts["w"]
    b.add(f"buffer {way}", [k], function, **parts)


@production(3)
def tied(b: Builder) -> None:
    """A layer that was there before: the module, its parameter, its memory, or a part of that."""
    k = b.units_last()
    n = b.values[k].shape[-1]
    layers = [
        (step, layer)
        for step in b.program.steps
        for layer in step.modules()
        if type(layer) is nn.Linear and not nn.utils.parametrize.is_parametrized(layer)
    ]
    if not layers:
        raise Skip
    _, layer = b.rng.choice(layers)
    rows, columns = layer.weight.shape
    way = b.rng.choice(["module", "transpose", "memory", "memory transpose", "slice", "parameter"])
    if way == "module" and columns == n:
        b.add("same module", [k], lambda m, x: m.layer(x), layer=layer)
    elif way == "transpose" and rows == n:
        b.add("transposed", [k], lambda m, x: x @ m.layer.weight, layer=layer)
    elif way == "memory" and columns == n:
        own = nn.Linear(n, rows).double()
        own.weight.data = layer.weight.data
        b.add("same memory", [k], lambda m, x: m.own(x), own=own)
    elif way == "memory transpose" and rows == n:
        own = nn.Linear(n, columns).double()
        own.weight.data = layer.weight.data.t()
        b.add("same memory transposed", [k], lambda m, x: m.own(x), own=own)
    elif way == "slice" and columns == n and rows > 2:
        own = nn.Linear(n, rows - 1, bias=False).double()
        own.weight.data = layer.weight.data[1:]
        b.add("slice of memory", [k], lambda m, x: m.own(x), own=own)
    elif way == "parameter" and columns == n:
        own = nn.Linear(n, rows).double()
        own.weight = layer.weight
        b.add("same parameter", [k], lambda m, x: m.own(x), own=own)
    else:
        raise Skip


@production(2)
def experts(b: Builder) -> None:
    k = b.units_last()
    n, e, h = b.values[k].shape[-1], b.rng.choice([2, 3]), b.width()
    name, f = activation(b)
    way = b.rng.choice(["soft", "top", "arg", "relu scores", "sigmoid", "list"])
    router = nn.Linear(n, e, bias=b.chance())
    if way == "list":
        parts: dict[str, Any] = {"layers": nn.ModuleList([nn.Linear(n, h) for _ in range(e)])}
    else:
        parts = {"w": par(e, h, n)}

    def function(m: Net, x: Tensor) -> Tensor:
        scores = m.router(x)
        if way == "list":
            outs = torch.stack([f(layer(x)) for layer in m.layers], -2)
        else:
            outs = f(torch.einsum("...i,eoi->...eo", x, m.w))
        if way in ("soft", "list"):
            weights = scores.softmax(-1)
        elif way == "sigmoid":
            weights = torch.sigmoid(scores)
        else:
            scores = F.relu(scores) if way == "relu scores" else scores
            if way == "top":
                value, index = scores.topk(2, -1)
                weights = torch.zeros_like(scores).scatter(-1, index, value.softmax(-1))
            else:
                weights = F.one_hot(scores.argmax(-1), e).to(x.dtype) + 0 * scores
        return (weights[..., None] * outs).sum(-2)

    b.add(f"experts {e} {way} {name}", [k], function, router=router, **parts)


@production(2)
def codebook(b: Builder) -> None:
    k = b.units_last()
    n = b.values[k].shape[-1]
    way = b.rng.choice(["nearest", "soft", "argmax", "slots"])

    def function(m: Net, x: Tensor) -> Tensor:
        distance = ((x[..., None, :] - m.codes) ** 2).sum(-1)
        if way == "nearest":
            return m.codes[distance.argmin(-1)] + 0.1 * x
        if way == "soft":
            return (-distance).softmax(-1) @ m.codes
        scores = x @ m.codes.t()
        if way == "argmax":
            return F.embedding(scores.argmax(-1), m.codes)
        return (scores.softmax(-2) @ m.codes) if x.dim() > 1 else scores @ m.codes

    b.add(f"codebook {way}", [k], function, codes=par(b.rng.choice([3, 4]), n))


@production(6)
def embedding(b: Builder) -> None:
    """What tokens begin with; others get nothing of it."""
    if b.kinds[0] != "bt":
        raise Skip
    n, padding = b.rng.choice([2, 3, 4]), 0 if b.chance(0.3) else None
    table = nn.Embedding(5, n, padding_idx=padding)
    masked = len(b.inputs) > 1 and b.chance(0.8)
    if masked:
        b.add("masked embedding", [0, 1], lambda m, t, k: m.table(t) * k[..., None], "btu", table=table)
    else:
        b.add("embedding", [0], lambda m, t: m.table(t), "btu", table=table)


@production(4)
def convolution(b: Builder) -> None:
    k = b.pick(lambda kinds, x: kinds in ("but", "buss", "btu"))
    kinds = b.kinds[k]
    n = b.values[k].shape[kinds.index("u")]
    groups = b.rng.choice([1, 1, 1, n, next((g for g in (2, 3) if n % g == 0), 1)])
    out = groups * b.rng.choice([1, 2, 2, 3]) if groups > 1 else b.width()
    make = nn.Conv2d if kinds == "buss" else nn.Conv1d
    size = b.rng.choice([1, 3])
    layer = make(n, out, size, padding=size // 2, groups=groups, bias=b.chance(), stride=b.rng.choice([1, 1, 2]))
    transposed = b.chance(0.15)
    if transposed:
        layer = (nn.ConvTranspose2d if kinds == "buss" else nn.ConvTranspose1d)(n, out, size, groups=groups)
    name = f"conv {n}-{out} size {size} groups {groups}{' transposed' * transposed}"
    if kinds == "btu":
        b.add(name, [k], lambda m, x: m.layer(x.transpose(1, 2)).transpose(1, 2), layer=layer)
    else:
        b.add(name, [k], lambda m, x: m.layer(x), layer=layer)


@production(2)
def across_places(b: Builder) -> None:
    """Maps along time or the places of an image: of a fixed size, or with units for channels."""
    k = b.pick(lambda kinds, x: kinds in ("btu", "but"))
    d = b.kinds[k].index("t")
    t = b.values[k].shape[d]
    if b.chance():
        h = b.width()
        up, down = nn.Linear(t, h), nn.Linear(h, t)
        b.add(
            "mixed places",
            [k],
            lambda m, x: x + m.down(F.relu(m.up(x.transpose(d, -1)))).transpose(d, -1),
            up=up,
            down=down,
        )
    else:
        layer = nn.Conv1d(1, 2, 3, padding=1)
        b.add(
            "one channel for each unit",
            [k],
            lambda m, x: (
                m.layer(x.transpose(1, 2).flatten(0, 1)[:, None] if d == 1 else x.flatten(0, 1)[:, None])
                .mean(1)
                .unflatten(0, (len(x), -1))
                .transpose(*((1, 2) if d == 1 else (0, 0)))
            ),
            layer=layer,
        )
