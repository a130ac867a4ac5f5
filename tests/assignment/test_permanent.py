import math
from itertools import permutations

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from coset.assignment.permanent import LARGEST, level, log_permanent, scale
from coset.core.errors import CosetError

laws = settings(max_examples=25, deadline=None)
seeds = st.integers(0, 2**31)
sizes = st.integers(1, 6)
spreads = st.sampled_from([0.1, 1.0, 10.0, 1e3])
shares = st.sampled_from([0.0, 0.3, 0.7])


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def shuffle(n: int, seed: int) -> Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


def with_zeros(n: int, spread: float, share: float, seed: int) -> Tensor:
    forbidden = torch.rand(n, n, generator=torch.Generator().manual_seed(seed + 1)) < share
    return (spread * randn(n, n, seed=seed)).masked_fill(forbidden, -math.inf)


def brute(logs: Tensor) -> Tensor:
    n = logs.shape[-1]
    return torch.stack([logs[..., range(n), p].sum(-1) for p in permutations(range(n))], -1).logsumexp(-1)


@laws
@given(seeds, sizes, spreads, shares)
def test_it_is_the_sum_over_all_permutations(seed: int, n: int, spread: float, share: float) -> None:
    logs = with_zeros(n, spread, share, seed)
    assert torch.allclose(log_permanent(logs), brute(logs), rtol=1e-12, atol=1e-12)


@laws
@given(seeds, sizes, spreads)
def test_the_gradient_is_the_share_of_permutations_through_each_entry(seed: int, n: int, spread: float) -> None:
    logs = (spread * randn(n, n, seed=seed)).requires_grad_()
    marginals = torch.autograd.grad(log_permanent(logs), logs)[0]
    exact = torch.autograd.grad(brute(logs), logs)[0]
    assert torch.allclose(marginals, exact, atol=1e-9)


@pytest.mark.parametrize("n", [*range(1, 13), LARGEST])
def test_all_ones(n: int) -> None:
    assert log_permanent(torch.zeros(n, n, dtype=torch.float64)).item() == pytest.approx(math.lgamma(n + 1), rel=1e-13)


def test_derangements() -> None:
    counts = [0, 1, 2, 9, 44, 265, 1854, 14833, 133496, 1334961]
    for n, count in enumerate(counts, start=1):
        logs = torch.zeros(n, n, dtype=torch.float64).fill_diagonal_(-math.inf)
        assert math.exp(log_permanent(logs)) == pytest.approx(count, rel=1e-12)


def test_permutation_matrices() -> None:
    logs = torch.stack([torch.eye(7)[shuffle(7, seed)].log() for seed in range(5)])
    assert torch.equal(log_permanent(logs), torch.zeros(5))


def test_blocks_multiply() -> None:
    logs = torch.full((9, 9), -math.inf, dtype=torch.float64)
    logs[:4, :4], logs[4:, 4:] = randn(4, 4), randn(5, 5, seed=1)
    assert torch.allclose(log_permanent(logs), log_permanent(logs[:4, :4]) + log_permanent(logs[4:, 4:]))


@laws
@given(seeds, st.integers(1, 9), st.sampled_from([1.0, 1e3]))
def test_scaling_and_permuting_rows_and_columns(seed: int, n: int, size: float) -> None:
    logs, rows, columns = randn(n, n, seed=seed), size * randn(n, 1, seed=seed + 1), size * randn(n, seed=seed + 2)
    value = log_permanent(logs)
    assert torch.allclose(log_permanent(logs + rows + columns), value + rows.sum() + columns.sum(), rtol=1e-12)
    assert torch.allclose(log_permanent(logs[shuffle(n, seed)][:, shuffle(n, seed + 1)]), value, rtol=1e-12)
    assert torch.allclose(log_permanent(logs.T), value, rtol=1e-12)


def test_the_gradients_of_first_and_second_order() -> None:
    logs = randn(2, 3, 3).requires_grad_()
    assert torch.autograd.gradcheck(log_permanent, logs)
    assert torch.autograd.gradgradcheck(log_permanent, logs)


def test_nothing_cancels() -> None:
    # Ryser's terms are of the size of the product of the row sums, 1e10 times the permanent here.
    n, small = 10, math.log(1e-11)
    logs = torch.full((n, n), small, dtype=torch.float64)
    logs[:, 0] = 0
    exact = math.lgamma(n + 1) + (n - 1) * small
    assert log_permanent(logs).item() == pytest.approx(exact, rel=1e-14)


