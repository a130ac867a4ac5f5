"""gelberg2024 Theorem 3.1: the nearest equivalent network by brute force, and the bounds."""

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings, strategies as st
from typer.testing import Result

from coset import zoo
from coset.core import state as states
from coset_papers.gelberg2024 import nearest_mode as theorem


@pytest.mark.parametrize("width", [2, 3, 4, 5, 6])
def test_the_nearest_is_a_swap_of_the_closest_units(width: int) -> None:
    torch.manual_seed(width)
    state = states.of(zoo.build(f"mlp:2-{width}-3").double())
    distances = {}
    for order in itertools.permutations(range(width)):
        image = dict(state)
        for name, axis in (("layers.0.weight", 0), ("layers.0.bias", 0), ("layers.1.weight", 1)):
            image[name] = state[name].index_select(axis, torch.tensor(order))
        distances[order] = float(states.norm(states.sub(image, state)))
    del distances[tuple(range(width))]
    order, least = min(distances.items(), key=lambda item: item[1])
    swapped = [k for k, unit in enumerate(order) if k != unit]
    assert len(swapped) == 2
    result, norms = theorem.nearest(state), theorem.units(state).norm(dim=1)
    assert result.ratio * float(states.norm(state)) == pytest.approx(least, rel=1e-12)
    typical = float(norms.square().mean().sqrt())
    assert result.distance * typical == pytest.approx(least / math.sqrt(2), rel=1e-12)
    assert result.size * typical == pytest.approx(float(norms[swapped].max()), rel=1e-12)


@given(st.integers(1, 6), st.integers(3, 40), st.integers(1, 6), st.floats(0.0, 3.0), st.integers(0, 2**31))
@settings(max_examples=50, deadline=None)
def test_no_network_is_beyond_the_bounds(inputs: int, hidden: int, outputs: int, shift: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    like = states.of(zoo.build(f"mlp:{inputs}-{hidden}-{outputs}"))
    state = {name: torch.randn(x.shape, generator=generator) + shift for name, x in like.items()}
    distance = theorem.nearest(state).ratio
    assert distance <= theorem.pairs_bound(hidden) + 1e-6
    assert theorem.pairs_bound(hidden) < theorem.proof_bound(inputs, hidden, outputs)
    assert theorem.pairs_bound(hidden) < theorem.printed_bound(inputs, hidden, outputs)
    dimensions = sum(x.numel() for x in state.values())
    orders = math.log(math.factorial(hidden))
    assert theorem.proof_bound(inputs, hidden, outputs) == pytest.approx(2 * dimensions / orders)
    # Twice Eq. 11 with d_o / n for 1 / n is what the proof gives.
    given_by_proof = 4 * (inputs + outputs + 1 + outputs / hidden) / math.log(hidden / 2)
    assert theorem.proof_bound(inputs, hidden, outputs) <= given_by_proof


@pytest.mark.parametrize("hidden", [3, 5, 8])
def test_a_simplex_is_as_far_from_its_images_as_can_be(hidden: int) -> None:
    simplex = torch.eye(hidden, dtype=torch.float64) - 1 / hidden
    state = {
        "layers.0.weight": simplex[:, 2:],
        "layers.0.bias": simplex[:, 0],
        "layers.1.weight": simplex[:, 1:2].T,
        "layers.1.bias": torch.zeros(1, dtype=torch.float64),
    }
    assert theorem.nearest(state).ratio == pytest.approx(theorem.pairs_bound(hidden), rel=1e-12)


def test_the_width_from_which_the_theorem_says_something() -> None:
    assert theorem.printed_bound(1, 10**6, 1) < 2
    width = 10 ** theorem.log10_useful_width(20, 10)
    assert theorem.printed_bound(20, round(width), 10) == pytest.approx(2)
    assert theorem.log10_useful_width(784, 10) == pytest.approx(345.6, abs=0.1)


def test_smoke(reproduce: Callable[..., Result], tmp_path: Path) -> None:
    words = ("gelberg2024/theorem31", "--out", tmp_path, "--json")
    result = reproduce(*words)
    assert result.exit_code == 0, result.stderr
    record = json.loads(result.stdout)
    assert [claim["holds"] for claim in record["claims"]] == [True, True, None]
    trained = record["data"]["series"]["trained on digits, weight decay 0.0005"]
    assert trained[-1]["accuracy"][0] > 0.8
    assert (tmp_path / "gelberg2024-theorem31-smoke.png").stat().st_size > 10_000
    again = json.loads(reproduce(*words).stdout)
    assert again["data"] == record["data"] and again["claims"] == record["claims"]
