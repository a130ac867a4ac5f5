"""Alignment of weights far from one, of factors of whole tensors, and where there is a GPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import coset
from coset import Element, Symmetry
from coset.core import state as states


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def mlp() -> tuple[nn.Module, Symmetry]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2))
    return model, coset.symmetry(model, torch.randn(4, 3))


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("size", [1e20, 1e-30])
def test_weights_far_from_one(size: float, scale: bool) -> None:
    model, sym = mlp()
    a = {name: size * x for name, x in model.state_dict().items()}
    b = sym.act(sym.random(seeded(1)), a)
    match = coset.align(a, b, sym, scale=scale)
    back = sym.act(match.element, b)
    for name, x in a.items():
        torch.testing.assert_close(back[name] / size, x / size, rtol=1e-4, atol=0)
    assert match.objective == pytest.approx(sum(float(x.double().square().sum()) for x in a.values()), rel=1e-3)


class Quantised(nn.Module):
    """Codes of either sign and size: whole tensors have factors."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 6), nn.Linear(6, 2)
        self.codes, self.values = nn.Parameter(torch.randn(5, 6)), nn.Parameter(torch.randn(5, 6))

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.values[(self.a(x) @ self.codes.T).argmax(-1)])


class Scan(nn.Module):
    """A state space whose inputs and outputs share one factor for each state and input."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs, self.mix = nn.Linear(3, 5), nn.Linear(5, 1 + 2 * 4)
        self.rate, self.out = nn.Parameter(torch.randn(5, 4)), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        u = self.inputs(x)
        step, b, c = self.mix(u).split([1, 4, 4], -1)
        h = u.new_zeros(len(u), 5, 4)
        ys = []
        for t in range(x.shape[1]):
            h = torch.exp(-step[:, t, :, None].exp() * self.rate.exp()) * h + b[:, t, None] * u[:, t, :, None]
            ys.append((h * c[:, t, None]).sum(-1))
        return self.out(torch.stack(ys, 1))


class Styled(nn.Module):
    """A weight divided by its norm, as demodulated convolutions are."""

    def __init__(self) -> None:
        super().__init__()
        self.style, self.weight, self.b = nn.Linear(3, 6), nn.Parameter(torch.randn(5, 6)), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        w = self.weight * self.style(x)[:, None]
        w = w / w.square().sum((1, 2), keepdim=True).sqrt()
        return self.b(w.sum(-1).tanh())


def planted(sym: Symmetry, seed: int) -> Element:
    """A random element with positive factors, whole tensors' included, and no signs."""
    g = sym.random(seeded(seed), scalings=True)
    positive = {s.name for s in sym.scalings if s.kind == "scaling"}
    return sym.element(g.permutations, {name: c for name, c in g.scales.items() if name in positive})


@pytest.mark.parametrize("kind", [Quantised, Scan, Styled, "weight norm"])
def test_factors_of_whole_tensors_are_undone(kind: type[nn.Module] | str) -> None:
    torch.manual_seed(0)
    named = isinstance(kind, str)
    model = nn.Sequential(weight_norm(nn.Linear(3, 6), dim=None), nn.ReLU(), nn.Linear(6, 2)) if named else kind()
    sym = coset.symmetry(model, torch.randn(2, 3, 3) if kind is Scan else torch.randn(4, 3))
    whole = [s for s in sym.scalings if s.kind == "scaling" and s.in_both_modes and s.members[0].axis is None]
    assert whole or kind is Scan
    a = {name: x.double() for name, x in model.state_dict().items()}
    for seed in range(3):
        b = sym.act(planted(sym, seed), a)
        back = sym.act(coset.align(a, b, sym, scale=True).element, b)
        assert states.norm(states.sub(back, a)) < 1e-5 * states.norm(a)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("kind", [Quantised, None])
def test_factors_on_a_gpu(kind: type[nn.Module] | None) -> None:
    torch.manual_seed(0)
    model = kind() if kind else mlp()[0]
    sym = coset.symmetry(model, torch.randn(4, 3))
    a = {name: x.cuda() for name, x in model.state_dict().items()}
    b = sym.act(planted(sym, 1), a)
    back = sym.act(coset.align(a, b, sym, scale=True).element, b)
    assert all(x.is_cuda for x in back.values())
    assert states.norm(states.sub(back, a)) < 1e-3 * states.norm(a)