def test_ranges_beyond_float64() -> None:
    logs = -1e4 * torch.rand(3, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    logs.requires_grad_()
    assert torch.allclose(log_permanent(logs), brute(logs), rtol=1e-14)
    gradient = torch.autograd.grad(log_permanent(logs).sum(), logs)[0]
    assert torch.allclose(gradient.sum(-1), torch.ones(3, 6, dtype=torch.float64))


def test_a_permanent_of_zero_has_no_gradient_and_spoils_no_other() -> None:
    logs = randn(3, 4, 4)
    logs[1, :2, 1:] = -math.inf
    logs[2, 0, 0] = -math.inf
    logs.requires_grad_()
    value = log_permanent(logs)
    gradient = torch.autograd.grad(value.sum(), logs)[0]
    assert value.isneginf().tolist() == [False, True, False]
    assert torch.equal(gradient[1], torch.zeros(4, 4, dtype=torch.float64))
    assert torch.allclose(gradient[[0, 2]].sum(-1), torch.ones(2, 4, dtype=torch.float64))
    assert gradient[2, 0, 0] == 0
    assert log_permanent(torch.full((5, 5), -math.inf)) == -math.inf


@laws
@given(seeds, st.integers(1, 6), spreads, shares)
def test_scaled_entries_are_at_most_one_and_a_permutation_of_them_is_one(
    seed: int, n: int, spread: float, share: float
) -> None:
    logs = with_zeros(n, spread, share, seed)
    scaled, factor, possible = scale(logs)
    assert possible == (brute(logs) > -math.inf)
    assert scaled.max() <= 1e-11 * spread
    if possible:
        best = max(float(logs[range(n), p].sum()) for p in permutations(range(n)))
        assert float(factor) == pytest.approx(best, abs=1e-10 * spread)


@laws
@given(seeds, sizes, spreads, shares)
def test_leveled_rows_and_columns_have_a_largest_entry_of_one(seed: int, n: int, spread: float, share: float) -> None:
    logs = with_zeros(n, spread, share, seed)
    scaled = level(logs)
    assert torch.equal(scaled.isneginf(), logs.isneginf())
    for dim in (0, 1):
        top = scaled.amax(dim)
        assert ((top == 0) | logs.isneginf().all(dim)).all()


def test_a_batch_is_a_loop() -> None:
    logs = randn(2, 3, 5, 5) * torch.tensor([0.1, 1.0, 50.0], dtype=torch.float64)[:, None, None]
    value = log_permanent(logs)
    assert value.shape == (2, 3)
    assert torch.allclose(value, torch.stack([torch.stack([log_permanent(x) for x in row]) for row in logs]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_other_dtypes_are_kept(dtype: torch.dtype) -> None:
    logs = randn(6, 6).to(dtype).requires_grad_()
    value = log_permanent(logs)
    value.backward()
    assert value.dtype == dtype
    assert logs.grad is not None
    assert logs.grad.dtype == dtype
    assert torch.equal(value, brute(logs.double()).to(dtype))


@pytest.mark.parametrize("shape", [(0, 0), (3, 0, 0), (0, 4, 4)])
def test_the_permanent_of_nothing_is_one(shape: tuple[int, ...]) -> None:
    logs = torch.empty(shape, requires_grad=True)
    value = log_permanent(logs)
    assert torch.equal(value, torch.zeros(shape[:-2]))
    value.sum().backward()
    assert logs.grad is not None
    assert logs.grad.shape == shape


def test_one_entry() -> None:
    assert log_permanent(torch.tensor([[5.0]])) == 5
    assert log_permanent(torch.tensor([[-math.inf]])) == -math.inf


@pytest.mark.parametrize(
    ("logs", "message"),
    [
        (torch.zeros(2, 3), r"log_a has shape \(2, 3\)"),
        (torch.zeros(3), r"log_a has shape \(3,\)"),
        (torch.zeros(2, 2, dtype=torch.int64), "log_a is of type torch.int64"),
        (torch.tensor([[1.0, 0.0], [math.nan, 0.0]]), r"log_a is nan at \[1, 0\]"),
        (torch.tensor([[[0.0]], [[math.inf]]]), r"log_a is inf at \[1, 0, 0\]"),
        (torch.zeros(LARGEST + 1, LARGEST + 1), "n is 17, use log_bethe above 16"),
    ],
)
def test_bad_logs_are_refused(logs: Tensor, message: str) -> None:
    with pytest.raises(CosetError, match=message):
        log_permanent(logs)
