"""R-hat and effective sample sizes: against loops, processes that are known, and ArviZ."""

import math
import statistics

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

import coset
from coset.core.errors import CosetError


def chains(phi: float, count: int, draws: int, width: int = 1, seed: int = 0) -> Tensor:
    """Stationary AR(1) chains x_t = phi x_t-1 + e_t of unit variance."""
    generator = torch.Generator().manual_seed(seed)
    e = torch.randn(count, draws, width, dtype=torch.float64, generator=generator)
    x = [e[:, 0]]
    for t in range(1, draws):
        x.append(phi * x[-1] + math.sqrt(1 - phi**2) * e[:, t])
    return torch.stack(x, 1)


def ranked(halves: list[list[float]]) -> list[list[float]]:
    everything = sorted(x for half in halves for x in half)
    places = {x: [i + 1 for i, y in enumerate(everything) if y == x] for x in set(everything)}
    normal = statistics.NormalDist()
    size = len(everything) + 0.25
    return [[normal.inv_cdf((statistics.mean(places[x]) - 0.375) / size) for x in half] for half in halves]


def split(x: Tensor) -> list[list[float]]:
    half = x.shape[1] // 2
    return [part for row in x.tolist() for part in (row[:half], row[len(row) - half :])]


def slow_r_hat(x: Tensor) -> float:
    def plain(halves: list[list[float]]) -> float:
        n = len(halves[0])
        within = statistics.mean(statistics.variance(half) for half in halves)
        between = statistics.variance([statistics.mean(half) for half in halves])
        return math.sqrt(((n - 1) / n * within + between) / within)

    halves = split(x)
    median = statistics.median(y for half in halves for y in half)
    folded = [[abs(y - median) for y in half] for half in halves]
    return max(plain(ranked(halves)), plain(ranked(folded)))


def slow_ess(x: Tensor) -> float:
    halves = ranked(split(x))
    m, n = len(halves), len(halves[0])
    means = [statistics.mean(half) for half in halves]
    centred = [[y - mean for y in half] for half, mean in zip(halves, means, strict=True)]
    cov = [statistics.mean(sum(a * b for a, b in zip(h, h[t:], strict=False)) / n for h in centred) for t in range(n)]
    within = cov[0] * n / (n - 1)
    total = within * (n - 1) / n + statistics.variance(means)
    rho = [1.0] + [1 - (within - cov[t]) / total for t in range(1, n)]
    tau, smallest, k = -1.0, math.inf, 0
    while 2 * k + 4 < n and rho[2 * k] + rho[2 * k + 1] > 0:
        smallest = min(smallest, rho[2 * k] + rho[2 * k + 1])
        tau += 2 * smallest
        k += 1
    return m * n / max(tau + max(rho[2 * k], 0), 1 / math.log10(m * n))


@pytest.mark.parametrize("draws", [4, 5, 6, 7, 20, 61])
@pytest.mark.parametrize("phi", [-0.5, 0.0, 0.9])
def test_against_loops(draws: int, phi: float) -> None:
    x = chains(phi, 3, draws, 2)
    x[0, :, 1] = x[0, :, 1] * 3 + 1
    x[..., 0] = x[..., 0].round(decimals=1)  # with ties
    r_hat, ess = coset.r_hat(x), coset.ess(x)
    for k in (0, 1):
        assert r_hat[k].item() == pytest.approx(slow_r_hat(x[..., k]), rel=1e-9)
        assert ess[k].item() == pytest.approx(slow_ess(x[..., k]), rel=1e-9)


def test_against_arviz() -> None:
    """rhat and ess of ArviZ 0.23.4 for sin(t^2 / 7) + chain * t / 200."""
    t, chain = torch.arange(100).double(), torch.arange(3).double()[:, None]
    x = torch.sin(t**2 / 7) + chain * t / 200
    assert coset.r_hat(x).item() == pytest.approx(1.101782927031032, rel=1e-12)
    assert coset.ess(x).item() == pytest.approx(34.68329937896809, rel=1e-12)


@pytest.mark.parametrize("phi", [-0.3, 0.0, 0.5, 0.9])
def test_ess_of_an_autoregressive_process(phi: float) -> None:
    """N (1 - phi) / (1 + phi) of N draws."""
    x = chains(phi, 4, 4000, 30)
    found, expected = coset.ess(x).mean().item(), 16000 * (1 - phi) / (1 + phi)
    assert found == pytest.approx(expected, rel=0.06)
    assert coset.r_hat(x).max() < 1.02


