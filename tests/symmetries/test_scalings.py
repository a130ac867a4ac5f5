"""Rescalings and sign flips, each alone, in float64: what is claimed holds, and what holds is claimed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from net_family import Net, conv, image, lin, par, seq
from nets_language import rotate_half
from oracle import (
    deviation,
    floats,
    infer,
    offsets,
    randomise,
    rank,
    scaling_directions,
    scaling_equations,
)
from torch import Tensor, nn

from coset import Element, Symmetry
from coset.symmetries.group import Scaling

Sample = tuple[nn.Module, tuple[Any, ...]]


def between(act: nn.Module | Callable[[Tensor], Tensor], size: int = 4) -> Sample:
    """3 -> 4, act, -> 2."""

    def forward(m: Net, x: Tensor) -> Tensor:
        return m.b(act(m.a(x)) if not isinstance(act, nn.Module) else m.act(m.a(x)))

    parts = {"act": act} if isinstance(act, nn.Module) else {}
    return Net(forward, a=lin(3, 4), b=lin(size, 2), **parts), (torch.randn(6, 3),)


def pooled(pool: nn.Module, act: nn.Module | None = None) -> Sample:
    return seq(conv(3, 4, 3, padding=1), act or nn.ReLU(), pool, nn.Flatten(), nn.LazyLinear(2)), (image(),)


def normed(norm: nn.Module, act: nn.Module | None = None) -> Sample:
    return seq(conv(3, 4, 3), norm, act or nn.GELU(), conv(4, 2, 1)), (image(),)


def alone(sym: Symmetry, scaling: Scaling, spread: float = 0.5, seed: int = 0) -> Element:
    """One scaling with random factors, or random signs with one of each kind."""
    shape = (scaling.copies, scaling.size) if scaling.over else (scaling.size,)
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    if scaling.kind == "sign":
        factors = noise.sign()
        factors.view(-1)[0] = -1.0
    else:
        factors = (spread * noise + 0.1).exp()
    return Element(sym.sets, {}, {scaling.name: factors}, sym.identity().units)


def kinds(sym: Symmetry, exact: bool = True) -> Counter[str]:
    """ "scaling 4" or "scaling 2x4" for two units in each of four fibres; "scaling -" for whole tensors."""
    out: Counter[str] = Counter()
    for scaling in sym.scalings:
        if scaling.exact == exact:
            size = f"{scaling.size}x{scaling.copies}" if scaling.over else str(scaling.size) if scaling.units else "-"
            out[f"{scaling.kind} {size}"] += 1
    return out


def check_each(model: nn.Module, args: tuple[Any, ...], sym: Symmetry) -> None:
    """Each exact scaling alone preserves the function, and stops doing so when one of its members stays behind."""
    state = model.state_dict()
    for scaling in sym.scalings:
        if not scaling.exact:
            continue
        image = sym.act(alone(sym, scaling), state)
        assert deviation(model, args, image) < 1e-9, scaling
        touched = [m.tensor for m in scaling.members if not torch.equal(image[m.tensor], state[m.tensor])]
        assert touched
        if len(set(touched)) > 1 and "mean" not in touched[0]:
            partly = {**image, touched[0]: state[touched[0]]}
            assert deviation(model, args, partly) > 1e-9, scaling


NETS: dict[str, tuple[Callable[[], Sample], str]] = {
    "relu": (lambda: between(nn.ReLU()), "scaling 4"),
    "leaky relu": (lambda: between(nn.LeakyReLU(0.2)), "scaling 4"),
    "prelu": (lambda: between(nn.PReLU()), "scaling 4"),
    "prelu per unit": (lambda: between(nn.PReLU(4)), "scaling 4"),
    "clamp at zero": (lambda: between(lambda x: x.clamp(min=0)), "scaling 4"),
    "maximum with zero": (lambda: between(lambda x: torch.maximum(x, torch.zeros_like(x))), "scaling 4"),
    "where positive": (lambda: between(lambda x: torch.where(x > 0, x, torch.zeros_like(x))), "scaling 4"),
    "abs": (lambda: between(torch.abs), "scaling 4,sign 4"),
    "square": (lambda: between(torch.square), "scaling 4,sign 4"),
    "cube": (lambda: between(lambda x: x**3), "scaling 4,sign 4"),
    "squared relu": (lambda: between(lambda x: F.relu(x) ** 2), "scaling 4"),
    "identity": (lambda: between(lambda x: x), "scaling 4,sign 4"),
    "negated": (lambda: between(lambda x: -2 * x), "scaling 4,sign 4"),
    "tanh": (lambda: between(nn.Tanh()), "sign 4"),
    "hardtanh": (lambda: between(nn.Hardtanh()), "sign 4"),
    "hardtanh uneven": (lambda: between(nn.Hardtanh(-1, 2)), ""),
    "relu6": (lambda: between(nn.ReLU6()), ""),
    "softsign": (lambda: between(nn.Softsign()), "sign 4"),
    "softshrink": (lambda: between(nn.Softshrink()), "sign 4"),
    "tanhshrink": (lambda: between(nn.Tanhshrink()), "sign 4"),
    "sin": (lambda: between(torch.sin), "sign 4"),
    "cos": (lambda: between(torch.cos), "sign 4"),
    "atan": (lambda: between(torch.atan), "sign 4"),
    "erf": (lambda: between(torch.erf), "sign 4"),
    "round": (lambda: between(torch.round), "sign 4"),
    "sign": (lambda: between(torch.sign), "scaling 4,sign 4"),
    "gelu": (lambda: between(nn.GELU()), ""),
    "silu": (lambda: between(nn.SiLU()), ""),
    "sigmoid": (lambda: between(nn.Sigmoid()), ""),
    "softplus": (lambda: between(nn.Softplus()), ""),
    "elu": (lambda: between(nn.ELU()), ""),
    "selu": (lambda: between(nn.SELU()), ""),
    "softmax": (lambda: between(nn.Softmax(-1)), ""),
    "exp": (lambda: between(torch.exp), ""),
    "shifted relu": (lambda: between(lambda x: F.relu(x) + 1), ""),
    "relu of shift": (lambda: between(lambda x: F.relu(x + 0.5)), ""),
    "cumsum": (lambda: between(lambda x: x.cumsum(-1)), "scaling -,sign -"),
    "std": (lambda: between(lambda x: x / x.std(-1, keepdim=True)), "scaling -,sign -"),
    "floor": (lambda: between(torch.floor), ""),
    "to int": (lambda: between(lambda x: (3 * x).long().to(x.dtype)), ""),
    "to bool": (lambda: between(lambda x: x.relu().bool().to(x.dtype)), ""),
    "max pool": (lambda: pooled(nn.MaxPool2d(2)), "scaling 4"),
    "average pool": (lambda: pooled(nn.AvgPool2d(2)), "scaling 4"),
    "adaptive pools": (lambda: pooled(seq(nn.AdaptiveMaxPool2d(4), nn.AdaptiveAvgPool2d(2))), "scaling 4"),
    "upsampling": (lambda: pooled(nn.Upsample(scale_factor=2, mode="bilinear")), "scaling 4"),
    "padding": (lambda: pooled(nn.ZeroPad2d(1)), "scaling 4"),
    "padding with ones": (lambda: pooled(nn.ConstantPad2d(1, 1.0)), ""),
    "reflection": (lambda: pooled(nn.ReflectionPad2d(1)), "scaling 4"),
    "power average pool": (lambda: pooled(nn.LPPool2d(2, 2)), "scaling 4"),
    "average pool of tanh": (lambda: pooled(nn.AvgPool2d(2), nn.Tanh()), "sign 4"),
    "max pool of tanh": (lambda: pooled(nn.MaxPool2d(2), nn.Tanh()), ""),
    "max over tokens": (lambda: between(lambda x: F.relu(x).max(0, keepdim=True)[0]), "scaling 4"),
    "max over units": (lambda: between(lambda x: x + F.relu(x).amax(-1, keepdim=True)), "scaling -"),
    "batch norm": (lambda: normed(nn.BatchNorm2d(4)), "scaling 4*2,sign 4"),
    "batch norm relu": (lambda: normed(nn.BatchNorm2d(4), nn.ReLU()), "scaling 4*3,sign 4"),
    "batch norm, no gain": (lambda: normed(nn.BatchNorm2d(4, affine=False), nn.ReLU()), "scaling 4*2"),
    "batch norm, large eps": (lambda: normed(nn.BatchNorm2d(4, eps=0.5)), "scaling 4*2,sign 4"),
    "gated": (
        lambda: (
            Net(lambda m, x: m.d(F.silu(m.g(x)) * m.u(x)), g=lin(3, 4), u=lin(3, 4), d=lin(4, 2)),
            (torch.randn(6, 3),),
        ),
        "scaling 4,sign 4",
    ),
    "bilinear gate": (
        lambda: (Net(lambda m, x: m.d(m.g(x) * m.u(x)), g=lin(3, 4), u=lin(3, 4), d=lin(4, 2)), (torch.randn(6, 3),)),
        "scaling 4*2,sign 4*2",
    ),
    "residual relu": (
        lambda: (
            Net(lambda m, x: m.b((lambda h: h + m.c(F.relu(h)))(m.a(x))), a=lin(3, 4), c=lin(4, 4), b=lin(4, 2)),
            (torch.randn(6, 3),),
        ),
        "scaling 4",
    ),
    "scalar gain": (
        lambda: (
            Net(lambda m, x: m.b(m.s * F.gelu(m.a(x))), a=lin(3, 4), b=lin(4, 2), s=nn.Parameter(torch.tensor(0.7))),
            (torch.randn(6, 3),),
        ),
        "scaling -,sign -",
    ),
    "two linear maps": (
        lambda: (seq(lin(3, 4), lin(4, 5), lin(5, 2)), (torch.randn(6, 3),)),
        "scaling 4,scaling 5,sign 4,sign 5",
    ),
}


def parse(text: str) -> Counter[str]:
    out: Counter[str] = Counter()
    for word in filter(None, text.split(",")):
        name, _, times = word.partition("*")
        out[name] += int(times or 1)
    return out


def ready(make: Callable[[], Sample]) -> tuple[nn.Module, tuple[Any, ...], Symmetry]:
    torch.manual_seed(0)
    model, args = make()
    if any(isinstance(m, nn.LazyLinear) for m in model.modules()):
        model(*args)
    return infer(model, args)


LATE = {
    "leaky relu",
    "squared relu",
    "negated",
    "hardtanh",
    "softsign",
    "tanhshrink",
    "atan",
    "erf",
    "silu",
    "softplus",
    "elu",
    "selu",
    "exp",
    "softmax",
    "average pool",
    "padding",
    "reflection",
    "shifted relu",
    "floor",
}


def cases(names: Any) -> list[Any]:
    out = []
    for name in names:
        marks = [pytest.mark.slow] if name in LATE else []
        out.append(pytest.param(name, marks=marks))
    return out


@pytest.mark.parametrize("name", cases(NETS))
def test_exact_scalings(name: str) -> None:
    make, expected = NETS[name]
    model, args, sym = ready(make)
    check_each(model, args, sym)
    assert kinds(sym) == parse(expected)


def test_batch_norm_by_the_letter() -> None:
    """x -> c x is undone by mean -> c mean and var + eps -> c^2 (var + eps)."""
    model, args, sym = ready(lambda: normed(nn.BatchNorm2d(4, eps=0.25), nn.ReLU()))
    c = torch.tensor([0.5, 2.0, 3.0, 1.0], dtype=torch.float64)
    image = dict(model.state_dict())
    image["0.weight"] = image["0.weight"] * c.view(4, 1, 1, 1)
    image["0.bias"], image["1.running_mean"] = image["0.bias"] * c, image["1.running_mean"] * c
    image["1.running_var"] = c**2 * (image["1.running_var"] + 0.25) - 0.25
    assert deviation(model, args, image) < 1e-12
    assert offsets(sym)["1.running_var"] == 0.25
    directions = scaling_directions(model, sym)
    power = {"0.weight": 1.0, "0.bias": 1.0, "1.running_mean": 1.0, "1.running_var": 2.0}
    first = [
        torch.zeros_like(t).index_fill_(0, torch.tensor([0]), power.get(name, 0.0)).flatten()
        for name, t in floats(model).items()
    ]
    assert rank(torch.cat([directions, torch.cat(first)[None]])) == rank(directions) == len(directions)


NORMS: dict[str, Callable[[float], Sample]] = {
    "layer norm": lambda eps: (seq(lin(3, 4), nn.LayerNorm(4, eps), nn.GELU(), lin(4, 2)), (torch.randn(6, 3),)),
    "rms norm": lambda eps: (seq(lin(3, 4), nn.RMSNorm(4, eps), nn.GELU(), lin(4, 2)), (torch.randn(6, 3),)),
    "group norm": lambda eps: normed(nn.GroupNorm(2, 4, eps)),
    "instance norm": lambda eps: normed(nn.InstanceNorm2d(4, eps, affine=True)),
    "layer norm by hand": lambda eps: (
        Net(
            lambda m, x: m.b(
                F.gelu(
                    m.g
                    * (
                        lambda h: (
                            (h - h.mean(-1, keepdim=True)) / (h.var(-1, keepdim=True, unbiased=False) + eps).sqrt()
                        )
                    )(m.a(x))
                )
            ),
            a=lin(3, 4),
            g=par(4),
            b=lin(4, 2),
        ),
        (torch.randn(6, 3),),
    ),
    "rms norm by hand": lambda eps: (
        Net(
            lambda m, x: m.b(F.gelu(m.g * (lambda h: h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps))(m.a(x)))),
            a=lin(3, 4),
            g=par(4),
            b=lin(4, 2),
        ),
        (torch.randn(6, 3),),
    ),
    "unit length": lambda eps: (
        Net(lambda m, x: m.b(F.gelu(m.a(x) / (m.a(x).norm(dim=-1, keepdim=True) + eps))), a=lin(3, 4), b=lin(4, 2)),
        (torch.randn(6, 3),),
    ),
}
LOOSE = {"layer norm": 1, "rms norm": 1, "group norm": 2, "instance norm": 4, "unit length": 1}


@pytest.mark.parametrize("name", cases(NORMS))
def test_norms_make_approximate_scalings(name: str) -> None:
    """Weights before a norm may be scaled up to its epsilon: flagged, wrong by O(eps), and all of them found."""
    make = NORMS[name]
    gaps = []
    for eps in (1e-3, 1e-9):
        model, args, sym = ready(lambda eps=eps: make(eps))
        rough = [s for s in sym.scalings if not s.exact]
        assert rough
        assert all(s.note and s.kind == "scaling" for s in rough)
        state = model.state_dict()
        gaps.append(max(deviation(model, args, sym.act(alone(sym, s), state)) for s in rough))
        assert max(deviation(model, args, sym.act(sym.random(scalings=True), state)) for _ in range(2)) < 1e-9
        check_each(model, args, sym)
    assert gaps[0] > 1e-8
    assert gaps[1] < 1e-6
    free = sum(s.copies * s.size for s in rough)
    assert free == LOOSE.get(name, 1)


def test_rms_norm_flips_the_residual_stream() -> None:
    def forward(m: Net, x: Tensor) -> Tensor:
        h = m.embed(x)
        h = h + m.down(F.gelu(m.up(m.norm(h))))
        return m.head(m.last(h))

    parts = {"embed": lin(3, 4), "norm": nn.RMSNorm(4), "up": lin(4, 5), "down": lin(5, 4), "last": nn.RMSNorm(4)}
    model, args, sym = ready(lambda: (Net(forward, **parts, head=lin(4, 2)), (torch.randn(6, 3),)))
    stream = next(g.name for g in sym.groups if ("embed.weight", 0) in g.members)
    flips = [s for s in sym.scalings if s.kind == "sign" and s.units == stream]
    assert any({"embed.weight", "down.weight"} <= {m.tensor for m in s.members} for s in flips)
    check_each(model, args, sym)
    # A layer norm subtracts the mean, so only all units together may flip there.
    parts |= {"norm": nn.LayerNorm(4), "last": nn.LayerNorm(4)}
    model, args, sym = ready(lambda: (Net(forward, **parts, head=lin(4, 2)), (torch.randn(6, 3),)))
    stream = next(g.name for g in sym.groups if ("embed.weight", 0) in g.members)
    assert not any(
        s.kind == "sign" and s.units == stream and "embed.weight" in {m.tensor for m in s.members} for s in sym.scalings
    )
    whole = [s for s in sym.scalings if s.kind == "sign" and not s.units]
    assert any("embed.weight" in {m.tensor for m in s.members} for s in whole)
    check_each(model, args, sym)


def attention(rope: bool) -> Sample:
    def forward(m: Net, x: Tensor) -> Tensor:
        q, k, v = (p(x).view(2, 5, 2, 4).transpose(1, 2) for p in (m.q, m.k, m.v))
        if rope:
            q, k = rotate_half(q), rotate_half(k)
        return m.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 5, 8))

    return Net(forward, q=lin(3, 8), k=lin(3, 8), v=lin(3, 8), o=lin(8, 2)), (torch.randn(2, 5, 3),)


def test_scalings_of_heads() -> None:
    """In each head each value unit has a factor, and each query unit has the inverse of its key unit's."""
    model, args, sym = ready(lambda: attention(False))
    check_each(model, args, sym)
    assert kinds(sym) == parse("scaling 4x2*2,sign 4x2*2")
    for pair in ({"q.weight", "k.weight"}, {"v.weight", "o.weight"}):
        scaling = next(s for s in sym.scalings if s.kind == "scaling" and pair <= {m.tensor for m in s.members})
        power = {m.tensor: m.power for m in scaling.members}
        first, second = sorted(pair)
        assert power[first] == -power[second]


