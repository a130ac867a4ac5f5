"""`Manifold.state` by networks that are not canonical: permuted, flipped, scaled, with more than coordinates."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import coset
from coset import Symmetry
from coset.core import state as states


class Signed(nn.Module):
    """Units of one weight, whose sign no coordinate has."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(1, 6, bias=False), nn.Linear(6, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.b(self.a(x).relu()).tanh())


class Masked(nn.Module):
    """Units that are pruned, and units that have a whole number."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 6), nn.Linear(6, 5), nn.Linear(5, 2)
        self.gain = nn.Parameter(torch.tensor(0.7))
        self.register_buffer("mask", torch.rand(6, 3) > 0.4)
        self.register_buffer("steps", torch.arange(5) - 2)

    def forward(self, x: Tensor) -> Tensor:
        h = nn.functional.linear(x, self.a.weight * self.mask, self.a.bias).relu()
        return self.gain * self.c((self.b(h) * self.steps).relu())


@functools.cache
def network(name: str) -> tuple[nn.Module, Tensor, Symmetry]:
    torch.manual_seed(0)
    model: nn.Module = Signed() if name == "signed" else Masked()
    model, x = model.double().eval(), torch.randn(7, 1 if name == "signed" else 3, dtype=torch.float64)
    return model, x, coset.symmetry(model, x, verify=False)


def elements(sym: Symmetry) -> dict[str, Any]:
    g = sym.random(torch.Generator().manual_seed(1), scalings=True)
    return {
        "as it is": sym.identity(),
        "permuted": sym.element(g.permutations),
        "flipped and scaled": sym.element(scales=g.scales),
        "all": g,
    }


@pytest.mark.parametrize("name", ["signed", "masked"])
@pytest.mark.parametrize("polar", [False, True])
def test_like_need_not_be_canonical(name: str, polar: bool) -> None:
    model, x, sym = network(name)
    a = dict(model.state_dict())
    reference = sym.act(sym.random(torch.Generator().manual_seed(5)), a)
    expected = model(x).detach()
    m = coset.manifold(sym, a, polar=polar)
    for canonical in (coset.canonicalize(a, sym).state, coset.canonicalize(a, sym, reference).state):
        point = m.coordinates(canonical)
        for what, g in elements(sym).items():
            image = sym.act(g, a)
            state = m.state(point, like=image)
            assert states.allclose(state, canonical, atol=1e-12), what
            assert torch.allclose(states.call(model, state, x), expected, rtol=1e-9), what
            # One for all points, and one for each.
            pair = m.state(torch.stack([point, point]), like=image)
            other = m.state(torch.stack([point, point]), like=states.stack([image, a]))
            for one in (*states.unstack(pair), *states.unstack(other)):
                assert torch.allclose(states.call(model, one, x), expected, rtol=1e-9), what


def test_tensors_without_axes() -> None:
    model, _, sym = network("masked")
    a = dict(model.state_dict())
    canonical = coset.canonicalize(a, sym).state
    for m in (coset.manifold(sym, a), coset.manifold(sym)):
        state = m.state(m.coordinates(canonical), like=a)
        assert state["gain"].shape == () and torch.equal(state["gain"], canonical["gain"])
