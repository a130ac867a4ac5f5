"""A warm start changes how long it takes, never the answer."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from lap_cases import FAMILIES, check

from coset.assignment import Duals, solve

SHAPES = [(60, 60), (40, 70), (70, 40), (1, 1), (1, 5)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("maximize", [True, False])
def test_again_and_after_a_change(family: str, maximize: bool) -> None:
    rng = np.random.default_rng(0)
    for n, m in SHAPES:
        cost = FAMILIES[family](rng, n, m)
        first = solve(cost, maximize)
        again = solve(cost, maximize, warm=first.duals)
        check(again, cost, maximize)
        changed = cost + 0.1 * np.abs(cost).max() * rng.standard_normal((n, m))
        warm = solve(changed, maximize, warm=first.duals)
        check(warm, changed, maximize)
        assert math.isclose(
            warm.value, solve(changed, maximize).value, rel_tol=1e-9, abs_tol=1e-12 * np.abs(cost).max()
        )


def test_the_same_matching_is_kept_among_equals() -> None:
    cost = torch.ones(50, 50)
    duals = solve(cost).duals
    other = Duals(duals.rows, duals.columns, torch.randperm(50, generator=torch.Generator().manual_seed(1)))
    assert torch.equal(solve(cost, warm=other).permutation, other.permutation)


GARBAGE = {
    "random": lambda x: torch.randn_like(x),
    "large": lambda x: 900 * torch.randn_like(x),
    "far too large": lambda x: 1e200 * torch.randn_like(x),
    "near the limit": lambda x: 1e308 * torch.ones_like(x),
    "nan": lambda x: torch.full_like(x, math.nan),
    "infinite": lambda x: torch.full_like(x, -math.inf),
    "reversed": lambda x: x.flip(0),
    "negated": lambda x: -x,
}


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("shape", [(60, 60), (40, 70), (70, 40), (300, 300)])
@pytest.mark.parametrize("maximize", [True, False])
def test_garbage(garbage: str, shape: tuple[int, int], maximize: bool) -> None:
    torch.manual_seed(0)
    cost = torch.randn(shape)
    duals = solve(cost, maximize).duals
    for permutation in (duals.permutation, duals.permutation.flip(0), torch.full_like(duals.permutation, 10**12)):
        bad = Duals(GARBAGE[garbage](duals.rows), GARBAGE[garbage](duals.columns), permutation)
        check(solve(cost, maximize, warm=bad), cost.numpy(), maximize)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 50), st.integers(1, 50), st.sampled_from(list(FAMILIES)), st.integers(0, 10**6), st.booleans())
def test_duals_of_an_unrelated_problem(n: int, m: int, family: str, seed: int, maximize: bool) -> None:
    rng = np.random.default_rng(seed)
    duals = solve(FAMILIES["gauss"](rng, n, m)).duals
    cost = FAMILIES[family](rng, n, m)
    check(solve(cost, maximize, warm=duals), cost, maximize)


def test_the_duals_given_are_not_changed() -> None:
    cost = torch.randn(30, 30)
    duals = solve(cost).duals
    before = [x.clone() for x in (duals.rows, duals.columns, duals.permutation)]
    solve(torch.randn(30, 30), warm=duals)
    assert all(torch.equal(x, y) for x, y in zip(before, (duals.rows, duals.columns, duals.permutation), strict=True))


def test_a_layout_may_change_between_solves() -> None:
    cost = torch.randn(50, 50)
    duals = solve(cost).duals
    check(solve(cost.T.contiguous().T, warm=duals), cost.numpy())