def count(make: Callable[[], Sample]) -> tuple[int, int, int]:
    """(free factors there are, of these found, listed)."""
    model, args, sym = ready(make)
    generator = torch.Generator().manual_seed(1)
    inputs = [tuple(torch.randn(x.shape, generator=generator, dtype=x.dtype) for x in args) for _ in range(400)]
    equations = scaling_equations(lambda k: randomise(model, k + 1), lambda k: inputs[k], offsets(sym))
    directions = scaling_directions(model, sym)
    assert float((equations @ directions.T).abs().max()) < 1e-10
    live = equations.abs().amax(0) > 1e-13
    return int(live.sum()) - rank(equations[:, live]), rank(directions[:, live]), len(directions)


def test_scalings_of_rotated_heads() -> None:
    """A pair of rotated units has one factor in each head: 2 heads of 2 pairs, and 8 value units."""
    assert count(lambda: attention(True)) == (12, 12, 12)


def test_scalings_of_plain_heads() -> None:
    assert count(lambda: attention(False)) == (16, 16, 16)


@pytest.mark.parametrize("nonlinearity", ["relu", "tanh"])
def test_scalings_of_recurrent_units(nonlinearity: str) -> None:
    """h' = act(W x + U h + b): a positive factor (relu) or a sign (tanh) for each unit."""

    def forward(m: Net, x: Tensor) -> Tensor:
        return m.o(m.r(x)[0])

    core = nn.RNN(3, 4, nonlinearity=nonlinearity, batch_first=True)
    model, args, sym = ready(lambda: (Net(forward, r=core, o=lin(4, 2)), (torch.randn(2, 3, 3),)))
    check_each(model, args, sym)
    assert kinds(sym) == parse("scaling 4" if nonlinearity == "relu" else "sign 4")


def test_inputs_of_a_recurrent_layer_scale() -> None:
    """The map into an LSTM and the LSTM's input weights share a factor and a sign for each unit between."""

    def forward(m: Net, x: Tensor) -> Tensor:
        return m.o(m.r(m.e(x))[0])

    core = nn.LSTM(4, 3, batch_first=True)
    model, args, sym = ready(lambda: (Net(forward, e=lin(3, 4), r=core, o=lin(3, 2)), (torch.randn(2, 3, 3),)))
    check_each(model, args, sym)
    assert kinds(sym) == parse("scaling 4,sign 4,sign 3")


def test_scalings_survive_json_and_population() -> None:
    model, args, sym = ready(lambda: normed(nn.BatchNorm2d(4), nn.ReLU()))
    again = Symmetry.from_json(sym.to_json())
    state = model.state_dict()
    g = sym.random(torch.Generator().manual_seed(0), scalings=True, batch=3)
    images = again.act(g, state)
    for i in range(3):
        one = {name: t[i] if t.dim() > state[name].dim() else t for name, t in images.items()}
        assert deviation(model, args, one) < 1e-9
