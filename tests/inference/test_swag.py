"""Stochastic weight averaging Gaussian, against moments of the same iterates by plain torch."""

from pathlib import Path

import numpy as np
import pytest
import torch
from inference_problems import clusters, line
from torch import nn
from torch.nn import functional as F

import coset
from coset.core.errors import CosetError
from coset.data import Split

EPOCHS, BURN_IN, RANK = 12, 4, 5


def iterates() -> torch.Tensor:
    """Weights of a linear model after each epoch of full batches: SGD with momentum by hand, in float64."""
    split, rows = line(), []
    w, v = (torch.zeros(1, 3, dtype=torch.float64) for _ in range(2))
    for _ in range(EPOCHS):
        at = w.clone().requires_grad_()
        objective = (((split.inputs @ at.T - split.targets) ** 2).sum() / (2 * 0.3**2)) / 64 + 0.005 * at.square().sum()
        (gradient,) = torch.autograd.grad(objective, at)
        v = 0.5 * v + gradient
        w = w - 0.02 * v
        rows.append(w.flatten())
    return torch.stack(rows)


def fitted(rank: int) -> coset.Solution:
    method = coset.SWAG(
        rate=0.02,
        momentum=0.5,
        epochs=EPOCHS,
        batch_size=64,
        noise=0.3,
        weight_decay=0.01,
        burn_in=BURN_IN,
        rank=rank,
    )
    net = nn.Linear(3, 1, bias=False).double()
    starts = {"weight": torch.zeros(1, 1, 3, dtype=torch.float64)}
    (q,) = coset.fit(net, line(), method, starts=starts)
    assert q.noise == pytest.approx(0.3)
    return q


def test_mean_and_covariance_are_those_of_the_iterates() -> None:
    w = iterates()[BURN_IN:].numpy()
    deviations = np.stack([w[t] - w[: t + 1].mean(0) for t in range(len(w))])[-RANK:]
    expected = np.diag(w.var(0)) / 2 + deviations.T @ deviations / (2 * (RANK - 1))
    q = fitted(RANK)
    assert isinstance(q, coset.FullGaussian)
    assert np.allclose(q.mean["weight"].numpy().ravel(), w.mean(0), rtol=1e-9)
    draws = q.sample(200_000, torch.Generator().manual_seed(0))["weight"].squeeze(1)
    assert np.allclose(np.cov(draws.T.numpy()), expected, rtol=0.03, atol=0.02 * expected.max())
    assert np.allclose(q.covariance.numpy(), expected, rtol=1e-8)


def test_without_columns_weights_are_independent() -> None:
    w = iterates()[BURN_IN:].numpy()
    q = fitted(0)
    assert isinstance(q, coset.Gaussian)
    assert np.allclose(q.mean["weight"].numpy().ravel(), w.mean(0), rtol=1e-9)
    assert np.allclose(q.std["weight"].numpy().ravel(), w.std(0), rtol=1e-6)


def test_stopped_and_resumed_is_uninterrupted(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    method = coset.SWAG(epochs=6, burn_in=2, rank=3, batch_size=20)
    whole = coset.fit(net, clusters(), method, replicas=2)

    def stop(epoch: coset.Epoch) -> None:
        if epoch.epoch == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        coset.fit(
            net, clusters(), method, replicas=2, out=tmp_path, progress=coset.on_epoch(stop), checkpoint_seconds=0
        )
    again = coset.fit(net, clusters(), method, replicas=2, out=tmp_path)
    for a, b in zip(whole, again, strict=True):
        assert isinstance(a, coset.FullGaussian) and isinstance(b, coset.FullGaussian)
        assert all(torch.equal(a.mean[name], x) for name, x in b.mean.items())
        assert torch.equal(a.covariance, b.covariance)


def test_it_predicts_well_and_is_less_certain_than_map() -> None:
    whole = clusters(400)
    split, test = (Split(whole.inputs[at], whole.targets[at]) for at in (slice(200), slice(200, None)))
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    (q,) = coset.fit(net, split, coset.SWAG(epochs=40, burn_in=20, rank=10, batch_size=20))
    scores = coset.evaluate(q, net, test, samples=64)
    assert scores.accuracy is not None and scores.accuracy > 0.85
    with torch.no_grad():
        mean = F.softmax(torch.func.functional_call(net, dict(q.mean), (test.inputs,)), -1).max(-1).values.mean()
    assert coset.predict(q, net, test.inputs, samples=64).exp().max(-1).values.mean() < mean + 1e-3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"burn_in": -1}, "burn_in must leave two of 80 epochs"),
        ({"burn_in": 79}, "burn_in must leave two of 80 epochs"),
        ({"rank": 1}, "rank must be 0, or from 2 to 30"),
        ({"rank": 31}, "rank must be 0, or from 2 to 30"),
    ],
)
def test_bad_settings(settings: dict[str, int], message: str) -> None:
    with pytest.raises(CosetError, match=message):
        coset.SWAG(**settings)  # type: ignore[arg-type]


def test_large_networks_are_refused_before_training() -> None:
    net = nn.Sequential(nn.Linear(4, 3000), nn.ReLU(), nn.Linear(3000, 3))
    with pytest.raises(CosetError, match=r"20,?000"):
        coset.fit(net, clusters(), coset.SWAG(), progress=lambda _: pytest.fail("trained"))
    (q,) = coset.fit(net, clusters(), coset.SWAG(epochs=2, burn_in=0, rank=0))
    assert isinstance(q, coset.Gaussian)
