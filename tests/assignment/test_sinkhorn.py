import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from coset.assignment import solve
from coset.assignment.sinkhorn import _newton, sinkhorn
from coset.core.errors import CosetError

laws = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 2**31)
sizes = st.integers(1, 7)
temperatures = st.sampled_from([10.0, 1.0, 0.3, 0.03])


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def shuffle(n: int, seed: int) -> Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


def matrix_of(permutation: Tensor) -> Tensor:
    return torch.eye(len(permutation), dtype=torch.float64)[permutation]


def unrolled(scores: Tensor, temperature: float, sweeps: int) -> Tensor:
    logs = scores / temperature
    for _ in range(sweeps):
        logs = logs - logs.logsumexp(-1, keepdim=True)
        logs = logs - logs.logsumexp(-2, keepdim=True)
    return logs.exp()


def marginal_error(plan: Tensor) -> float:
    return max(float((plan.detach().sum(dim) - 1).abs().max()) for dim in (-1, -2))


@laws
@given(seeds, sizes, temperatures, st.sampled_from([1e-3, 1e-7, 1e-12]))
def test_rows_and_columns_sum_to_one_within_the_tolerance(seed: int, n: int, tau: float, tolerance: float) -> None:
    plan = sinkhorn(randn(3, n, n, seed=seed), tau, tolerance=tolerance)
    assert (plan >= 0).all()
    assert marginal_error(plan) <= tolerance + 1e-14


@laws
@given(seeds, sizes, temperatures)
def test_it_solves_the_optimality_conditions(seed: int, n: int, tau: float) -> None:
    scores = randn(n, n, seed=seed)
    potentials = tau * sinkhorn(scores, tau, tolerance=1e-12).log() - scores
    centred = potentials - potentials.mean(0) - potentials.mean(1, keepdim=True) + potentials.mean()
    assert centred.abs().max() < 1e-9


@laws
@given(seeds, sizes, temperatures)
def test_permuting_scores_permutes_the_plan(seed: int, n: int, tau: float) -> None:
    scores, p, q = randn(n, n, seed=seed), shuffle(n, seed), shuffle(n, seed + 1)
    plan, shuffled = sinkhorn(scores, tau, tolerance=1e-12), sinkhorn(scores[p][:, q], tau, tolerance=1e-12)
    assert torch.allclose(shuffled, plan[p][:, q], atol=1e-9)
    assert torch.allclose(sinkhorn(scores.T, tau, tolerance=1e-12), plan.T, atol=1e-9)


@laws
@given(seeds, sizes, temperatures, st.sampled_from([1.0, 1e3]))
def test_constants_added_to_rows_and_columns_change_nothing(seed: int, n: int, tau: float, size: float) -> None:
    scores, rows, columns = randn(n, n, seed=seed), size * randn(n, 1, seed=seed + 1), size * randn(n, seed=seed + 2)
    plan = sinkhorn(scores, tau, tolerance=1e-12)
    assert torch.allclose(sinkhorn(scores + rows + columns, tau, tolerance=1e-12), plan, atol=1e-8)


@laws
@given(seeds, sizes)
def test_temperature_zero_is_the_assignment_and_infinity_is_uniform(seed: int, n: int) -> None:
    scores = randn(n, n, seed=seed)
    best = matrix_of(solve(scores).permutation)
    assert torch.allclose(sinkhorn(scores, 1e-9), best, atol=1e-6)
    assert torch.allclose(sinkhorn(scores, 1e9), torch.full_like(scores, 1 / n), atol=1e-6)


