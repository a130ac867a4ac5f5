"""The auction in torch gives prices close to optimal, on any device."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from lap_cases import FAMILIES, check

from coset.assignment import auction, solve
from coset.assignment.lap import start_from


@pytest.mark.parametrize("maximize", [True, False])
@pytest.mark.parametrize("family", ["uniform", "gauss", "low rank", "near the identity", "far from zero"])
def test_prices_bound_the_value_closely(family: str, maximize: bool) -> None:
    cost = torch.from_numpy(FAMILIES[family](np.random.default_rng(0), 120, 120).astype(np.float32))
    v = auction.prices(cost, maximize)
    best = solve(cost, maximize)
    u = (cost - v).amax(dim=1) if maximize else (cost - v).amin(dim=1)
    excess = float(u.sum() + v.sum() - best.value) * (1 if maximize else -1)
    assert 0 <= excess <= 0.02 * 120 * float(cost.std())
    check(solve(cost, maximize, warm=start_from(v)), cost.numpy(), maximize)


@pytest.mark.parametrize("family", ["constant", "ties", "equal rows", "huge", "tiny"])
def test_hard_for_auctions(family: str) -> None:
    cost = torch.from_numpy(FAMILIES[family](np.random.default_rng(1), 60, 60).astype(np.float32))
    check(solve(cost, warm=start_from(auction.prices(cost, True))), cost.numpy())


def test_the_exact_solver_starts_from_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auction, "worthwhile", lambda cost: True)
    cost = torch.randn(80, 80)
    check(solve(cost), cost.numpy())
    cost[3, 4] = float("nan")
    with pytest.raises(Exception, match="row 3, column 4"):
        solve(cost)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("n", [100, auction.LARGE])
def test_cuda(n: int) -> None:
    cost = torch.randn(n, n, device="cuda")
    best = solve(cost)
    assert best.permutation.device.type == "cuda" and best.duals.columns.device.type == "cpu"
    assert best.value == pytest.approx(solve(cost.cpu()).value, rel=1e-12)
