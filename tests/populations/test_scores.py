"""Every network of a population by itself, against coset.evaluate."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import Tensor, nn

import coset
from coset import zoo
from coset.core import state as states
from coset.populations import population_outputs as chunks
from coset.populations.scores import LEVELS, scores, spread


def population(model: nn.Module, n: int, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    result = {}
    for name, x in states.of(model).items():
        own = x.expand(n, *x.shape).clone()
        result[name] = own + torch.randn(own.shape, generator=generator) if x.is_floating_point() else own
    return result


def classes(n: int, width: int, k: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(n, width, generator=generator), torch.randint(k, (n,), generator=generator)


class Reads(nn.Module):
    """A model that `vmap` cannot run, since it looks at values."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layer(x)
        return result * 2 if float(self.layer.weight.sum()) > 0 else result


@pytest.mark.parametrize("entries", [chunks.ENTRIES, 200])
@pytest.mark.parametrize("model", [zoo.MLP([4, 5, 3]), Reads()], ids=["mlp", "reads"])
def test_classes(model: nn.Module, entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "ENTRIES", entries)
    monkeypatch.setattr(chunks, "states_at_once", lambda model, device: 3)  # seven networks are 3 + 3 + 1
    networks, data = population(model, 7), classes(50, 4, 3)
    result = scores(networks, model, data)
    assert result.accuracy is not None
    for k, one in enumerate(states.unstack(networks)):
        expected = coset.evaluate(one, model, data)
        assert result.loss[k] == pytest.approx(expected.nll, rel=1e-6)
        assert result.accuracy[k] == pytest.approx(expected.accuracy)


def test_values() -> None:
    model = zoo.MLP([4, 5, 2])
    networks, inputs = population(model, 5), torch.randn(30, 4)
    data = inputs, torch.randn(30, 2)
    result = scores(networks, model, data, noise=0.7)
    assert result.accuracy is None and result.accuracies is None
    for k, one in enumerate(states.unstack(networks)):
        assert result.loss[k] == pytest.approx(coset.evaluate(coset.Dirac(one, 0.7), model, data).nll, rel=1e-6)
    assert json.loads(result.to_json())["accuracy"] is None


def test_convolutions_with_batch_norm_in_evaluation_mode() -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 16, 2)).train()
    networks = population(model, 3)
    networks["1.running_var"] = networks["1.running_var"].abs() + 0.1
    before = states.of(model)
    data = torch.randn(20, 1, 6, 6), torch.randint(2, (20,))
    result = scores(networks, model, data)
    for k, one in enumerate(states.unstack(networks)):
        assert result.loss[k] == pytest.approx(coset.evaluate(one, model, data).nll, rel=1e-5)
    assert model.training and all(torch.equal(x, before[name]) for name, x in states.of(model).items())


def test_spread_by_hand() -> None:
    x = torch.tensor([4.0, 1.0, 3.0, 2.0])
    result = spread(x)
    assert (result.n, result.mean, result.least, result.largest) == (4, 2.5, 1.0, 4.0)
    assert result.std == pytest.approx(math.sqrt(5 / 3))
    assert result.quantiles[LEVELS.index(0.25)] == pytest.approx(1.75)
    assert spread(x[:1]).std is None
    assert spread(torch.tensor([1.0, math.inf])).record()["mean"] is None
    record = json.loads(json.dumps(result.record(), allow_nan=False))
    assert record["quantiles"]["0.5"] == pytest.approx(2.5)


def test_refusals() -> None:
    model = zoo.MLP([4, 5, 3])
    networks, data = population(model, 2), classes(9, 4, 3)
    with pytest.raises(coset.StateError, match=r"'layers\.0\.bias'.*NaN"):
        scores({**networks, "layers.0.bias": networks["layers.0.bias"] * math.nan}, model, data)
    with pytest.raises(coset.StateError, match="empty"):
        scores({name: x[:0] for name, x in networks.items()}, model, data)
    with pytest.raises(coset.StateError, match=r"Missing 'layers\.0\.bias'"):
        scores({name: x for name, x in networks.items() if name != "layers.0.bias"}, model, data)
    with pytest.raises(coset.DataError, match="classes 0 to 2"):
        scores(networks, model, (data[0], data[1] + 1))
    with pytest.raises(coset.DataError, match="noise"):
        scores(networks, model, data, noise=0.1)
    with pytest.raises(coset.ModelError, match="NaN"):
        scores({name: x * 1e30 for name, x in networks.items()}, model, data)
