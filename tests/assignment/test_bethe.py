import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from coset.assignment import bethe
from coset.assignment.bethe import bethe_beliefs, bethe_value, log_bethe, permanent_bounds
from coset.assignment.permanent import log_permanent
from coset.core.errors import CosetError

laws = settings(max_examples=25, deadline=None)
seeds = st.integers(0, 2**31)
sizes = st.integers(1, 8)
spreads = st.sampled_from([0.1, 1.0, 3.0, 30.0])


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def shuffle(n: int, seed: int) -> Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


def densities(n: int, apart: float, samples: int = 10, seed: int = 0) -> Tensor:
    """log q_j(w_i) up to a constant: n Gaussians in four dimensions, and samples from them; [samples, n, n]."""
    means = apart * randn(n, 4, seed=seed)
    samples = means + 0.5 * randn(samples, n, 4, seed=seed + 1)
    return (-2 * (samples[:, :, None] - means).square()).sum(-1)


def objective(g: Tensor, logs: Tensor) -> Tensor:
    inner = torch.where(g > 0, g * logs, 0.0) - torch.xlogy(g, g) + torch.xlogy(1 - g, 1 - g)
    return inner.sum((-2, -1))


def value_and_beliefs(logs: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
    x = logs.clone().requires_grad_()
    value = log_bethe(x, tolerance=tolerance)
    return value.detach(), torch.autograd.grad(value.sum(), x)[0]


def plain(logs: Tensor, rounds: int) -> Tensor:
    """Textbook sum-product, damped by a half, every sum over the others taken by itself."""
    n = logs.shape[-1]
    myself = torch.eye(n, dtype=torch.bool)
    to_columns, to_rows = torch.zeros_like(logs), torch.zeros_like(logs)

    def without_each(x: Tensor) -> Tensor:
        return x.unsqueeze(-2).expand(*x.shape, n).masked_fill(myself, -math.inf).logsumexp(-1)

    for _ in range(rounds):
        to_columns = 0.5 * to_columns - 0.5 * without_each(logs + to_rows)
        to_rows = 0.5 * to_rows - 0.5 * without_each((logs + to_columns).mT).mT
    return torch.sigmoid(logs + to_rows + to_columns)


@laws
@given(seeds, sizes, spreads)
def test_the_bounds_hold(seed: int, n: int, spread: float) -> None:
    logs = spread * randn(5, n, n, seed=seed)
    bounds, exact = permanent_bounds(logs, tolerance=1e-6), log_permanent(logs)
    assert (bounds.lower <= exact + 1e-10).all()
    assert (exact <= bounds.upper + n * 1e-6).all()


@pytest.mark.parametrize("n", [2, 4, 8])
def test_both_bounds_are_attained(n: int) -> None:
    ties = torch.block_diag(*[torch.ones(2, 2, dtype=torch.float64)] * (n // 2)).log()
    assert permanent_bounds(ties).upper.item() == pytest.approx(log_permanent(ties).item(), abs=1e-12)
    single = torch.eye(n, dtype=torch.float64).log()
    assert permanent_bounds(single).lower.item() == log_permanent(single).item() == 0


@pytest.mark.parametrize("n", [2, 3, 5, 20, 200])
def test_all_ones(n: int) -> None:
    # G is 1/n: (Vontobel 2013) permB = n^n (1 - 1/n)^(n (n - 1)).
    exact = n * math.log(n) + n * (n - 1) * math.log1p(-1 / n)
    assert log_bethe(torch.zeros(n, n, dtype=torch.float64)).item() == pytest.approx(exact, rel=1e-12)


@laws
@given(seeds, st.sampled_from([1e-3, 1.0, 30.0]))
def test_of_two_it_is_the_better_permutation(seed: int, spread: float) -> None:
    logs = spread * randn(5, 2, 2, seed=seed)
    better = torch.maximum(logs[:, 0, 0] + logs[:, 1, 1], logs[:, 0, 1] + logs[:, 1, 0])
    assert torch.allclose(log_bethe(logs, tolerance=1e-6), better, atol=2e-6)


@pytest.mark.parametrize("n", [3, 6, 9])
def test_it_is_textbook_sum_product(n: int) -> None:
    logs = randn(4, n, n)
    value, beliefs = value_and_beliefs(logs, 1e-12)
    expected = plain(logs, 500)
    assert torch.allclose(beliefs, expected, atol=1e-9)
    assert torch.allclose(value, objective(expected, logs), atol=1e-9)


@laws
@given(seeds, sizes, spreads, st.sampled_from([1e-2, 1e-4, 1e-6]))
def test_beliefs_are_doubly_stochastic_and_attain_the_value(seed: int, n: int, spread: float, tolerance: float) -> None:
    logs = spread * randn(3, n, n, seed=seed)
    value, beliefs = value_and_beliefs(logs, tolerance)
    assert (beliefs >= 0).all()
    assert torch.allclose(beliefs.sum(-1), torch.ones(3, n, dtype=torch.float64), atol=1e-12)
    assert ((beliefs.sum(-2) - 1).abs().sum(-1) <= n * tolerance + 1e-12).all()
    closer, _ = value_and_beliefs(logs, 1e-8)
    assert (value - closer).abs().max() <= n * tolerance


@laws
@given(seeds, st.integers(2, 8), spreads)
def test_no_doubly_stochastic_matrix_is_better(seed: int, n: int, spread: float) -> None:
    logs = spread * randn(n, n, seed=seed)
    weights = randn(50, 6, seed=seed + 1).softmax(-1)
    corners = torch.eye(n, dtype=torch.float64)[torch.stack([shuffle(n, seed + k) for k in range(6)])]
    mixtures = torch.einsum("sk,kij->sij", weights, corners)
    _, beliefs = value_and_beliefs(logs, 1e-6)
    mixtures = torch.cat([mixtures, 0.99 * beliefs + 0.01 * mixtures])
    assert objective(mixtures.clamp(max=1.0), logs).max() <= log_bethe(logs, tolerance=1e-6) + n * 1e-5


@pytest.mark.parametrize("apart", [0.1, 1.0, 3.0, 20.0])
def test_overlapping_densities_of_any_kind_converge_to_the_value_of_plain_rounds(
    apart: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = densities(15, apart, samples=5, seed=4)
    value = log_bethe(logs, rounds=500)
    monkeypatch.setattr(bethe, "WINDOW", 10**9)
    assert (value - log_bethe(logs, tolerance=1e-5, rounds=10**4)).abs().max() < 15 * 1e-3


def test_extrapolation_saves_most_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = torch.tensor([[0.0, -1e-3], [-2.0, -2.0]], dtype=torch.float64)
    log_bethe(logs, tolerance=1e-6, rounds=40)
    monkeypatch.setattr(bethe, "WINDOW", 10**9)
    with pytest.raises(CosetError, match="After 1000 rounds"):
        log_bethe(logs, tolerance=1e-6, rounds=1000)


@pytest.mark.parametrize("tie", [1e-2, 1e-4, 1e-6, 0.0])
def test_close_to_a_tie(tie: float) -> None:
    pair = torch.tensor([[0.0, -tie], [-2.0, -2.0]], dtype=torch.float64)
    logs = torch.full((6, 6), -30.0, dtype=torch.float64)
    logs[:2, :2], logs[2:4, 2:4], logs[4:, 4:] = pair, pair + 1, pair.T
    value, beliefs = value_and_beliefs(logs, 1e-7)
    assert value.item() == pytest.approx(3 * -2.0 + 2, abs=6e-7)
    assert torch.allclose(beliefs.sum(-2), torch.ones(6, dtype=torch.float64), atol=1e-6)


@laws
@given(seeds, sizes, st.sampled_from([1.0, 1e3]))
def test_scaling_and_permuting_rows_and_columns(seed: int, n: int, size: float) -> None:
    logs, rows, columns = randn(n, n, seed=seed), size * randn(n, 1, seed=seed + 1), size * randn(n, seed=seed + 2)
    value = log_bethe(logs, tolerance=1e-6)
    near = {"atol": 2e-6 * n, "rtol": 0.0}
    assert torch.allclose(log_bethe(logs + rows + columns, tolerance=1e-6), value + rows.sum() + columns.sum(), **near)
    shuffled = logs[shuffle(n, seed)][:, shuffle(n, seed + 1)]
    assert torch.allclose(log_bethe(shuffled, tolerance=1e-6), value, **near)
    assert torch.allclose(log_bethe(logs.T, tolerance=1e-6), value, **near)


def test_blocks_multiply() -> None:
    logs = torch.full((9, 9), -math.inf, dtype=torch.float64)
    logs[:4, :4], logs[4:, 4:] = randn(4, 4), randn(5, 5, seed=1)
    parts = log_bethe(logs[:4, :4], tolerance=1e-9) + log_bethe(logs[4:, 4:], tolerance=1e-9)
    assert torch.allclose(log_bethe(logs, tolerance=1e-9), parts, atol=1e-8)


def test_gradcheck() -> None:
    logs = (0.5 * randn(4, 4)).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: log_bethe(x, tolerance=1e-13), logs)


def test_a_second_derivative_is_refused() -> None:
    x = randn(3, 3).requires_grad_()
    first = torch.autograd.grad(log_bethe(x).square(), x, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


def test_only_the_beliefs_are_kept_for_the_gradient() -> None:
    sizes_saved: list[int] = []

    def keep(x: Tensor) -> Tensor:
        sizes_saved.append(x.numel())
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        log_bethe(randn(20, 20).requires_grad_())
    assert sizes_saved == [400]


@pytest.mark.parametrize("n", [5, 8, 60])
def test_ranges_beyond_float64(n: int) -> None:
    logs = -1e4 * torch.rand(4, n, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    value, beliefs = value_and_beliefs(logs, 1e-6)
    assert torch.allclose(beliefs.sum(-2), torch.ones(4, n, dtype=torch.float64), atol=1e-6 * n)
    assert torch.allclose(value, (beliefs * logs).sum((-2, -1)), atol=1.0)
    if n < 10:
        exact = log_permanent(logs)
        assert (value <= exact + 1e-9).all()
        assert (exact <= value + n / 2 * math.log(2) + 1e-5).all()


@laws
@given(seeds, st.integers(1, 7), st.sampled_from([0.3, 0.5, 0.7]))
def test_zeros(seed: int, n: int, share: float) -> None:
    forbidden = torch.rand(4, n, n, generator=torch.Generator().manual_seed(seed + 1)) < share
    logs = randn(4, n, n, seed=seed).masked_fill(forbidden, -math.inf)
    value, beliefs = value_and_beliefs(logs, 1e-4)
    exact = log_permanent(logs)
    possible = exact > -math.inf
    assert torch.equal(value.isfinite(), possible)
    assert (beliefs[forbidden] == 0).all()
    assert (beliefs[~possible] == 0).all()
    value, exact = value[possible], exact[possible]
    assert (value <= exact + 1e-9).all()
    assert (exact <= value + n / 2 * math.log(2) + n * 1e-4).all()


def test_one_possible_permutation_is_found_behind_a_triangle() -> None:
    logs = torch.zeros(30, 30, dtype=torch.float64).masked_fill(torch.ones(30, 30).triu(1) > 0, -math.inf)
    value, beliefs = value_and_beliefs(logs, 1e-6)
    assert value.item() == pytest.approx(0, abs=1e-9)
    assert torch.allclose(beliefs, torch.eye(30, dtype=torch.float64), atol=1e-6)


def test_the_errata_of_gelberg2024() -> None:
    # Mutual information of 8 units and their order: exactly and by Bethe, with the seed that the figures are from.
    with torch.random.fork_rng():
        torch.manual_seed(0)
        values = {(n, apart): _information(n, apart) for n in (2, 5, 8) for apart in (0.1, 1.0, 3.0)}
    assert values[8, 0.1] == pytest.approx((0.330, 1.769), abs=1e-3)
    assert values[8, 1.0] == pytest.approx((10.274, 10.443), abs=1e-3)
    assert values[8, 3.0] == pytest.approx((10.605, 10.605), abs=1e-3)


def _information(n: int, apart: float) -> tuple[float, float]:
    means = apart * torch.randn(n, 4, dtype=torch.float64)
    samples = means + 0.5 * torch.randn(200, n, 4, dtype=torch.float64)
    for _ in range(4 + 19 + 499):
        torch.randperm(n)
    logs = (-2 * (samples[:, :, None] - means).square()).sum(-1)
    same = logs.diagonal(dim1=-2, dim2=-1).sum(-1)
    exact, approximate = log_permanent(logs), log_bethe(logs)
    return tuple(math.lgamma(n + 1) - float((x - same).mean()) for x in (exact, approximate))  # type: ignore[return-value]


def test_a_batch_is_a_loop() -> None:
    logs = randn(2, 3, 6, 6) * torch.tensor([0.1, 1.0, 50.0], dtype=torch.float64)[:, None, None]
    value, beliefs = value_and_beliefs(logs, 1e-4)
    assert value.shape == (2, 3)
    for i in range(2):
        for j in range(3):
            alone = value_and_beliefs(logs[i, j], 1e-4)
            assert torch.allclose(value[i, j], alone[0], atol=1e-12)
            assert torch.allclose(beliefs[i, j], alone[1], atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_other_dtypes_are_kept(dtype: torch.dtype) -> None:
    logs = randn(6, 6).to(dtype).requires_grad_()
    value = log_bethe(logs)
    value.backward()
    assert value.dtype == permanent_bounds(logs).upper.dtype == dtype
    assert logs.grad is not None
    assert logs.grad.dtype == dtype
    assert torch.equal(value, log_bethe(logs.double()).to(dtype))


@pytest.mark.parametrize("shape", [(0, 0), (3, 0, 0), (0, 4, 4)])
def test_the_permanent_of_nothing_is_one(shape: tuple[int, ...]) -> None:
    logs = torch.empty(shape, requires_grad=True)
    value = log_bethe(logs)
    assert torch.equal(value, torch.zeros(shape[:-2]))
    value.sum().backward()
    assert logs.grad is not None
    assert logs.grad.shape == shape


def test_one_entry() -> None:
    value, beliefs = value_and_beliefs(torch.tensor([[5.0]]), 1e-3)
    assert value == 5
    assert beliefs == 1
    assert log_bethe(torch.tensor([[-math.inf]])) == -math.inf


@pytest.mark.parametrize(
    ("logs", "message"),
    [
        (torch.zeros(2, 3), r"log_a has shape \(2, 3\)"),
        (torch.zeros(2, 2, dtype=torch.int64), "log_a is of type torch.int64"),
        (torch.tensor([[1.0, 0.0], [math.nan, 0.0]]), r"log_a is nan at \[1, 0\]"),
        (torch.tensor([[[0.0]], [[math.inf]]]), r"log_a is inf at \[1, 0, 0\]"),
    ],
)
def test_bad_logs_are_refused(logs: Tensor, message: str) -> None:
    with pytest.raises(CosetError, match=message):
        log_bethe(logs)


@pytest.mark.parametrize(("tolerance", "rounds"), [(0.0, 1), (math.nan, 1), (1e-3, 0)])
def test_an_impossible_goal_is_refused(tolerance: float, rounds: int) -> None:
    with pytest.raises(CosetError, match="both must be positive"):
        log_bethe(torch.zeros(2, 2), tolerance=tolerance, rounds=rounds)


def test_a_value_that_is_not_good_enough_is_never_returned() -> None:
    with pytest.raises(
        CosetError, match=r"After 3 rounds 2 of 3 Bethe permanents have errors of up to .* a row, raise"
    ):
        log_bethe(torch.cat([densities(30, 1.0, samples=2), 1e3 * torch.eye(30)[None]]), rounds=3)


@pytest.mark.parametrize("n", [1, 3, 6, 9])
def test_many_rounds_give_the_beliefs_of_textbook_sum_product(n: int) -> None:
    logs = randn(4, n, n)
    assert torch.allclose(bethe_beliefs(logs, 200), plain(logs, 500), atol=1e-9)


@laws
@given(seeds, st.integers(2, 8), st.sampled_from([0.1, 1.0, 3.0]))
def test_beliefs_come_closer_and_their_value_with_them(seed: int, n: int, apart: float) -> None:
    logs = densities(n, apart, seed=seed)
    value, beliefs = value_and_beliefs(logs, 1e-4)
    off = [float((bethe_beliefs(logs, k) - beliefs).abs().sum()) for k in (2, 20)]
    assert off[1] <= off[0] + 10 * n * 1e-2
    assert (bethe_value(logs, bethe_beliefs(logs)) - value).abs().mean() < 0.05 * n


def test_five_rounds_are_nearer_to_the_bethe_beliefs_than_these_to_the_marginals() -> None:
    near, far, off = 0.0, 0.0, 0.0
    for n in (4, 8):
        for apart in (0.05, 0.15, 0.5, 1.5):
            logs = densities(n, apart, seed=n).requires_grad_()
            value, beliefs = value_and_beliefs(logs.detach(), 1e-4)
            marginals = torch.autograd.grad(log_permanent(logs).sum(), logs)[0]
            quick = bethe_beliefs(logs)
            near += float((quick - beliefs).abs().sum() / n)
            far += float((beliefs - marginals).abs().sum() / n)
            off += float((bethe_value(logs, quick) - value).detach().abs().mean() / n / 8)
    assert near < far / 3
    assert off < 0.004


def test_units_that_coincide_share_evenly() -> None:
    equal = bethe_beliefs(randn(3, 1, 40).expand(3, 40, 40).float())
    assert torch.allclose(equal, torch.full((3, 40, 40), 1 / 40), rtol=1e-5)


@pytest.mark.parametrize("far", [1e2, 1e3, 1e5, 1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_units_far_apart_are_a_permutation_wherever_it_is(far: float, dtype: torch.dtype) -> None:
    logs = -far * (1 + torch.rand(9, 9, generator=torch.Generator().manual_seed(0), dtype=dtype))
    order = shuffle(9, 1)
    logs[torch.arange(9), order] = randn(9).to(dtype)
    beliefs = bethe_beliefs(torch.stack([logs, logs[:, order]]))
    assert torch.allclose(beliefs[0], torch.eye(9, dtype=dtype)[order], atol=1e-6)
    assert torch.allclose(beliefs[1], torch.eye(9, dtype=dtype), atol=1e-6)


def test_rows_that_want_one_column_are_told_apart_by_what_else_they_have() -> None:
    # In sums of float32 one less than e^-16 is lost.
    logs = torch.tensor([[0.0, -50.0, -100.0], [0.0, -60.0, -100.0], [0.0, 0.0, 0.0]])
    assert torch.allclose(bethe_beliefs(logs), torch.eye(3)[[1, 0, 2]], atol=1e-4)


@laws
@given(seeds, st.integers(1, 7), st.sampled_from([0.0, 0.3, 0.9, 1.0]), st.sampled_from([1.0, 30.0, 1e4]))
def test_beliefs_are_finite_whatever_the_matrix(seed: int, n: int, share: float, spread: float) -> None:
    forbidden = torch.rand(4, n, n, generator=torch.Generator().manual_seed(seed + 1)) < share
    logs = (spread * randn(4, n, n, seed=seed)).masked_fill(forbidden, -math.inf).float()
    for rounds in (1, 5, 60):
        beliefs = bethe_beliefs(logs, rounds)
        assert ((beliefs >= 0) & (beliefs <= 1)).all()
        assert (beliefs[forbidden] == 0).all()
        assert bethe_value(logs, beliefs).isfinite().all()
        possible = log_permanent(logs).isfinite() & (spread == 1)
        assert torch.allclose(beliefs[possible].sum(-1), torch.ones(()))


@laws
@given(seeds, st.integers(1, 8), st.sampled_from([1.0, 1e2]))
def test_beliefs_move_with_rows_and_columns_and_ignore_the_scales_of_rows(seed: int, n: int, size: float) -> None:
    logs, rows, columns = randn(n, n, seed=seed), shuffle(n, seed), shuffle(n, seed + 1)
    shuffled = bethe_beliefs((logs + size * randn(n, 1, seed=seed + 1))[rows][:, columns])
    assert torch.allclose(shuffled, bethe_beliefs(logs)[rows][:, columns], atol=1e-9)


def test_float32_is_enough_for_wide_layers() -> None:
    logs = densities(300, 1.0, samples=2)
    assert torch.allclose(bethe_beliefs(logs.float()).double(), bethe_beliefs(logs), atol=2e-5)


def test_beliefs_look_at_no_value() -> None:
    # On this device a value does not exist, and asking for one is an error.
    logs = torch.empty(3, 8, 8, device="meta")
    assert bethe_value(logs, bethe_beliefs(logs)).shape == (3,)


def test_beliefs_leave_their_input_and_carry_no_gradient() -> None:
    logs = randn(2, 5, 5)
    logs[0, 1, 2] = -math.inf
    before = logs.clone()
    logs.requires_grad_()
    beliefs = bethe_beliefs(logs)
    assert not beliefs.requires_grad
    assert torch.equal(logs.detach(), before)
    assert torch.equal(torch.autograd.grad(bethe_value(logs, beliefs).sum(), logs)[0], beliefs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_beliefs_keep_the_dtype(dtype: torch.dtype) -> None:
    logs = randn(6, 6).to(dtype)
    beliefs = bethe_beliefs(logs)
    assert beliefs.dtype == dtype
    assert torch.equal(beliefs, bethe_beliefs(logs.float()).to(dtype))


@pytest.mark.parametrize("shape", [(0, 0), (3, 0, 0), (0, 4, 4)])
def test_beliefs_of_nothing(shape: tuple[int, ...]) -> None:
    logs = torch.zeros(shape)
    assert bethe_beliefs(logs).shape == shape
    assert torch.equal(bethe_value(logs, bethe_beliefs(logs)), torch.zeros(shape[:-2]))


def test_the_value_is_the_objective() -> None:
    logs = randn(3, 5, 5)
    beliefs = plain(logs, 500)
    assert torch.allclose(bethe_value(logs, beliefs), objective(beliefs, logs), rtol=1e-12)


def test_bad_calls_of_beliefs_and_value_are_refused() -> None:
    with pytest.raises(CosetError, match=r"log_a has shape \(2, 3\)"):
        bethe_beliefs(torch.zeros(2, 3))
    with pytest.raises(CosetError, match="There are 0 rounds"):
        bethe_beliefs(torch.zeros(2, 2), 0)
    with pytest.raises(CosetError, match=r"have shapes \(2, 2\) and \(1, 2, 2\)"):
        bethe_value(torch.zeros(2, 2), torch.zeros(1, 2, 2))
