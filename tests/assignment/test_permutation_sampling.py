import math
from itertools import permutations

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from coset.assignment.permanent import log_permanent
from coset.assignment.permutation_sampling import log_proposal, sample_permutations
from coset.core.errors import CosetError

laws = settings(max_examples=25, deadline=None)
seeds = st.integers(0, 2**31)
sizes = st.integers(1, 5)
spreads = st.sampled_from([0.0, 1.0, 10.0, 1e4])
shares = st.sampled_from([0.0, 0.3, 0.7, 1.0])


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=seeded(seed), dtype=torch.float64)


def with_zeros(n: int, spread: float, share: float, seed: int) -> Tensor:
    return (spread * randn(2, n, n, seed=seed)).masked_fill(
        torch.rand(2, n, n, generator=seeded(seed + 1)) < share, -math.inf
    )


def every(logs: Tensor) -> Tensor:
    """All permutations for each matrix, [..., n!, n]."""
    n = logs.shape[-1]
    return torch.tensor(list(permutations(range(n)))).expand(*logs.shape[:-2], -1, -1)


def worth(logs: Tensor, permutations: Tensor) -> Tensor:
    """sum_i logs[i, p(i)], [..., k]."""
    return logs.unsqueeze(-3).expand(*permutations.shape, -1).gather(-1, permutations.unsqueeze(-1)).squeeze(-1).sum(-1)


def densities(n: int, apart: float, samples: int) -> Tensor:
    means = apart * randn(n, 4)
    return (-0.5 * (means + randn(samples, n, 4, seed=1))[:, :, None].sub(means).square()).sum(-1)


@laws
@given(seeds, sizes, spreads, shares)
def test_the_probabilities_of_all_permutations_sum_to_one(seed: int, n: int, spread: float, share: float) -> None:
    logs = with_zeros(n, spread, share, seed)
    log_f = log_proposal(logs, every(logs))
    assert torch.allclose(log_f.logsumexp(-1), torch.zeros(2, dtype=torch.float64), atol=1e-10)


@laws
@given(seeds, sizes, spreads, shares)
def test_the_mean_weight_is_the_permanent(seed: int, n: int, spread: float, share: float) -> None:
    logs = with_zeros(n, spread, share, seed)
    log_f = log_proposal(logs, every(logs))
    mean = (log_f + (worth(logs, every(logs)) - log_f)).logsumexp(-1)
    assert torch.allclose(mean, log_permanent(logs), rtol=1e-10, atol=1e-10)


def step_by_step(logs: Tensor, columns: tuple[int, ...]) -> float:
    """log f(p) as the docstring has it, by loops."""
    plan = logs.exp()
    for _ in range(500):
        plan = plan / plan.sum(0)
        plan = plan / plan.sum(1, keepdim=True)
    order = (-torch.xlogy(plan, plan)).sum(1).argsort().tolist()
    left, log_f = set(range(len(plan))), 0.0
    for place, i in enumerate(order[:-1]):
        odds = {j: float(plan[i, j] / sum(plan[later, j] for later in order[place + 1 :])) for j in left}
        log_f += math.log(odds[columns[i]] / sum(odds.values()))
        left.remove(columns[i])
    return log_f


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_it_is_the_proposal_described(n: int) -> None:
    logs = randn(n, n, seed=n)
    expected = torch.tensor([step_by_step(logs, p) for p in permutations(range(n))], dtype=torch.float64)
    assert torch.allclose(log_proposal(logs, every(logs)), expected, atol=1e-3)


def test_draws_are_as_frequent_as_they_are_probable() -> None:
    logs, count = randn(2, 4, 4), 20000
    sample = sample_permutations(logs, count, seeded())
    index = {p: k for k, p in enumerate(permutations(range(4)))}
    for one, f in zip(sample.permutations, log_proposal(logs, every(logs)).exp(), strict=True):
        counts = torch.bincount(torch.tensor([index[tuple(p)] for p in one.tolist()]), minlength=24)
        # Chi-squared with 23 degrees of freedom: one in a thousand is above 50.
        assert ((counts - count * f).square() / (count * f)).sum() < 50


@pytest.mark.parametrize("n", [1, 4, 6])
def test_monte_carlo_finds_the_permanent(n: int) -> None:
    logs = randn(3, n, n)
    sample = sample_permutations(logs, 4000, seeded())
    mean = (worth(logs, sample.permutations) - sample.log_f).logsumexp(-1) - math.log(4000)
    assert torch.allclose(mean, log_permanent(logs), atol=0.02)


