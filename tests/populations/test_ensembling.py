"""Averages of predictions against coset.evaluate on the same networks."""

from __future__ import annotations

import json
import statistics

import pytest
import torch
from torch import Tensor, nn

import coset
from coset import zoo
from coset.core import state as states
from coset.populations import population_outputs as chunks
from coset.populations.model_averages import model_averages


def population(model: nn.Module, n: int, size: float = 1.0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: size * torch.randn(n, *x.shape, generator=generator) for name, x in states.of(model).items()}


@pytest.mark.parametrize("n", [1, 2, 7, 8])
def test_classes(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets are consecutive networks in the drawn order; seven make the counts 1, 2, 4 and 7."""
    monkeypatch.setattr(chunks, "ENTRIES", 300)  # several parts of the examples
    model = zoo.MLP([4, 6, 3])
    networks = population(model, n)
    data = torch.randn(60, 4), torch.randint(3, (60,))
    result = model_averages(networks, model, data, seed=5).rows
    assert [row.count for row in result] == [c for c in (1, 2, 4, 8) if c < n] + [n]
    order = torch.randperm(n, generator=torch.Generator().manual_seed(5)).tolist()
    members = states.unstack(networks)
    for row in result:
        parts = [[members[k] for k in order[s : s + row.count]] for s in range(0, n - row.count + 1, row.count)]
        each = [coset.evaluate(coset.Ensemble(part), model, data) for part in parts]
        assert row.sets == len(parts)
        for name in ("nll", "accuracy", "ece"):
            values = [float(getattr(one, name)) for one in each]
            assert getattr(row, name) == pytest.approx(statistics.mean(values), rel=1e-5, abs=1e-6)
            error = getattr(row, f"{name}_error")
            if len(values) == 1:
                assert error is None
            else:
                expected = statistics.stdev(values) / len(values) ** 0.5
                assert error == pytest.approx(expected, rel=1e-4, abs=1e-6)
        assert row.rmse is None


def test_values() -> None:
    model = zoo.MLP([4, 6, 2])
    networks = population(model, 4)
    data = torch.randn(40, 4), torch.randn(40, 2)
    last = model_averages(networks, model, data, noise=0.5).rows[-1]
    expected = coset.evaluate(coset.Ensemble(networks, noise=0.5), model, data)
    assert last.count == 4 and last.accuracy is None
    assert last.nll == pytest.approx(expected.nll, rel=1e-5)
    assert last.rmse == pytest.approx(expected.rmse, rel=1e-5)


def test_certain_networks_have_finite_losses() -> None:
    """A probability of exp(-1000) is no float, its logarithm is."""
    model = zoo.MLP([4, 3])
    networks = population(model, 4, 1e3)
    rows = model_averages(networks, model, (torch.randn(40, 4), torch.randint(3, (40,)))).rows
    assert rows[0].nll > 100
    assert all(row.nll < 1e5 for row in rows)


def test_averages_of_likelihoods_fall() -> None:
    """-log is convex, so the loss of an average is at most the average of the losses, whatever the networks."""
    model = zoo.MLP([4, 6, 3])
    result = model_averages(population(model, 16), model, (torch.randn(80, 4), torch.randint(3, (80,))))
    losses = [row.nll for row in result.rows]
    assert losses == sorted(losses, reverse=True)
    assert [row["count"] for row in json.loads(result.to_json())] == [1, 2, 4, 8, 16]
