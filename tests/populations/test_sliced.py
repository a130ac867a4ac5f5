"""Sliced Wasserstein distances against scipy, closed forms, and the symmetry they must not see."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from hypothesis import given as for_all, settings, strategies as st
from scipy.optimize import linear_sum_assignment
from torch import Tensor

import coset
from coset import zoo
from coset.core import state as states
from coset.core.errors import CosetError, StateError
from coset.populations.sliced_wasserstein import sliced_wasserstein, squared_distances

MODELS = {"relu": "mlp:2-4-1", "tanh": "mlp:2-4-1,activation=tanh"}


@functools.cache
def symmetry(name: str) -> coset.Symmetry:
    return coset.symmetry(zoo.build(MODELS[name]), (torch.zeros(2, 2),), verify=False)


def networks(name: str, n: int, seed: int) -> tuple[coset.Symmetry, dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    like = states.of(zoo.build(MODELS[name]))
    return symmetry(name), {k: torch.randn(n, *v.shape, generator=generator) for k, v in like.items()}


@for_all(st.integers(1, 7), st.integers(1, 7), st.integers(0, 1000))
@settings(deadline=None, derandomize=True, max_examples=40)
def test_numbers_on_a_line_by_assignment(n: int, m: int, seed: int) -> None:
    """Each number as often as makes both as many; then the best assignment."""
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(size, 2, generator=generator, dtype=torch.float64) for size in (n, m))
    result = squared_distances(x, y)
    for k in range(2):
        cost = (x[:, k].repeat_interleave(m)[:, None] - y[:, k].repeat_interleave(n)[None]).square()
        rows, columns = linear_sum_assignment(cost.numpy())
        assert float(result[k]) == pytest.approx(float(cost[rows, columns].mean()), abs=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_equivalent_networks_are_no_distance_apart(name: str) -> None:
    sym, own = networks(name, 20, 0)
    generator = torch.Generator().manual_seed(1)
    image = sym.act(sym.random(generator, batch=20, scalings=True), own)
    assert sliced_wasserstein(image, own, sym).distance < 1e-5
    _, others = networks(name, 30, 2)
    before, after = (sliced_wasserstein(others, one, sym, {k: x[0] for k, x in own.items()}) for one in (own, image))
    assert after.distance == pytest.approx(before.distance, rel=1e-5) and before.distance > 0.05


def test_a_shift_and_the_reference() -> None:
    """All biases of the output moved by s: E_u (s u_i)^2 = s^2 / D, for any reference."""
    sym, own = networks("relu", 50, 0)
    image = own | {"layers.1.bias": own["layers.1.bias"] + 3}
    size = sum(x[0].numel() for x in own.values())
    for reference in (None, {k: x[7] for k, x in own.items()}):
        result = sliced_wasserstein(image, own, sym, reference, 2000)
        assert abs(result.distance - 3 / math.sqrt(size)) < 4 * result.error < 0.1
        assert result.projections == 2000


def test_more_networks_of_one_distribution_come_closer() -> None:
    few, many = (
        sliced_wasserstein(networks("tanh", n, 1)[1], networks("tanh", n, 2)[1], symmetry("tanh")).distance
        for n in (20, 500)
    )
    assert many < few / 2


def test_what_cannot_be_compared() -> None:
    sym, own = networks("relu", 3, 0)
    with pytest.raises(StateError, match="a network or more"):
        sliced_wasserstein({k: x[:0] for k, x in own.items()}, own, sym)
    with pytest.raises(CosetError, match="by 0 projections"):
        sliced_wasserstein(own, own, sym, projections=0)
    with pytest.raises(StateError, match=r"layers\.0\.bias"):
        sliced_wasserstein(own | {"layers.0.bias": torch.zeros(3, 5)}, own, sym)
