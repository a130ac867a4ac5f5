"""Step sizes and masses that are adapted."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from coset.inference.hmc import DualAveraging, WarmUp, windows


def test_windows_are_stans() -> None:
    assert windows(1000) == [(75, 100), (100, 150), (150, 250), (250, 450), (450, 950)]
    assert windows(150) == [(75, 100)]
    assert windows(100) == [(15, 90)] and windows(19) == []


@given(st.integers(20, 5000))
def test_windows_follow_one_another(trajectories: int) -> None:
    found = windows(trajectories)
    assert all(a[1] == b[0] for a, b in pairwise(found))
    assert all(end - begin >= 10 for begin, end in found)
    assert found[0][0] > 0 and found[-1][1] < trajectories


def test_dual_averaging_is_the_papers() -> None:
    """Algorithm 5 of Hoffman & Gelman 2014, in a loop of numbers."""
    acceptance = torch.rand(30, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = DualAveraging(torch.tensor([0.1, 2.0]).double(), 0.7)
    for a in acceptance:
        found.update(a)
    for row, first in enumerate((0.1, 2.0)):
        h, average, mu = 0.0, 0.0, math.log(10 * first)
        for m, a in enumerate(acceptance[:, row].tolist(), 1):
            h = (1 - 1 / (m + 10)) * h + (0.7 - a) / (m + 10)
            log_step = mu - math.sqrt(m) / 0.05 * h
            average = m**-0.75 * log_step + (1 - m**-0.75) * average
        assert found.step[row].item() == pytest.approx(math.exp(log_step), rel=1e-5)
        assert found.average[row].item() == pytest.approx(math.exp(average), rel=1e-5)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e3])
def test_steps_settle_where_the_target_is(scale: float) -> None:
    found = DualAveraging(torch.tensor([0.01]).double(), 0.8)
    for _ in range(300):
        found.update(torch.exp(-found.step / scale))
    assert found.average.item() == pytest.approx(-math.log(0.8) * scale, rel=0.1)


def test_variances_are_those_of_a_window() -> None:
    x = torch.randn(40, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 5 + 100
    adapted = WarmUp(x[0], 0.8, [(4, 14), (14, 34)], 40)
    steps = []
    for done, weights in enumerate(x, 1):
        adapted.update(done, weights, torch.tensor([0.5, 0.9]).double())
        steps.append(adapted.step.clone())
    expected = (20 * np.var(x[14:34].numpy(), 0, ddof=1) + 5e-3) / 25
    assert np.allclose(adapted.variance.numpy(), expected)
    assert steps[-1][0] < steps[-1][1]
    settled = adapted.step.clone(), adapted.variance.clone()
    adapted.update(41, x[0], torch.ones(2).double())
    assert torch.equal(adapted.step, settled[0]) and torch.equal(adapted.variance, settled[1])