@laws
@given(seeds, st.integers(1, 12), spreads, shares)
def test_draws_are_permutations_with_the_probability_they_say(seed: int, n: int, spread: float, share: float) -> None:
    logs = with_zeros(n, spread, share, seed)
    sample = sample_permutations(logs, 7, seeded(seed))
    assert sample.permutations.dtype == torch.int64
    assert torch.equal(sample.permutations.sort(-1).values, torch.arange(n).expand(2, 7, n))
    assert torch.allclose(sample.log_f, log_proposal(logs, sample.permutations), atol=1e-12)


def test_the_weights_of_overlapping_units_are_nearly_equal() -> None:
    # By A alone, in the order of the rows, the variances are 0.8, 15 and 6.
    for n, apart, most in ((12, 0.3, 0.05), (12, 1.0, 0.8), (40, 0.5, 0.2)):
        logs = densities(n, apart, 10)
        sample = sample_permutations(logs, 200, seeded())
        assert (worth(logs, sample.permutations) - sample.log_f).var(-1).mean() < most


def test_units_far_apart_are_drawn_in_their_places() -> None:
    order = torch.randperm(20, generator=seeded())
    logs = torch.full((20, 20), -1e4)
    logs[torch.arange(20), order] = 0
    sample = sample_permutations(logs, 5, seeded())
    assert torch.equal(sample.permutations, order.expand(5, 20))
    assert torch.equal(sample.log_f, torch.zeros(5))


def test_forbidden_pairs_are_not_drawn_where_there_is_a_choice() -> None:
    logs = torch.zeros(8, 8, dtype=torch.float64).masked_fill(torch.ones(8, 8).triu(2) > 0, -math.inf)
    sample = sample_permutations(logs, 500, seeded())
    weights = worth(logs, sample.permutations) - sample.log_f
    assert weights.isfinite().all()
    assert float(weights.logsumexp(0)) - math.log(500) == pytest.approx(7 * math.log(2), abs=0.05)


def test_a_seed_fixes_the_draws() -> None:
    logs = randn(2, 6, 6)
    first, same, other = (sample_permutations(logs, 20, seeded(seed)).permutations for seed in (1, 1, 2))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("shape", [(5, 5), (3, 5, 5), (2, 3, 5, 5), (0, 0), (2, 0, 0), (0, 4, 4)])
def test_shapes(shape: tuple[int, ...]) -> None:
    logs = torch.zeros(shape)
    sample = sample_permutations(logs, 4, seeded())
    assert sample.permutations.shape == (*shape[:-2], 4, shape[-1])
    assert sample.log_f.shape == log_proposal(logs, sample.permutations).shape == (*shape[:-2], 4)


def test_a_batch_is_a_loop() -> None:
    logs = randn(2, 3, 5, 5) * torch.tensor([0.1, 1.0, 50.0], dtype=torch.float64)[:, None, None]
    whole = log_proposal(logs, every(logs))
    for i in range(2):
        for j in range(3):
            assert torch.allclose(whole[i, j], log_proposal(logs[i, j], every(logs[i, j])), atol=1e-10)


def test_float32_is_kept_and_no_gradient_flows() -> None:
    logs = randn(6, 6).float().requires_grad_()
    sample = sample_permutations(logs, 3, seeded())
    assert sample.log_f.dtype == torch.float32
    assert not sample.log_f.requires_grad
    assert torch.equal(sample.log_f, log_proposal(logs.double(), sample.permutations).float())


@pytest.mark.parametrize(
    ("permutations", "message"),
    [
        (torch.zeros(4, 3, dtype=torch.int64), "has a row that is not one, each must hold 0 to 2 once"),
        (torch.arange(3.0)[None], "in int64"),
        (torch.arange(3), r"shape \(3,\), but for log_a of shape \(3, 3\)"),
        (torch.arange(4)[None], r"shape \(1, 4\)"),
        (torch.arange(3).expand(2, 1, 3), r"shape \(2, 1, 3\)"),
    ],
)
def test_what_is_not_permutations_is_refused(permutations: Tensor, message: str) -> None:
    with pytest.raises(CosetError, match=message):
        log_proposal(torch.zeros(3, 3), permutations)


def test_bad_calls_are_refused() -> None:
    with pytest.raises(CosetError, match="There are 0 permutations to draw"):
        sample_permutations(torch.zeros(2, 2), 0)
    with pytest.raises(CosetError, match=r"log_a has shape \(2, 3\)"):
        sample_permutations(torch.zeros(2, 3), 1)
    with pytest.raises(CosetError, match=r"log_a is nan at \[0, 0\]"):
        log_proposal(torch.full((2, 2), math.nan), torch.arange(2)[None])
