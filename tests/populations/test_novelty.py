"""Nearest networks modulo symmetry against all permutations, and what is said about copies."""

from __future__ import annotations

import functools
import itertools
import json
import math

import pytest
import torch
from hypothesis import given as for_all, settings, strategies as st
from torch import Tensor, nn

import coset
from coset import zoo
from coset.core import state as states
from coset.populations import nearest_networks as search
from coset.populations.nearest_networks import nearest, trained, unit_vectors
from coset.populations.novelty import Novelty, midpoints, novelty

State = dict[str, Tensor]
law = settings(deadline=None, derandomize=True, max_examples=15)


class Branches(nn.Module):
    """Two hidden layers side by side: no weight joins their units."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(3, 4), nn.Linear(3, 3), nn.Linear(7, 2)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(torch.cat([self.one(x).relu(), self.two(x).tanh()], -1))
        return result


NETS = {
    "shallow": lambda: zoo.MLP([3, 4, 2]),
    "gelu": lambda: zoo.MLP([3, 4, 2], "gelu"),
    "tanh": lambda: zoo.MLP([3, 4, 2], "tanh"),
    "no bias": lambda: zoo.MLP([3, 4, 2], bias=False),
    "branches": Branches,
    "deep": lambda: zoo.MLP([3, 4, 3, 2]),
}


@functools.cache
def network(name: str) -> tuple[nn.Module, coset.Symmetry]:
    torch.manual_seed(0)
    model = NETS[name]().double()
    return model, coset.symmetry(model, (torch.randn(5, 3, dtype=torch.float64),))


def population(model: nn.Module, n: int, seed: int) -> State:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(n, *x.shape, generator=generator, dtype=x.dtype) for name, x in states.of(model).items()}


def all_distances(queries: State, training: State, sym: coset.Symmetry) -> Tensor:
    """[n, m] by trying every permutation of every group."""
    orders = [itertools.permutations(range(group.size)) for group in sym.groups]
    tables = list(itertools.product(*orders))
    names = [group.name for group in sym.groups]
    element = sym.element({name: torch.tensor([row[k] for row in tables]) for k, name in enumerate(names)})
    queries, training = (coset.canonicalize(one, sym).state for one in (queries, training))
    columns = []
    for one in states.unstack(training):
        image = sym.act(element, one)
        parts = [(queries[name][:, None] - image[name]).flatten(2).square().sum(2) for name in trained(one, sym)]
        columns.append(torch.stack(parts).sum(0).amin(1).sqrt())
    return torch.stack(columns, 1)


@pytest.mark.parametrize("entries", [search.ENTRIES, 500])
@pytest.mark.parametrize("name", ["shallow", "gelu", "tanh", "no bias", "branches"])
def test_branch_and_bound_is_exact(name: str, entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "ENTRIES", entries)
    monkeypatch.setattr(search, "COORDINATES", 30 * entries)
    model, sym = network(name)
    queries, training = population(model, 20, 1), population(model, 60, 2)
    expected = all_distances(queries, training, sym).min(1)
    result = nearest(queries, training, sym)
    assert result.exact == (name not in ("tanh", "branches"))  # whose signs are free, and not searched
    assert torch.allclose(result.distance, expected.values)
    assert torch.equal(result.index, expected.indices)


def test_few_assignments_are_solved(monkeypatch: pytest.MonkeyPatch) -> None:
    model, sym = network("shallow")
    queries, training = population(model, 20, 1), population(model, 2000, 2)
    solved, solve_many = [], search.solve_many

    def counting(costs: Tensor, maximize: bool) -> object:
        solved.append(len(costs))
        return solve_many(costs, maximize)

    monkeypatch.setattr(search, "solve_many", counting)
    nearest(queries, training, sym)
    assert sum(solved) < 0.01 * 20 * 2000


@law
@for_all(st.sampled_from(["shallow", "branches", "deep"]), st.integers(0, 10**6))
def test_bounds_hold_and_are_tight_if_exact(name: str, seed: int) -> None:
    model, sym = network(name)
    a, b = (coset.canonicalize(population(model, 3, seed + k), sym).state for k in range(2))
    mine, theirs = unit_vectors(a, sym), unit_vectors(b, sym)
    costs = search._Costs(mine, theirs)
    i, j = (x.flatten() for x in torch.meshgrid(torch.arange(3), torch.arange(3), indexing="ij"))
    solved = costs.solve(i, j).reshape(3, 3)
    expected = all_distances(a, b, sym).square()
    assert bool((costs.bound <= solved + 1e-9).all())
    assert bool((solved <= expected + 1e-9).all())
    assert mine.exact == (name != "deep")
    if mine.exact:
        assert torch.allclose(solved, expected)


@law
@for_all(st.sampled_from(["shallow", "tanh", "branches", "deep"]), st.integers(0, 10**6))
def test_equivalent_networks_are_as_far(name: str, seed: int) -> None:
    model, sym = network(name)
    queries, training = population(model, 4, 1), population(model, 9, 2)
    generator = torch.Generator().manual_seed(seed)
    image = sym.act(sym.random(generator, batch=4, scalings=True), queries)
    others = sym.act(sym.random(generator, batch=9, scalings=True), training)
    result, again = nearest(queries, training, sym), nearest(image, others, sym)
    assert torch.allclose(result.distance, again.distance)
    assert torch.equal(result.index, again.index)


@pytest.mark.parametrize("candidates", [1, 10, 60])
def test_deep_networks_are_never_below_the_truth(candidates: int) -> None:
    model, sym = network("deep")
    queries, training = population(model, 20, 1), population(model, 60, 2)
    expected = all_distances(queries, training, sym)
    result = nearest(queries, training, sym, candidates=candidates)
    assert not result.exact
    assert bool((result.distance >= expected.gather(1, result.index[:, None])[:, 0] - 1e-9).all())
    assert bool((result.distance >= expected.amin(1) - 1e-9).all())
    excess = result.distance / expected.amin(1) - 1
    assert float(excess.mean()) < {1: 0.1, 10: 0.01, 60: 0.01}[candidates]


@pytest.mark.parametrize("name", ["shallow", "deep"])
def test_left_out_networks(name: str) -> None:
    model, sym = network(name)
    training = population(model, 12, 3)
    result = nearest(training, training, sym, apart=torch.arange(12))
    expected = all_distances(training, training, sym).fill_diagonal_(math.inf).amin(1)
    assert bool((result.index != torch.arange(12)).all())
    assert bool((result.distance >= expected - 1e-9).all())
    if result.exact:
        assert torch.allclose(result.distance, expected)
    itself = nearest(training, training, sym)
    assert torch.equal(itself.index, torch.arange(12)) and float(itself.distance.max()) < 1e-9
    mixed = nearest(training, training, sym, apart=torch.tensor([0] + [-1] * 11))
    assert mixed.index[0] != 0 and torch.equal(mixed.index[1:], torch.arange(1, 12))


def test_batch_norm_buffers_and_attention() -> None:
    """Any symmetry is searched; buffers move with their units but are no part of the distance."""
    torch.manual_seed(0)
    nets: list[tuple[nn.Module, Tensor]] = [
        (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(5, 3)),
        (zoo.ViT(dim=8, depth=1, heads=2, patch=4, image_size=8, classes=3), torch.randn(2, 3, 8, 8)),
    ]
    for model, inputs in nets:
        sym = coset.symmetry(model.eval(), (inputs,))
        training = states.stack(
            [{n: x + 0.1 * torch.rand_like(x) if x.is_floating_point() else x for n, x in states.of(model).items()}] * 2
            + [states.of(model)]
        )
        copies = sym.act(sym.random(torch.Generator().manual_seed(0), batch=3, scalings=True), training)
        result = nearest(copies, training, sym)
        assert result.index[2] == 2
        assert float(result.distance.max()) < 1e-3


def planted(name: str, with_model: bool = True) -> tuple[Novelty, State, State]:
    """Five moved copies among twenty new networks."""
    model, sym = network(name)
    training, fresh = population(model, 80, 2), population(model, 60, 4)
    copies = {n: x[[3, 14, 15, 9, 26]] for n, x in training.items()}
    copies = sym.act(sym.random(torch.Generator().manual_seed(5), batch=5, scalings=True), copies)
    samples = {n: torch.cat([x, population(model, 15, 6)[n]]) for n, x in copies.items()}
    generator = torch.Generator().manual_seed(7)
    data = (
        torch.randn(100, 3, generator=generator, dtype=torch.float64),
        torch.randint(2, (100,), generator=generator),
    )
    options = {"model": model, "data": data} if with_model else {}
    return novelty(samples, training, sym, fresh=fresh, noise=1e-3, count=30, **options), samples, training  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["shallow", "deep"])
def test_planted_copies_are_found(name: str) -> None:
    result, _, _ = planted(name)
    one = result.kinds["samples"]
    assert one.index[:5].tolist() == [3, 14, 15, 9, 26]
    assert float(one.distance[:5].max()) < 1e-9
    assert float(one.distance[5:].min()) > 0.1
    assert result.memorised is not None and result.memorised >= 0.25
    fresh = result.kinds["fresh"].distance
    limit = torch.quantile(fresh, 0.01)
    assert result.memorised == float((one.distance < limit).double().mean())
    assert one.agreement is not None and one.agreement[:5].tolist() == [1.0] * 5
    assert {kind: len(x.distance) for kind, x in result.kinds.items()} == {
        "samples": 20,
        "fresh": 60,
        "among": 30,
        "midpoints": 30,
        "noisy": 30,
    }


def test_baselines() -> None:
    result, _, training = planted("shallow")
    _, sym = network("shallow")
    kinds = {kind: x.distances for kind, x in result.kinds.items()}
    # |noise * rms * z| over all tensors has the size of noise * |v|; canonical directions are brought back to norm one.
    size = float(sum(x.square().sum() for x in coset.canonicalize(training, sym).state.values()) / 80) ** 0.5
    assert 0.3 < kinds["noisy"].mean / (1e-3 * size) < 1.1
    assert kinds["noisy"].mean < kinds["midpoints"].mean < kinds["among"].mean
    assert 0.8 < kinds["among"].mean / kinds["fresh"].mean < 1.25
    among = result.kinds["among"]
    exact = all_distances(training, training, sym).fill_diagonal_(math.inf).amin(1)
    assert all(bool(torch.isclose(exact, d).any()) for d in among.distance)


def test_midpoints_are_of_aligned_networks() -> None:
    model, sym = network("shallow")
    training = population(model, 6, 2)
    pairs = torch.tensor([[0, 1], [4, 2]])
    result = states.unstack(midpoints(training, sym, pairs, torch.device("cpu")))
    members = states.unstack(coset.canonicalize(training, sym).state)
    for one, (i, j) in zip(result, pairs.tolist(), strict=True):
        image = sym.act(coset.align(members[i], members[j], sym).element, members[j])
        assert states.allclose(one, states.lerp(members[i], image, 0.5))


@pytest.mark.parametrize("name", ["shallow", "deep"])
def test_searches_say_how_far_they_are(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "ENTRIES", 300)
    monkeypatch.setattr(search, "COORDINATES", 200)
    model, sym = network(name)
    events: list[tuple[int, int]] = []
    nearest(
        population(model, 2, 1),
        population(model, 30, 2),
        sym,
        progress=lambda event: events.append((event.done, event.total)),
    )
    counts = [each for each, _ in events]
    assert len(counts) > 3 and counts == sorted(set(counts)) and events[-1] == (30, 30)


def test_reports() -> None:
    result, _, _ = planted("shallow")
    lines = result.summary()
    assert len(lines) == 6
    assert lines[0].startswith("20 samples: ") and "overlap by" in lines[0]
    assert lines[-1].startswith(f"{result.memorised:.1%} of the samples")
    record = json.loads(result.to_json())
    assert record["exact"] and record["memorised"] == result.memorised
    assert record["kinds"]["samples"]["distance"]["least"] == pytest.approx(0, abs=1e-9)
    plain, samples, training = planted("deep", with_model=False)
    assert "at most" in plain.summary()[0]
    assert all(x.agreement is None for x in plain.kinds.values())
    _, sym = network("deep")
    alone = novelty(samples, training, sym, count=5)
    assert alone.memorised is None and "fresh" not in alone.kinds and len(alone.summary()) == 4
    again = novelty(samples, training, sym, count=5)
    assert torch.equal(alone.kinds["noisy"].distance, again.kinds["noisy"].distance)


def test_float32_finds_copies_to_its_precision() -> None:
    model, sym = network("shallow")
    training = states.to(population(model, 50, 2), dtype=torch.float32)
    copies = sym.act(sym.random(torch.Generator().manual_seed(5), batch=50, scalings=True), training)
    result = nearest(states.to(copies, dtype=torch.float64), training, sym)
    assert torch.equal(result.index, torch.arange(50))
    assert float(result.distance.max()) < 1e-5


def test_refusals() -> None:
    model, sym = network("shallow")
    samples, training = population(model, 2, 1), population(model, 3, 2)
    with pytest.raises(coset.CosetError, match="both model and data"):
        novelty(samples, training, sym, model)
    with pytest.raises(coset.StateError, match="two training networks"):
        novelty(samples, {name: x[:1] for name, x in training.items()}, sym)
    with pytest.raises(coset.StateError, match=r"'layers\.0\.bias' in the samples"):
        novelty({**samples, "layers.0.bias": samples["layers.0.bias"][:, :2]}, training, sym)
    with pytest.raises(coset.StateError, match="there are no samples"):
        novelty({name: x[:0] for name, x in samples.items()}, training, sym)
    with pytest.raises(coset.StateError, match="to compare with"):
        nearest(samples, {name: x[:0] for name, x in training.items()}, sym)
    with pytest.raises(coset.StateError, match="NaN"):
        nearest({name: x * math.nan for name, x in samples.items()}, training, sym)
