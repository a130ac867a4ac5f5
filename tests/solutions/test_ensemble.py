"""Ensembles against counting, and against the mixture of their Diracs."""

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

import coset
from coset.core import state as states
from coset.core.errors import StateError

laws = settings(max_examples=25, deadline=None)


def of(values: list[tuple[int, int]]) -> coset.Ensemble:
    """Members whose two tensors hold these numbers."""
    return coset.Ensemble([{"w": torch.full((2,), float(x)), "v": torch.tensor(float(y))} for x, y in values])


pairs = st.lists(st.tuples(st.integers(-1, 1), st.integers(0, 1)), min_size=1, max_size=8)


@laws
@given(pairs)
def test_log_prob_and_entropy_count_members(values: list[tuple[int, int]]) -> None:
    q, shares = of(values), {pair: n / len(values) for pair, n in Counter(values).items()}
    for (x, y), share in shares.items():
        state = {"w": torch.full((2,), float(x)), "v": torch.tensor(float(y))}
        assert q.log_prob(state).item() == pytest.approx(math.log(share))
    assert q.entropy().item() == pytest.approx(-sum(p * math.log(p) for p in shares.values()), abs=1e-12)
    assert q.log_prob({"w": torch.tensor([1.0, 0.5]), "v": torch.tensor(0.0)}) == -math.inf
    assert q.mean["v"].item() == pytest.approx(np.mean([y for _, y in values]))


@laws
@given(pairs)
def test_it_is_the_mixture_of_its_diracs(values: list[tuple[int, int]]) -> None:
    q = of(values)
    mixture = coset.Mixture([component for _, component in q.components()], [w for w, _ in q.components()])
    assert q.entropy().item() == pytest.approx(mixture.entropy().item(), abs=1e-12)
    assert len(q) == len(values) == len(q.members) and all(w == 1 / len(q) for w, _ in q.components())
    assert states.allclose(q.mean, mixture.mean, atol=1e-6)


def test_samples_are_members_alike_often(generator: torch.Generator) -> None:
    q = coset.Ensemble({"w": torch.arange(4.0)[:, None].expand(4, 3)})
    samples = q.sample(8000, generator)["w"]
    assert (samples == samples[:, :1]).all()
    assert torch.allclose(samples[:, 0].long().bincount() / 8000, torch.full((4,), 0.25), atol=0.03)
    assert torch.equal(
        q.sample(5, torch.Generator().manual_seed(1))["w"], q.sample(5, torch.Generator().manual_seed(1))["w"]
    )
    samples.zero_()
    assert q.population["w"][3, 0] == 3


def test_states_and_their_population_are_one(net: nn.Module) -> None:
    members = [states.scale(states.of(net), c) for c in (1.0, 2.0, 3.0)]
    for q in (coset.Ensemble(members), coset.Ensemble(states.stack(members))):
        assert all(states.allclose(a, b) for a, b in zip(q.members, members, strict=True))
        assert states.allclose(q.mean, members[1]) and q.is_random and repr(q) == "Ensemble(9 tensors, 64 coordinates)"


def test_push_moves_each_member(net: nn.Module) -> None:
    sym = coset.symmetry(net, (torch.randn(4, 3),))
    g = sym.random(torch.Generator().manual_seed(1), scalings=True)
    q = coset.Ensemble([states.scale(states.of(net), c) for c in (1.0, 2.0, 3.0)])
    for member, image in zip(q.members, sym.act(g, q).members, strict=True):
        assert states.allclose(sym.act(g, member), image)


def test_files(net: nn.Module, tmp_path: Path) -> None:
    q = coset.Ensemble([states.scale(states.of(net), c) for c in (1.0, 2.0, 2.0)])
    q.save(tmp_path / "q.safetensors")
    result = coset.load(tmp_path / "q.safetensors")
    assert isinstance(result, coset.Ensemble) and result.entropy() == q.entropy()
    assert states.allclose(result.population, q.population, rtol=0, atol=0)
    coset.Mixture([q, coset.Dirac(q.members[0])]).save(tmp_path / "m.safetensors")
    mixture = coset.load(tmp_path / "m.safetensors")
    assert mixture.entropy().item() == pytest.approx(-sum(p * math.log(p) for p in (4 / 6, 2 / 6)))


def test_ties_hold(tmp_path: Path) -> None:
    tied = [{"a": x, "b": x} for x in (torch.ones(2), torch.zeros(2))]
    coset.Ensemble(tied).save(tmp_path / "q.safetensors")
    q = coset.load(tmp_path / "q.safetensors")
    assert isinstance(q, coset.Ensemble) and all(member["a"] is member["b"] for member in q.members)
    assert repr(q) == "Ensemble(2 tensors, 2 coordinates)"


def test_integers_are_no_coordinates() -> None:
    q = coset.Ensemble([{"w": torch.zeros(1), "n": torch.tensor(k)} for k in range(2)])
    assert q.entropy() == 0 and q.log_prob({"w": torch.zeros(1), "n": torch.tensor(5)}) == 0


def test_signed_zeros_complex_and_empty_tensors() -> None:
    def member(zero: float) -> dict[str, Tensor]:
        return {
            "w": torch.tensor([zero, 1.0]),
            "c": torch.full((2,), 1j),
            "e": torch.zeros(0),
            "h": torch.ones(2).half(),
        }

    q = coset.Ensemble([member(0.0), member(-0.0)])
    assert q.entropy() == 0 and q.log_prob(member(0.0)) == 0


def test_refusals() -> None:
    with pytest.raises(StateError, match="at least one"):
        coset.Ensemble([])
    with pytest.raises(StateError, match="at least one member, and this population is empty"):
        coset.Ensemble({"w": torch.zeros(0, 3)})
    with pytest.raises(StateError, match="'w' has no dimensions, so this is a state"):
        coset.Ensemble({"w": torch.tensor(1.0)})
    with pytest.raises(StateError, match=r"'w' in member 2 of the ensemble has shape \(3,\)"):
        coset.Ensemble([{"w": torch.zeros(2)}, {"w": torch.zeros(3)}])
    with pytest.raises(StateError, match="'w' in the population has 1 NaN"):
        coset.Ensemble({"w": torch.tensor([0.0, math.nan])})
