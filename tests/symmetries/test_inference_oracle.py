"""Inference against brute force: every combination of axis permutations of a tiny net is run."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from net_family import Net, conv, lin, par, seq
from oracle import images, infer, loose_fixed_axes, loose_members, preserving_states
from torch import Tensor, nn

from coset import Symmetry

Sample = tuple[nn.Module, tuple[Any, ...]]
X = torch.randn(5, 2, generator=torch.Generator().manual_seed(1))


def mlp(widths: Sequence[int], act: type[nn.Module] = nn.GELU, bias: bool = True) -> Sample:
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(widths):
        layers += [lin(a, b, bias=bias), act()]
    return seq(*layers[:-1]), (torch.randn(5, widths[0], generator=torch.Generator().manual_seed(1)),)


def residual() -> Sample:
    def forward(m: Net, x: Tensor) -> Tensor:
        h = m.a(x)
        return m.c(h + F.gelu(m.b(h)))

    return Net(forward, a=lin(2, 3, bias=False), b=lin(3, 3, bias=False), c=lin(3, 1, bias=False)), (X,)


def concatenated() -> Sample:
    def forward(m: Net, x: Tensor) -> Tensor:
        return m.c(F.gelu(torch.cat([m.a(x), m.b(x)], 1)))

    return Net(forward, a=lin(2, 2, bias=False), b=lin(2, 2, bias=False), c=lin(4, 1, bias=False)), (X,)


def concatenated_twice() -> Sample:
    def forward(m: Net, x: Tensor) -> Tensor:
        h = F.gelu(m.a(x))
        return m.c(torch.cat([h, h * h], 1))

    return Net(forward, a=lin(2, 2, bias=False), c=lin(4, 1, bias=False)), (X,)


def tied() -> Sample:
    def forward(m: Net, x: Tensor) -> Tensor:
        return F.gelu(x @ m.w.t()) @ m.w

    return Net(forward, w=par(4, 2)), (X,)


def shared() -> Sample:
    def forward(m: Net, x: Tensor) -> Tensor:
        return m.c(F.gelu(m.b(F.gelu(m.b(m.a(x))))))

    return Net(forward, a=lin(2, 3, bias=False), b=lin(3, 3, bias=False), c=lin(3, 1, bias=False)), (X,)


def grouped() -> Sample:
    x = torch.randn(3, 2, 3, 1, generator=torch.Generator().manual_seed(1))
    layers = [conv(2, 4, 1, bias=False), nn.GELU(), conv(4, 2, 1, groups=2, bias=False), nn.GELU()]
    return seq(*layers, conv(2, 1, 1, bias=False)), (x,)


def gated() -> Sample:
    def forward(m: Net, x: Tensor) -> Tensor:
        return m.d(F.silu(m.g(x)) * m.u(x))

    return Net(forward, g=lin(2, 3, bias=False), u=lin(2, 3, bias=False), d=lin(3, 1, bias=False)), (X,)


def interleaved() -> Sample:
    def forward(m: Net, x: Tensor) -> Tensor:
        return m.c(F.gelu(torch.stack([m.a(x), m.b(x)], -1).flatten(1)))

    return Net(forward, a=lin(2, 2, bias=False), b=lin(2, 2, bias=False), c=lin(4, 1, bias=False)), (X,)


def normed() -> Sample:
    def forward(m: Net, x: Tensor) -> Tensor:
        return m.c(F.gelu(m.n(m.a(x))))

    return Net(forward, a=lin(2, 4, bias=False), n=nn.GroupNorm(2, 4), c=lin(4, 1, bias=False)), (X,)


def batch_normed() -> Sample:
    layers = [lin(2, 3, bias=False), nn.BatchNorm1d(3), nn.GELU(), lin(3, 1, bias=False)]
    return seq(*layers), (X,)


def sliced() -> Sample:
    def forward(m: Net, x: Tensor) -> Tensor:
        h = m.a(x)
        return m.c(F.gelu(h[:, :2]) * h[:, 2:])

    return Net(forward, a=lin(2, 4, bias=False), c=lin(2, 1, bias=False)), (X,)


def outer() -> Sample:
    def forward(m: Net, x: Tensor) -> Tensor:
        h = F.gelu(m.a(x))
        return m.c((h[:, :, None] * h[:, None].tanh()).flatten(1))

    return Net(forward, a=lin(2, 2, bias=False), c=lin(4, 1, bias=False)), (X,)


def attention(kv: int = 2) -> Sample:
    """Two heads of two."""

    def forward(m: Net, x: Tensor) -> Tensor:
        q = m.q(x).view(2, 3, 2, 2).transpose(1, 2)
        k, v = (p(x).view(2, 3, kv, 2).transpose(1, 2) for p in (m.k, m.v))
        weights = (q @ k.transpose(-1, -2)).softmax(-1)
        return m.o((weights @ v).transpose(1, 2).reshape(2, 3, 4))

    def no_bias(a: int, b: int) -> nn.Module:
        return lin(a, b, bias=False)

    x = torch.randn(2, 3, 2, generator=torch.Generator().manual_seed(1))
    return Net(forward, q=no_bias(2, 4), k=no_bias(2, 2 * kv), v=no_bias(2, 2 * kv), o=no_bias(4, 1)), (x,)


def experts() -> Sample:
    def forward(m: Net, x: Tensor) -> Tensor:
        hidden = F.gelu(torch.einsum("nd,ehd->neh", x, m.w))
        return torch.einsum("ne,neh,eh->n", m.g(x).softmax(-1), hidden, m.v)

    return Net(forward, g=lin(2, 2, bias=False), w=par(2, 3, 2), v=par(2, 3)), (X,)


def elman() -> Sample:
    def forward(m: Net, x: Tensor) -> Tensor:
        return m.o(m.r(x)[0])

    x = torch.randn(2, 3, 2, generator=torch.Generator().manual_seed(1))
    return Net(forward, r=nn.RNN(2, 3, batch_first=True, bias=False), o=lin(3, 1, bias=False)), (x,)


ROWS = {"q.weight": [0], "k.weight": [0], "v.weight": [0], "o.weight": [1]}
CASES: dict[str, tuple[Callable[[], Sample], int, dict[str, Any] | None]] = {
    "mlp 2-3-1": (lambda: mlp([2, 3, 1]), 6, None),
    "mlp 2-3-1 tanh": (lambda: mlp([2, 3, 1], nn.Tanh), 6, None),
    "mlp 2-3-1 relu": (lambda: mlp([2, 3, 1], nn.ReLU), 6, None),
    "mlp 2-2-2-2": (lambda: mlp([2, 2, 2, 2]), 4, None),
    "mlp 1-3-3-1 no bias": (lambda: mlp([1, 3, 3, 1], bias=False), 36, None),
    "mlp 2-4-1 no bias": (lambda: mlp([2, 4, 1], bias=False), 24, None),
    "mlp 1-2-3-2-1 no bias": (lambda: mlp([1, 2, 3, 2, 1], bias=False), 24, None),
    "residual": (residual, 6, None),
    "concat": (concatenated, 4, None),
    "concat of one": (concatenated_twice, 2, None),
    "tied": (tied, 24, None),
    "shared": (shared, 6, None),
    "grouped": (grouped, 2 * 2 * 2, {"0.weight": [0], "2.weight": [0, (1, 0)], "4.weight": [1]}),
    "gated": (gated, 6, None),
    "interleaved": (interleaved, 4, None),
    "group norm": (normed, 8, {"a.weight": [0], "n.weight": [0], "n.bias": [0], "c.weight": [1]}),
    "batch norm": (
        batch_normed,
        6,
        {"0.weight": [0], "1.weight": [0], "1.bias": [0], "1.running_mean": [0], "1.running_var": [0], "3.weight": [1]},
    ),
    "sliced": (sliced, 2, None),
    "outer": (outer, 2, None),
    "attention": (attention, 2 * 4 * 4, ROWS),
    "multi-query": (lambda: attention(1), 2 * 2 * 2, ROWS),
    "experts": (experts, 2 * 36, {"g.weight": [0], "w": [0, (1, 0)], "v": [0, (1, 0)]}),
    "recurrent": (elman, 6, None),
}


@functools.cache
def inferred(name: str) -> tuple[nn.Module, tuple[Any, ...], Symmetry]:
    torch.manual_seed(0)
    return infer(*CASES[name][0]())


@pytest.mark.parametrize("name", CASES)
def test_group_is_all_that_preserves_the_function(name: str) -> None:
    _, order, axes = CASES[name]
    model, args, sym = inferred(name)
    preserving = preserving_states(model, args, axes)
    assert preserving == images(model, sym)
    assert len(preserving) == order
    assert sym.log_order == pytest.approx(math.log(order))


@pytest.mark.parametrize("name", CASES)
def test_what_is_fixed_cannot_move_and_what_moves_matters(name: str) -> None:
    model, args, sym = inferred(name)
    inputs = [args, tuple(torch.randn_like(x) for x in args)]
    assert loose_fixed_axes(model, inputs, sym) == []
    assert loose_members(model, inputs, sym) == []