def test_ties_share_the_plan_at_temperature_zero() -> None:
    scores = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    shared = torch.tensor([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
    assert torch.allclose(sinkhorn(scores, 1e-6), shared)


@pytest.mark.parametrize("kind", ["random", "product", "distance", "integers", "skewed"])
@pytest.mark.parametrize("tau", [1e-2, 1e-4, 1e-8, 1e-30])
def test_few_rounds_suffice_at_any_temperature(kind: str, tau: float) -> None:
    n = 40
    x, y = randn(n, 1, seed=1), randn(1, n, seed=2)
    scores = {
        "random": randn(n, n),
        "product": x * y,
        "distance": -(x - y).abs(),
        "integers": randn(n, n).round(),
        "skewed": (4 * randn(n, n)).exp(),
    }[kind]
    assert marginal_error(sinkhorn(scores, tau, tolerance=1e-12, rounds=60)) <= 1e-11


@laws
@given(seeds, st.integers(2, 10), st.sampled_from([0.1, 1.0, 10.0]))
def test_a_newton_step_decreases_the_dual_from_anywhere(seed: int, n: int, size: float) -> None:
    logs = size * randn(n, n, seed=seed)
    logs = logs - logs.logsumexp(0)
    shifted = _newton(logs)
    assert (shifted.exp() - logs.exp()).sum() - (shifted - logs).sum() / n <= 1e-12


@pytest.mark.parametrize("tau", [1.0, 0.2])
def test_gradcheck(tau: float) -> None:
    scores = randn(2, 4, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: sinkhorn(x, tau, tolerance=1e-14), scores)


def test_the_gradient_in_the_temperature_comes_through_the_scores() -> None:
    scores, tau = randn(4, 4), torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: sinkhorn(scores / t, tolerance=1e-14), tau)


@laws
@given(seeds, sizes, st.sampled_from([3.0, 1.0, 0.5]))
def test_the_gradient_is_that_of_many_unrolled_sweeps(seed: int, n: int, tau: float) -> None:
    x, upstream = randn(n, n, seed=seed).requires_grad_(), randn(n, n, seed=seed + 1)
    implicit = torch.autograd.grad(sinkhorn(x, tau, tolerance=1e-13), x, upstream)[0]
    explicit = torch.autograd.grad(unrolled(x, tau, 1000), x, upstream)[0]
    assert torch.allclose(implicit, explicit, atol=1e-8)


def test_a_loose_tolerance_gives_the_derivative_at_fixed_marginals() -> None:
    x, upstream = randn(6, 6).requires_grad_(), randn(6, 6, seed=1)
    plan = sinkhorn(x, 0.3, tolerance=0.05)
    assert marginal_error(plan) > 1e-3
    gradient = torch.autograd.grad(plan, x, upstream)[0]
    r, c = plan.detach().sum(1), plan.detach().sum(0)

    def onto(logs: Tensor) -> Tensor:
        for _ in range(1000):
            logs = logs - logs.logsumexp(1, keepdim=True) + r.log()[:, None]
            logs = logs - logs.logsumexp(0, keepdim=True) + c.log()
        return logs.exp()

    exact = torch.autograd.grad(onto(x / 0.3), x, upstream)[0]
    assert torch.allclose(gradient, exact, atol=1e-8)


@pytest.mark.parametrize("tau", [1e-1, 1e-3, 1e-9])
def test_near_a_permutation_the_gradient_is_finite_and_keeps_the_marginals(tau: float) -> None:
    x = randn(30, 30).requires_grad_()
    gradient = torch.autograd.grad(sinkhorn(x, tau), x, randn(30, 30, seed=1))[0] * tau
    assert gradient.isfinite().all()
    assert gradient.sum(0).abs().max() < 1e-11
    assert gradient.sum(1).abs().max() < 1e-11


def test_only_one_matrix_is_kept_for_the_gradient() -> None:
    sizes_saved: list[int] = []

    def keep(x: Tensor) -> Tensor:
        sizes_saved.append(x.numel())
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        sinkhorn(randn(20, 20).requires_grad_(), 0.01)
    assert sum(sizes_saved) <= 2 * 20 * 20


def test_a_second_derivative_is_refused() -> None:
    x = randn(3, 3).requires_grad_()
    first = torch.autograd.grad(sinkhorn(x).square().sum(), x, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


@laws
@given(seeds, st.integers(1, 5))
def test_a_batch_is_a_loop(seed: int, n: int) -> None:
    scores = randn(2, 3, n, n, seed=seed) * torch.tensor([0.1, 1.0, 50.0], dtype=torch.float64)[:, None, None]
    x, upstream = scores.requires_grad_(), randn(2, 3, n, n, seed=seed + 1)
    plans = sinkhorn(x, tolerance=1e-13)
    gradients = torch.autograd.grad(plans, x, upstream)[0]
    for i in range(2):
        for j in range(3):
            y = scores[i, j].detach().requires_grad_()
            plan = sinkhorn(y, tolerance=1e-13)
            assert torch.allclose(plans[i, j], plan, atol=1e-10)
            assert torch.allclose(gradients[i, j], torch.autograd.grad(plan, y, upstream[i, j])[0], atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_other_dtypes_are_kept(dtype: torch.dtype) -> None:
    x = randn(8, 8).to(dtype).requires_grad_()
    plan = sinkhorn(x, 0.05)
    assert plan.dtype == dtype
    exact = sinkhorn(x.detach().double(), 0.05)
    assert torch.allclose(plan.double(), exact, atol=torch.finfo(dtype).eps)
    plan.square().sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == dtype


@pytest.mark.parametrize("shape", [(0, 0), (3, 0, 0), (0, 4, 4)])
def test_nothing_in_nothing_out(shape: tuple[int, ...]) -> None:
    x = torch.empty(shape, requires_grad=True)
    plan = sinkhorn(x)
    assert plan.shape == shape
    plan.sum().backward()
    assert x.grad is not None
    assert x.grad.shape == shape


def test_one_unit() -> None:
    x = torch.tensor([[5.0]], requires_grad=True)
    plan = sinkhorn(x)
    plan.sum().backward()
    assert plan.item() == 1
    assert x.grad is not None
    assert abs(x.grad.item()) < 1e-20


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (torch.zeros(2, 3), r"scores has shape \(2, 3\)"),
        (torch.zeros(3), r"scores has shape \(3,\)"),
        (torch.zeros(2, 2, dtype=torch.int64), "scores is of type torch.int64"),
        (torch.tensor([[1.0, math.nan], [0.0, math.inf]]), "scores has 2 NaN or infinite of 4 values"),
        (torch.tensor([[1.7e308, -1.7e308], [0.0, 0.0]], dtype=torch.float64), "span more than float64"),
    ],
)
def test_bad_scores_are_refused(scores: Tensor, message: str) -> None:
    with pytest.raises(CosetError, match=message):
        sinkhorn(scores)


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan, math.inf])
def test_bad_temperatures_are_refused(temperature: float) -> None:
    with pytest.raises(CosetError, match="temperature is"):
        sinkhorn(torch.zeros(2, 2), temperature)


@pytest.mark.parametrize(("tolerance", "rounds"), [(0.0, 1), (math.nan, 1), (1e-3, 0)])
def test_an_impossible_goal_is_refused(tolerance: float, rounds: int) -> None:
    with pytest.raises(CosetError, match="both must be positive"):
        sinkhorn(torch.zeros(2, 2), tolerance=tolerance, rounds=rounds)


def test_a_plan_that_is_not_good_enough_is_never_returned() -> None:
    with pytest.raises(CosetError, match="After 1 rounds a row sums to one only within"):
        sinkhorn(randn(20, 20), 0.01, rounds=1)
