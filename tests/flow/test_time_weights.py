"""What errors count at each time."""

import pytest
import torch

from coset.flow.time_weights import INTERVALS, TimeWeights


def test_errors_of_all_times_come_to_count_one() -> None:
    generator = torch.Generator().manual_seed(0)
    levels = TimeWeights(torch.device("cpu"))
    for _ in range(300):
        time = torch.rand(64, generator=generator)
        errors = (1 + 50 * (time < 1 / INTERVALS)) * (0.5 + torch.rand(64, generator=generator))
        weights = levels(time, errors)
    early = time < 1 / INTERVALS
    assert weights[~early].tolist() == pytest.approx([1.0] * int((~early).sum()), rel=0.2)
    time = torch.tensor([0.0, 0.5, 1.0])
    assert levels(time, torch.tensor([51.0, 1.0, 1.0])).tolist() == pytest.approx([1 / 51, 1.0, 1.0], rel=0.2)


def test_the_first_errors_are_their_own_measure() -> None:
    levels = TimeWeights(torch.device("cpu"))
    assert levels(torch.tensor([0.1, 0.9]), torch.tensor([4.0, 0.25])).tolist() == [0.25, 4.0]


def test_an_error_of_zero_has_a_finite_weight() -> None:
    levels = TimeWeights(torch.device("cpu"))
    assert bool(levels(torch.tensor([0.3]), torch.zeros(1)).isfinite().all())
