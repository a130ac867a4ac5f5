"""Every variant of the kernel, and scipy without one, give the same answers."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from lap_cases import FAMILIES, check

from coset.assignment import build, lap, solve, solve_many
from coset.core.errors import AssignmentError

SHAPES = [(1, 1), (9, 9), (40, 60), (60, 40), (150, 150)]


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As where no compiler was at hand."""
    monkeypatch.delenv("COSET_KERNEL", raising=False)
    monkeypatch.setattr(build, "LIBRARY", "absent.so")
    lap._library.cache_clear()
    yield
    lap._library.cache_clear()


def use(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COSET_KERNEL", name)
    try:
        lap.kernel()
    except AssignmentError as error:
        if "only runs" not in str(error):
            raise
        pytest.skip(str(error))


@pytest.mark.parametrize("name", ["baseline", "avx2", "avx512", "scipy"])
@pytest.mark.parametrize("family", FAMILIES)
def test_all_kernels_are_exact(name: str, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use(name, monkeypatch)
    rng = np.random.default_rng(0)
    for n, m in SHAPES:
        for dtype in (np.float32, np.float64):
            cost = FAMILIES[family](rng, n, m).astype(dtype)
            best = solve(cost)
            check(best, cost)
            check(solve(cost, False, warm=best.duals), cost, False)


@pytest.mark.parametrize("name", ["avx2", "avx512"])
def test_variants_agree_to_the_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    costs = [FAMILIES[family](rng, 150, 150).astype(np.float32) for family in FAMILIES]
    use("baseline", monkeypatch)
    expected = solve_many(costs)
    use(name, monkeypatch)
    for one, two in zip(expected, solve_many(costs), strict=True):
        assert torch.equal(one.permutation, two.permutation)
        assert torch.equal(one.duals.columns, two.duals.columns) and one.gap == two.gap


def test_scipy_gives_the_same_permutation_where_it_is_unique(monkeypatch: pytest.MonkeyPatch) -> None:
    cost = np.random.default_rng(2).standard_normal((120, 120))
    best = solve(cost).permutation
    monkeypatch.setenv("COSET_KERNEL", "scipy")
    assert torch.equal(solve(cost).permutation, best)


def test_scipy_refuses_and_forbids_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COSET_KERNEL", "scipy")
    cost = np.zeros((3, 3), np.float32)
    cost[1, 2] = np.nan
    with pytest.raises(AssignmentError, match="row 1, column 2"):
        solve(cost)
    cost[1] = [-np.inf, 1, -np.inf]
    assert solve(cost).permutation[1] == 1 and solve(np.zeros((0, 2))).value == 0


def test_without_a_library_scipy_is_used_and_said_once(no_library: None, caplog: pytest.LogCaptureFixture) -> None:
    cost = np.random.default_rng(3).standard_normal((20, 20)).astype(np.float32)
    with caplog.at_level(logging.WARNING, logger="coset"):
        for _ in range(3):
            check(solve(cost), cost)
    assert [record.name for record in caplog.records] == ["coset"]
    assert "coset.assignment.build" in caplog.text and lap.kernel() == "scipy"


def test_a_kernel_that_is_not_there_is_refused(no_library: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COSET_KERNEL", "baseline")
    with pytest.raises(AssignmentError, match="no kernel is built"):
        solve(torch.zeros(2, 2))


def test_an_unknown_kernel_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COSET_KERNEL", "cuda")
    with pytest.raises(AssignmentError, match="'cuda'"):
        solve(torch.zeros(2, 2))


def test_loading_the_kernel_leaves_the_callers_arithmetic_alone() -> None:
    # A library linked with -ffast-math makes the processor flush small numbers to zero.
    code = "import coset.assignment as a; a.solve([[1.0]]); assert 5e-324 * 1.0 > 0 and 1e-308 / 10 > 0"
    subprocess.run([sys.executable, "-c", code], check=True)