def test_r_hat_sees_places_scales_and_drifts() -> None:
    x = chains(0, 4, 500, 4)
    assert coset.r_hat(x).max() < 1.01
    x[0, :, 0] += 1
    x[0, :, 1] *= 4
    x[:, :250, 2] += 1
    found = coset.r_hat(x)
    assert (found[:3] > 1.05).all() and found[3] < 1.01


def test_cauchy_draws_do_not_confuse() -> None:
    x = torch.tan(math.pi * (torch.rand(4, 500, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) - 0.5))
    assert coset.r_hat(x) < 1.01 and 1500 < coset.ess(x) < 2500


@settings(max_examples=30)
@given(st.integers(0, 1000), st.permutations(range(4)))
def test_order_of_chains_and_scale_do_not_matter(seed: int, order: list[int]) -> None:
    x = chains(0.5, 4, 30, 2, seed)
    assert torch.allclose(coset.r_hat(x[order]), coset.r_hat(x), rtol=1e-9)
    assert torch.allclose(coset.ess(x[order]), coset.ess(x), rtol=1e-9)
    assert torch.allclose(coset.ess(x.exp()), coset.ess(x), rtol=1e-9)
    assert torch.allclose(coset.r_hat(4 * x), coset.r_hat(x), rtol=1e-9)


def test_what_never_moves_is_not_a_number() -> None:
    x = chains(0, 2, 10, 2)
    x[..., 0] = 3
    assert coset.r_hat(x)[0].isnan() and coset.ess(x)[0].isnan()
    assert coset.r_hat(x)[1].isfinite() and coset.ess(x)[1].isfinite()


def test_draws_that_cannot_be_diagnosed() -> None:
    with pytest.raises(CosetError, match=r"shape \(4, 3\) are too few"):
        coset.r_hat(torch.zeros(4, 3))
    with pytest.raises(CosetError, match=r"shape \(9,\) are too few"):
        coset.ess(torch.zeros(9))
    with pytest.raises(CosetError, match="NaN or infinite"):
        coset.ess(torch.full((2, 8), math.nan))


@pytest.mark.parametrize("noise", [0.1, None])
def test_predictions_of_chains(noise: float | None) -> None:
    generator = torch.Generator().manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3))
    members = [{n: torch.randn(p.shape, generator=generator) for n, p in net.state_dict().items()} for _ in range(240)]
    x = torch.randn(5, 2, generator=generator)
    outputs = torch.stack([torch.func.functional_call(net, state, (x,)) for state in members]).double()
    expected = (outputs if noise else outputs.softmax(-1)).view(3, 80, 5, 3)
    found = coset.convergence(coset.Ensemble(members, noise=noise), net, x, 3, batch_size=2)
    # The two draws beside the median are as far from it, up to rounding, which decides their ranks.
    assert torch.allclose(found.r_hat, coset.r_hat(expected), rtol=2e-3)
    assert torch.allclose(found.ess, coset.ess(expected), rtol=1e-3)
    assert str(found).startswith(f"R-hat up to {found.r_hat.max():.3f}, effective sample size from ")


def test_permuted_chains_predict_alike() -> None:
    """In the space of weights chains at two permutations never agree; their predictions do."""
    net = nn.Sequential(nn.Linear(1, 6), nn.Tanh(), nn.Linear(6, 1))
    order = torch.tensor([3, 5, 0, 1, 4, 2])
    centre = {name: x + 1 for name, x in net.state_dict().items()}
    generator = torch.Generator().manual_seed(0)
    draws = [{n: x + 0.1 * torch.randn(x.shape, generator=generator) for n, x in centre.items()} for _ in range(80)]
    for state in draws[40:]:
        state |= {"0.weight": state["0.weight"][order], "0.bias": state["0.bias"][order]}
        state["2.weight"] = state["2.weight"][:, order]
    q = coset.Ensemble(draws, noise=0.1)
    assert coset.convergence(q, net, torch.linspace(-1, 1, 7)[:, None], 2).r_hat.max() < 1.1
    assert coset.r_hat(q.population["0.weight"].view(2, 40, -1)).max() > 1.5


def test_chains_of_unequal_length() -> None:
    net = nn.Linear(1, 1)
    q = coset.Ensemble([dict(net.state_dict())] * 10, noise=0.1)
    for chains in (0, 3):
        with pytest.raises(CosetError, match=f"10 draws are not {chains} chains of equal length"):
            coset.convergence(q, net, torch.zeros(2, 1), chains)
