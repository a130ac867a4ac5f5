"""What all chains share: draws in order, folders, and going on where they were stopped."""

from pathlib import Path

import pytest
import torch
from torch import nn

import coset
from coset import Epoch, Method
from coset.core.state import stack
from coset.data import Split
from coset.training.network import Network

METHODS = [
    coset.SGLD(chains=2, epochs=6, burn_in=2, batch_size=16, rate=1e-3, noise=0.3),
    coset.SGHMC(chains=2, epochs=6, burn_in=2, batch_size=16, rate=1e-3, noise=0.3),
    coset.SGHMC(
        chains=2, epochs=6, burn_in=1, batch_size=16, rate=1e-3, schedule="cyclical", cycles=2, noise=0.3
    ),
    coset.HMC(chains=2, draws=3, warm_up=22, steps=2, mass="diagonal", noise=0.3),
]  # fmt: skip


@pytest.fixture
def split() -> Split:
    inputs = torch.linspace(-2, 2, 40)[:, None]
    return Split(inputs, torch.sin(inputs))


def make() -> nn.Module:
    return nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1))


def same(a: coset.Ensemble, b: coset.Ensemble) -> bool:
    return all(torch.equal(a.population[name], x) for name, x in b.population.items())


def stop(epoch: Epoch, left: int = 2) -> None:
    if epoch.epoch == epoch.epochs - left:
        raise KeyboardInterrupt


@pytest.mark.parametrize("left", [2, 4])
@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_stopped_and_resumed(split: Split, tmp_path: Path, method: Method, left: int) -> None:
    (whole,) = coset.fit(make(), split, method)
    with pytest.raises(KeyboardInterrupt):
        coset.fit(
            make(),
            split,
            method,
            out=tmp_path,
            progress=coset.on_epoch(lambda epoch: stop(epoch, left)),
            checkpoint_seconds=0,
        )
    seen: list[Epoch] = []
    (resumed,) = coset.fit(make(), split, method, out=tmp_path, progress=coset.on_epoch(seen.append))
    assert seen[0].epoch == method.epochs - left + 1 and same(resumed, whole)
    (read,) = coset.fit(make(), split, method, out=tmp_path)
    assert same(read, whole) and read.noise == pytest.approx(0.3)


@pytest.mark.parametrize("method", METHODS[1:], ids=lambda method: type(method).__name__)
def test_draws_are_ordered_by_chain(split: Split, tmp_path: Path, method: Method) -> None:
    (q,) = coset.fit(make(), split, method, out=tmp_path)
    parts = [coset.load(tmp_path / f"replica-0/copy-{c}/solution.safetensors") for c in (0, 1)]
    assert isinstance(q, coset.Ensemble) and all(isinstance(part, coset.Ensemble) for part in parts)
    for name, x in q.population.items():
        assert torch.equal(x, torch.cat([part.population[name] for part in parts]))
    assert not torch.equal(q.population["0.bias"][0], q.population["0.bias"][1])


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_one_chain(split: Split, method: Method) -> None:
    single = type(method)(**{**vars(method), "chains": 1})
    (q,) = coset.fit(make(), split, single)
    (both,) = coset.fit(make(), split, method)
    assert 2 * len(q) == len(both)


def test_fewer_replicas_than_were_begun(split: Split, tmp_path: Path) -> None:
    """A checkpoint is of all networks that were trained together, so all of them go on."""
    method = METHODS[0]
    with pytest.raises(KeyboardInterrupt):
        coset.fit(make(), split, method, replicas=2, out=tmp_path, progress=coset.on_epoch(stop), checkpoint_seconds=0)
    (first,) = coset.fit(make(), split, method, out=tmp_path)
    whole = coset.fit(make(), split, method, replicas=2)
    assert same(first, whole[0])
    assert same(coset.fit(make(), split, method, replicas=2, out=tmp_path)[1], whole[1])


def test_killed_while_solutions_are_written(split: Split, tmp_path: Path) -> None:
    """The last chain is there, the first and the checkpoint are as before."""
    method = METHODS[0]
    with pytest.raises(KeyboardInterrupt):
        coset.fit(make(), split, method, out=tmp_path, progress=coset.on_epoch(stop), checkpoint_seconds=0)
    (whole,) = coset.fit(make(), split, method)
    half = {name: x[len(whole) // 2 :] for name, x in whole.population.items()}
    coset.Ensemble(half, noise=whole.noise).save(tmp_path / "replica-0/copy-1/solution.safetensors")
    assert same(coset.fit(make(), split, method, out=tmp_path)[0], whole)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_norms_and_dropout_run_as_in_evaluation(split: Split, method: Method) -> None:
    net = nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
    (q,) = coset.fit(net, split, method)
    assert (q.population["1.num_batches_tracked"] == 0).all() and (q.population["1.running_var"] == 1).all()


def test_tied_weights_stay_tied() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))
    net[2].weight = net[0].weight
    split = Split(torch.randn(10, 2), torch.arange(10) % 2)
    (q,) = coset.fit(net, split, coset.HMC(chains=2, draws=2, warm_up=1, steps=2))
    assert q.population["0.weight"] is q.population["2.weight"] and q.noise is None


def test_a_population_of_draws_is_what_its_draws_are_one_by_one() -> None:
    """Also frozen parameters, buffers, and tied names, which are one object."""
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3), nn.Linear(3, 2))
    model[2].weight = model[0].weight
    model[3].weight.requires_grad_(False)  # type: ignore[union-attr]
    network = Network(model)
    draws = torch.randn(4, network.size, generator=torch.Generator().manual_seed(0))
    found, expected = network.state(draws), stack([network.state(draw) for draw in draws])
    assert list(found) == list(expected)
    assert all(torch.equal(x, expected[name]) for name, x in found.items())
    assert found["2.weight"] is found["0.weight"] and found["1.running_mean"] is not found["1.bias"]
    assert all(x.is_contiguous() for x in found.values())
