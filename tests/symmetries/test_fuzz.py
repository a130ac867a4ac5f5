"""Random small models: whatever they compute, what is inferred holds for other calls, too, and few are refused."""

from __future__ import annotations

import json

import pytest
import torch
from fuzz_grammar import Spec, build, draw
from fuzz_models import TOLERANCE, Result, deviations, run, summary
from oracle import randomise

import coset

EACH = 10
MOST_REFUSED = 0.03


def examined(first: int, count: int) -> list[Result]:
    return [run((seed, False, True)) for seed in range(first, first + count)]


def bad(results: list[Result]) -> list[str]:
    return [f"seed {one.seed}: {one.detail}" for one in results if one.outcome in ("wrong", "error")]


@pytest.mark.parametrize("first", range(0, 100, EACH))
def test_random_models(first: int) -> None:
    results = examined(first, EACH)
    assert bad(results) == []
    assert sum(one.outcome == "refused" for one in results) <= 1, summary(results, 0)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 5100, 50))
def test_more_random_models(first: int) -> None:
    results = examined(first, 50)
    assert bad(results) == []
    assert sum(one.outcome == "refused" for one in results) <= 1 + MOST_REFUSED * len(results), summary(results, 0)


def test_a_wrong_group_is_seen() -> None:
    """Hidden units that move in the first layer only."""
    program, args = build(Spec("features", (("hidden_layer", 1),), ("one head", 0)))
    randomise(program)
    group = coset.symmetry(program, args).groups[0]
    (tensor, axis), size = group.members[0], group.size
    sizes = program.state_dict()[tensor].shape
    axes = [group.name if d == axis else n for d, n in enumerate(sizes)]
    text = json.dumps({"groups": {group.name: size}, "tensors": {tensor: axes}})
    for sym, wrong in ((coset.symmetry(program, args), False), (coset.Symmetry.from_json(text), True)):
        assert any(deviation > TOLERANCE for _, deviation in deviations(program, args, sym)) is wrong


def test_seeds_are_reproducible() -> None:
    assert draw(3) == draw(3) != draw(4)
    (a, x), (b, y) = build(draw(3)), build(draw(3))
    assert a.labels == b.labels and torch.equal(x[0], y[0])
