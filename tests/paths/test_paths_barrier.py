"""The barrier against NumPy, on paths with known losses."""

import json

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import coset
from coset import Barrier, Solution
from coset.core import state as states
from coset.core.errors import CosetError, DataError
from coset.data import Split

Pair = tuple[Tensor, Tensor]


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 4))


@pytest.fixture
def ends(net: nn.Module) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [{n: 2 * torch.randn(x.shape, generator=generator) for n, x in states.of(net).items()} for _ in range(2)]


@pytest.fixture
def data() -> Pair:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(40, 3, generator=generator), torch.randint(4, (40,), generator=generator)


def log_likelihoods(state: dict[str, Tensor], data: Pair) -> tuple[np.ndarray, np.ndarray]:
    """All log-probabilities of the little net, in NumPy and float64."""
    s = {n: x.double().numpy() for n, x in state.items()}
    hidden = np.maximum(data[0].double().numpy() @ s["0.weight"].T + s["0.bias"], 0)
    z = hidden @ s["2.weight"].T + s["2.bias"]
    logs = z - np.log(np.exp(z - z.max(1, keepdims=True)).sum(1, keepdims=True)) - z.max(1, keepdims=True)
    return logs, logs[np.arange(len(z)), data[1].numpy()]


def turned(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same function with the hidden units in another order."""
    turn = torch.tensor([3, 4, 5, 0, 1, 2])
    return {
        "0.weight": state["0.weight"][turn],
        "0.bias": state["0.bias"][turn],
        "2.weight": state["2.weight"][:, turn],
        "2.bias": state["2.bias"],
    }


def test_a_line_between_points(net: nn.Module, ends: list[dict[str, Tensor]], data: Pair) -> None:
    """From a perfect classifier to the same one with its units in another order."""
    data = data[0], torch.from_numpy(log_likelihoods(ends[0], data)[0].argmax(1))
    ends[1] = turned(ends[0])
    events: list[tuple[int, int]] = []
    path = coset.geodesic(*ends)
    r = coset.barrier(
        path, net, data, points=7, batch_size=16, progress=lambda event: events.append((event.done, event.total))
    )
    losses, accuracies = [], []
    for t in np.linspace(0, 1, 7):
        state = {n: ((1 - t) * ends[0][n].double() + t * ends[1][n].double()) for n in ends[0]}
        logs, right = log_likelihoods(state, data)
        losses.append(-right.mean())
        accuracies.append((logs.argmax(1) == data[1].numpy()).mean())
    assert np.allclose(r.t, np.linspace(0, 1, 7)) and r.t[-1] == 1.0
    assert np.allclose(r.loss, losses, rtol=1e-5) and np.allclose(r.accuracy, accuracies)  # type: ignore[arg-type]
    chord = np.linspace(losses[0], losses[-1], 7)
    assert r.height == pytest.approx((losses - chord).max(), rel=1e-4) and r.height > 0.1
    assert r.endpoints == (r.loss[0], r.loss[-1]) and r.loss_error == (0.0,) * 7
    assert events == [(k, 7) for k in range(1, 8)]


def test_gaussians_are_marginalised(net: nn.Module, ends: list[dict[str, Tensor]], data: Pair) -> None:
    a, b = (coset.Gaussian(m, {n: torch.full_like(x, 0.3) for n, x in m.items()}) for m in ends)
    r = coset.barrier(
        coset.geodesic(a, b), net, data, points=3, samples=400, generator=torch.Generator().manual_seed(0)
    )
    middle = coset.geodesic(a, b)(0.5).sample(2000, torch.Generator().manual_seed(9))
    logs = np.stack([log_likelihoods(one, data)[1] for one in states.unstack(middle)])
    expected = -np.log(np.exp(logs).mean(0)).mean()
    assert r.loss_error is not None and 0 < r.loss_error[1] < 0.3
    assert abs(r.loss[1] - expected) < 4 * r.loss_error[1]
    # The loss of the average is not the average of the losses.
    assert abs(-logs.mean() - expected) > 4 * r.loss_error[1]


def test_the_noise_is_the_same_at_every_point(net: nn.Module, ends: list[dict[str, Tensor]], data: Pair) -> None:
    q = coset.Gaussian(ends[0], {n: torch.full_like(x, 0.3) for n, x in ends[0].items()})
    r = coset.barrier(lambda t: q, net, data, points=4, samples=5, generator=torch.Generator().manual_seed(0))
    assert len({*r.loss}) == 1 and r.height == pytest.approx(0, abs=1e-12)
    again = coset.barrier(lambda t: q, net, data, points=4, samples=5, generator=torch.Generator().manual_seed(0))
    other = coset.barrier(lambda t: q, net, data, points=4, samples=5, generator=torch.Generator().manual_seed(1))
    assert r == again != other
    assert coset.barrier(lambda t: q, net, data, points=2, samples=1).loss_error is None


def test_a_mixture_has_no_barrier(net: nn.Module, ends: list[dict[str, Tensor]], data: Pair) -> None:
    """-log is convex, so the loss of a mixture lies below the chord."""
    r = coset.barrier(coset.mixture(*ends), net, Split(*data), points=5, samples=3)
    assert r.height == pytest.approx(0, abs=1e-12) and min(r.excess) < -0.1
    ends_logs = [log_likelihoods(end, data)[1] for end in ends]
    expected = -np.log(0.75 * np.exp(ends_logs[0]) + 0.25 * np.exp(ends_logs[1])).mean()
    assert r.loss[1] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", ["geodesic", "from a point", "mixture"])
def test_the_error_of_the_height_is_that_of_repeated_runs(
    kind: str, net: nn.Module, ends: list[dict[str, Tensor]], data: Pair
) -> None:
    """Noise that the peak shares with the ends is not counted twice; parts of a mixture get more draws as t grows."""
    data = data[0], torch.from_numpy(log_likelihoods(ends[0], data)[0].argmax(1))
    a, b = (coset.Gaussian(m, {n: torch.full_like(x, 0.2) for n, x in m.items()}) for m in (ends[0], turned(ends[0])))
    line = coset.geodesic(coset.Dirac(ends[0]) if kind == "from a point" else a, b)

    def path(t: float) -> Solution:
        return coset.Mixture([line(t), a], [1 - t / 3, t / 3]) if kind == "mixture" else line(t)

    runs = [
        coset.barrier(path, net, data, points=3, samples=100, generator=torch.Generator().manual_seed(s))
        for s in range(40)
    ]
    estimate = np.mean([run.height_error for run in runs])  # type: ignore[arg-type]
    spread = np.std([run.height for run in runs], ddof=1)
    assert estimate == pytest.approx(spread, rel=0.3)
    assert all(run.height > 0.02 for run in runs)


def test_a_height_without_noise_has_no_error(net: nn.Module, ends: list[dict[str, Tensor]], data: Pair) -> None:
    assert coset.barrier(coset.geodesic(*ends), net, data, points=3).height_error == 0
    q = coset.Gaussian(ends[0], {n: torch.full_like(x, 0.3) for n, x in ends[0].items()})
    assert coset.barrier(lambda t: q, net, data, points=3, samples=9).height_error == pytest.approx(0, abs=1e-15)
    assert coset.barrier(lambda t: q, net, data, points=3, samples=1).height_error is None


def test_values_have_no_accuracy(data: Pair) -> None:
    net = nn.Linear(3, 2)
    ends = [{"weight": torch.full((2, 3), float(k)), "bias": torch.zeros(2)} for k in (1, 3)]
    a, b = (coset.Dirac(end, noise=0.5 * k) for k, end in enumerate(ends, 1))
    pairs = data[0], data[0][:, :2].abs()
    r = coset.barrier(coset.geodesic(a, b), net, pairs, points=3)
    x, y = (z.double().numpy() for z in pairs)
    for t, loss in zip(r.t, r.loss, strict=True):
        residual, noise = y - (1 + 2 * t) * x.sum(1, keepdims=True), 0.5 + 0.5 * t
        expected = ((residual / noise) ** 2 / 2 + np.log(noise) + np.log(2 * np.pi) / 2).sum(1).mean()
        assert loss == pytest.approx(expected, rel=1e-5)
    assert r.accuracy is None and len(r.plot().axes) == 1
    assert json.loads(r.to_json())["accuracy"] is None and json.loads(r.to_json())["height_error"] == 0


def test_norms_are_repaired_at_every_state(data: Pair) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4))
    a, b = states.of(net), {n: x + torch.randn(x.shape).abs().to(x) for n, x in states.of(net).items()}
    other = Split(data[0][:8] * 3, data[1][:8])
    path = coset.geodesic(a, b)
    r = coset.barrier(path, net, data, points=3, repair=other, batch_size=8)
    for t, loss in zip(r.t, r.loss, strict=True):
        state = dict(path(t).mean)
        hidden = other.inputs @ state["0.weight"].T + state["0.bias"]
        state |= {"1.running_mean": hidden.mean(0), "1.running_var": hidden.var(0)}
        assert loss == pytest.approx(coset.evaluate(state, net, data).nll, rel=1e-5)
    assert r.loss != coset.barrier(path, net, data, points=3).loss
    spread = coset.Gaussian(a, {n: torch.full_like(p, 0.1) for n, p in net.named_parameters()})
    assert coset.barrier(coset.geodesic(spread, b), net, data, points=2, samples=3, repair=other).loss[0] > 0


def test_json_and_plot(net: nn.Module, ends: list[dict[str, Tensor]], data: Pair) -> None:
    r = coset.barrier(coset.geodesic(*ends), net, data, points=5)
    record = json.loads(r.to_json())
    assert record["height"] == r.height and record["loss"] == list(r.loss) and record["endpoints"] == list(r.endpoints)
    assert len(r.plot().axes) == 2
    assert len(Barrier((0.0, 1.0), (1.0, 2.0)).plot().axes) == 1


def test_refusals(net: nn.Module, ends: list[dict[str, Tensor]], data: Pair) -> None:
    path = coset.geodesic(*ends)
    with pytest.raises(CosetError, match="1 points are too few"):
        coset.barrier(path, net, data, points=1)
    with pytest.raises(DataError, match="are values, but this solution has no noise"):
        coset.barrier(path, net, (data[0], data[0][:, :1]))
