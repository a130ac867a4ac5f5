"""Divergences, disagreement and the overlap of mistakes against loops over networks and examples."""

from __future__ import annotations

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
from coset.populations import diversity as divergences, mistake_overlap as agreements, population_outputs as chunks
from coset.populations.diversity import diversity
from coset.populations.mistake_overlap import agreement, mistakes, overlaps
from coset.populations.pair_barriers import draw_pairs


def population(model: nn.Module, n: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(n, *x.shape, generator=generator) for name, x in states.of(model).items()}


def entropy(p: list[float]) -> float:
    return -sum(x * math.log(x) for x in p if x > 0)


def mean(*ps: list[float]) -> list[float]:
    return [sum(x) / len(ps) for x in zip(*ps, strict=True)]


def test_all_pairs_by_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "ENTRIES", 200)
    monkeypatch.setattr(divergences, "ENTRIES", 100)
    model = zoo.MLP([4, 6, 3])
    networks, inputs, targets = population(model, 5), torch.randn(30, 4), torch.randint(3, (30,))
    probs = [coset.predict(one, model, inputs).exp().tolist() for one in states.unstack(networks)]
    pairs = list(itertools.combinations(range(5), 2))
    apart = [
        entropy(mean(probs[i][x], probs[j][x])) - (entropy(probs[i][x]) + entropy(probs[j][x])) / 2
        for i, j in pairs
        for x in range(30)
    ]
    whole = [entropy(mean(*(p[x] for p in probs))) - sum(entropy(p[x]) for p in probs) / 5 for x in range(30)]
    guess = [[max(range(3), key=row.__getitem__) for row in p] for p in probs]
    result = diversity(networks, model, (inputs, targets))
    assert result.pairs == 10 and result.pairwise_error == 0
    assert result.pairwise == pytest.approx(sum(apart) / len(apart), rel=1e-5)
    assert result.whole == pytest.approx(sum(whole) / 30, rel=1e-5)
    unlike = sum(guess[i][x] != guess[j][x] for i, j in pairs for x in range(30)) / 300
    assert result.disagreement == pytest.approx(unlike)
    assert json.loads(result.to_json())["pairs"] == 10


def test_random_pairs_estimate_all() -> None:
    model = zoo.MLP([4, 6, 3])
    networks, data = population(model, 40), (torch.randn(50, 4), torch.randint(3, (50,)))
    complete, some_pairs = diversity(networks, model, data), diversity(networks, model, data, pairs=200, seed=3)
    assert (complete.pairs, some_pairs.pairs) == (780, 200)
    assert 0 < abs(some_pairs.pairwise - complete.pairwise) < 4 * some_pairs.pairwise_error < 0.1
    assert 0 < abs(some_pairs.disagreement - complete.disagreement) < 4 * some_pairs.disagreement_error < 0.2


def test_extremes() -> None:
    """Copies do not differ; two certain networks that contradict each other are log 2 apart."""
    model = nn.Linear(1, 2, bias=False)
    data = torch.ones(4, 1), torch.zeros(4, dtype=torch.long)
    same = diversity({"weight": torch.randn(1, 2, 1).expand(3, 2, 1)}, model, data)
    assert (same.pairwise, same.whole, same.disagreement) == (0, pytest.approx(0, abs=1e-12), 0)
    certain = torch.tensor([[[100.0], [-100.0]], [[-100.0], [100.0]]])
    result = diversity({"weight": certain}, model, data)
    assert (result.pairwise, result.whole) == (pytest.approx(math.log(2)), pytest.approx(math.log(2)))
    assert result.disagreement == 1
    near = {"weight": torch.tensor([[[1.0], [0.0]], [[1.0001], [0.0]]])}
    # To second order, JSD = p (1 - p) d^2 / 8 for logits d apart.
    p = 1 / (1 + math.e)
    assert diversity(near, model, data).pairwise == pytest.approx(p * (1 - p) * 1e-8 / 8, rel=1e-2)


def test_mistakes_and_their_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreements, "ROWS", 2)
    model = zoo.MLP([4, 6, 3])
    networks, data = population(model, 5), (torch.randn(30, 4), torch.randint(3, (30,)))
    wrong = mistakes(networks, model, data)
    sets = [
        {x for x in range(30) if int(coset.predict(one, model, data[0])[x].argmax()) != int(data[1][x])}
        for one in states.unstack(networks)
    ]
    assert [set(row.nonzero().flatten().tolist()) for row in wrong] == sets
    others = [max(len(a & b) / len(a | b) for j, b in enumerate(sets) if j != i) for i, a in enumerate(sets)]
    assert agreement(wrong, wrong, torch.arange(5)).tolist() == pytest.approx(others)
    assert agreement(wrong, wrong).tolist() == [1.0] * 5
    apart = torch.tensor([-1, -1, 2, -1, -1])
    assert agreement(wrong, wrong, apart)[2] == pytest.approx(others[2])
    progress: list[tuple[int, int]] = []
    result = overlaps(
        networks,
        networks,
        model,
        data,
        torch.arange(5),
        progress=lambda event: progress.append((event.done, event.total)),
    )
    assert result.tolist() == pytest.approx(others) and progress == [(2, 5), (4, 5), (5, 5)]
    assert overlaps(networks, networks, model, data, apart).tolist() == pytest.approx([1.0, 1.0, others[2], 1.0, 1.0])


def test_networks_without_mistakes_agree() -> None:
    none, some = torch.zeros(1, 6, dtype=torch.bool), torch.tensor([[True, False, False, True, True, False]])
    assert agreement(none, none).tolist() == [1.0]
    assert agreement(none, some).tolist() == [0.0]


@settings(deadline=None, derandomize=True)
@for_all(st.integers(2, 30), st.integers(1, 60), st.integers(0, 99))
def test_pairs_are_of_different_members(n: int, count: int, seed: int) -> None:
    result = draw_pairs(n, count, seed)
    assert len(result) == min(count, n * (n - 1) // 2)
    assert bool((result[:, 0] != result[:, 1]).all())
    assert int(result.min()) >= 0 and int(result.max()) < n
    assert torch.equal(result, draw_pairs(n, count, seed))


def test_refusals() -> None:
    model = zoo.MLP([4, 3])
    networks, inputs = population(model, 2), torch.randn(3, 4)
    with pytest.raises(coset.DataError, match="values"):
        diversity(networks, model, (inputs, torch.randn(3, 3)))
    with pytest.raises(coset.DataError, match="values"):
        mistakes(networks, model, (inputs, torch.randn(3, 3)))
    with pytest.raises(coset.CosetError, match="pairs of 1 networks"):
        diversity({name: x[:1] for name, x in networks.items()}, model, (inputs, torch.zeros(3, dtype=torch.long)))
