"""Training that begins at given networks."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import coset
from coset.core import state as states
from coset.core.errors import CosetError, StateError
from coset.data import Split

STILL = coset.MAP("sgd", rate=1e-30, weight_decay=0.0, epochs=1, batch_size=16)  # stays where it begins
MOVING = coset.MAP(epochs=3, batch_size=16, rate=0.01)


def points(count: int = 64) -> Split:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 3, generator=generator)
    return Split(x, (x.sum(1) > 0).long())


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def population(count: int, model: nn.Module | None = None) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    own = states.of(model or net())
    return {name: torch.randn(count, *x.shape, generator=generator).to(x.dtype) for name, x in own.items()}


def at(starts: dict[str, Tensor], k: int) -> dict[str, Tensor]:
    return {name: x[k] for name, x in starts.items()}


def test_each_network_begins_at_its_own() -> None:
    starts = population(3)
    found = coset.fit(net(), points(), STILL, replicas=3, starts=starts)
    for k, q in enumerate(found):
        assert all(torch.equal(q.mean[name], x) for name, x in at(starts, k).items())


def test_members_and_chains_take_them_in_turn() -> None:
    starts = population(4)
    a, b = coset.fit(net(), points(), coset.DeepEnsemble(2, STILL), replicas=2, starts=starts)
    assert isinstance(a, coset.Ensemble) and isinstance(b, coset.Ensemble)
    for q, part in ((a, slice(2)), (b, slice(2, 4))):
        assert all(torch.equal(q.population[name], x[part]) for name, x in starts.items())


def test_a_chain_moves_on_from_there() -> None:
    """One short trajectory: near its start, far from fresh weights, and moved."""
    starts = {name: 5 + x for name, x in population(2).items()}
    short = coset.HMC(chains=2, draws=1, warm_up=1, steps=1)
    (q,) = coset.fit(net(), points(), short, starts=starts)
    assert isinstance(q, coset.Ensemble)
    for name, x in starts.items():
        moved = (q.population[name] - x).abs()
        assert 0 < float(moved.max()) < 1


def test_what_is_trained_together_is_what_is_trained_alone() -> None:
    starts = population(2)
    both = coset.fit(net(), points(), MOVING, replicas=2, starts=starts)
    (alone,) = coset.fit(net(), points(), MOVING, starts={name: x[:1] for name, x in starts.items()})
    assert states.allclose(both[0].mean, alone.mean, rtol=1e-4, atol=1e-6)
    assert not states.allclose(both[1].mean, alone.mean, rtol=0.1, atol=0.1)


def test_the_models_own_weights_do_not_count() -> None:
    """Nor need they be such that fresh ones could be drawn."""

    class Odd(nn.Module):
        def __init__(self, seed: int) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(3, 2, generator=torch.Generator().manual_seed(seed)))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.w

    starts = population(1, Odd(0))
    (a,) = coset.fit(Odd(0), points(), MOVING, starts=starts)
    (b,) = coset.fit(Odd(1), points(), MOVING, starts=starts)
    assert torch.equal(a.mean["w"], b.mean["w"])


def test_frozen_parameters_that_differ_stay_with_their_network() -> None:
    model = net()
    model[0].weight.requires_grad_(False)  # type: ignore[union-attr]
    starts = population(2)
    found = coset.fit(model, points(), MOVING, replicas=2, starts=starts)
    for k, q in enumerate(found):
        assert torch.equal(q.mean["0.weight"], starts["0.weight"][k])
        assert not torch.equal(q.mean["2.weight"], starts["2.weight"][k])


def test_statistics_of_norms_are_those_of_the_start() -> None:
    """Chains leave them as they are."""
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2))
    starts = {name: x.abs() for name, x in population(2, model).items()}
    (q,) = coset.fit(model, points(), coset.HMC(chains=2, draws=1, warm_up=1, steps=1), starts=starts)
    assert isinstance(q, coset.Ensemble)
    assert torch.equal(q.population["1.running_var"], starts["1.running_var"])


def test_tied_weights() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.Linear(3, 2))
    model[2].weight = model[0].weight
    starts = population(2, model)
    starts["2.weight"] = starts["0.weight"]
    found = coset.fit(model, points(), STILL, replicas=2, starts=starts)
    assert torch.equal(found[1].mean["2.weight"], starts["0.weight"][1])


def test_starts_are_left_alone() -> None:
    starts = population(2)
    before = {name: x.clone() for name, x in starts.items()}
    coset.fit(net(), points(), MOVING, replicas=2, starts=starts)
    assert all(torch.equal(x, before[name]) for name, x in starts.items())


def test_a_folder_knows_its_starts(tmp_path: Path) -> None:
    starts = population(2)
    found = coset.fit(net(), points(), MOVING, replicas=2, out=tmp_path / "run", starts=starts)
    again = coset.fit(net(), points(), MOVING, replicas=2, out=tmp_path / "run", starts=starts)
    assert torch.equal(found[0].mean["0.weight"], again[0].mean["0.weight"])
    others = {name: x + 1 for name, x in starts.items()}
    for given in (others, None):
        with pytest.raises(CosetError, match="holds a run with another starts"):
            coset.fit(net(), points(), MOVING, replicas=2, out=tmp_path / "run", starts=given)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: {name: y[:1] for name, y in x.items()}, "There are 1 starts for 2 networks: give as many."),
        (lambda x: {name: y for name, y in x.items() if name != "2.bias"}, "Missing '2.bias' in the starts."),
        (lambda x: {**x, "more": torch.zeros(2, 1)}, "Unknown 'more' in the starts."),
        (lambda x: {**x, "2.bias": torch.zeros(2, 3)}, r"has shape \(2, 3\) where \(2, 2\) is expected."),
        (lambda x: {**x, "2.bias": torch.full((2, 2), torch.nan)}, "has 4 NaN or infinite of 4 values."),
        (lambda x: at(x, 0), "A population has one size in all tensors"),
    ],
)
def test_wrong_starts_are_refused(change, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(StateError, match=message):
        coset.fit(net(), points(), MOVING, replicas=2, starts=change(population(2)))
