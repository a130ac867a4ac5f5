"""Kinds of solutions within others, and overlaps where little can be told."""

import math

import pytest
import torch
from torch import nn

import coset
from coset import Symmetry, symmetry, zoo
from coset.core import state as states
from coset.core.errors import CosetError, SymmetryError
from coset.solutions.orbit_map import flat_gaussian
from coset.solutions.overlap_estimators import log_densities, nearest


def posterior(name: str, spread: float = 1.0, std: float = 0.5) -> tuple[nn.Module, coset.Gaussian, Symmetry]:
    net = zoo.build(name)
    generator = torch.Generator().manual_seed(0)
    mean = {
        n: spread * torch.randn(x.shape, dtype=torch.float64, generator=generator) for n, x in net.state_dict().items()
    }
    q = coset.Gaussian(mean, {n: torch.full_like(x, std) for n, x in mean.items()})
    return net.double(), q, symmetry(zoo.build(name), zoo.example_input(zoo.build(name), 2))


def test_a_symmetrized_part_of_a_mixture_has_its_own_density() -> None:
    _, q, sym = posterior("mlp:2-4-1")
    both, far = coset.Symmetrized(q, sym), coset.Dirac(q.mean)
    mixture = coset.Mixture([both, coset.Gaussian(far.mean, {n: 3 * s for n, s in q.std.items()})], [0.3, 0.7])
    shifted = sym.act(sym.random(torch.Generator().manual_seed(1)), q.mean)
    parts = [math.log(w) + part.log_prob(shifted) for w, part in zip(mixture.weights, mixture.parts, strict=True)]
    assert float(mixture.log_prob(shifted)) == pytest.approx(float(torch.stack(parts).logsumexp(0)), abs=1e-9)
    assert float(both.log_prob(shifted)) > float(q.log_prob(shifted)) + 1
    alone = coset.Mixture([both])
    entropy = float(alone.entropy(500, torch.Generator().manual_seed(0)))
    assert entropy == pytest.approx(float(both.entropy()), abs=0.6)
    assert entropy > float(q.entropy()) + 1
    assert coset.Mixture([coset.Symmetrized(far, sym)]).is_random


def test_predictions_of_symmetrized_parts_are_those_of_what_they_are_made_of() -> None:
    net, q, sym = posterior("mlp:2-4-3")
    x = torch.randn(5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    inner = coset.Mixture([q, coset.Dirac(q.mean)])
    nested = coset.Mixture([coset.Symmetrized(coset.Symmetrized(inner, sym), sym), q], [0.5, 0.5])
    plain = coset.Mixture([inner, q], [0.5, 0.5])
    assert torch.equal(coset.predict(nested, net, x, samples=8), coset.predict(plain, net, x, samples=8))


def test_distance_of_a_point_and_a_symmetrized_solution() -> None:
    _, q, sym = posterior("mlp:2-4-1")
    both = coset.Symmetrized(q, sym)
    point = coset.Dirac({n: torch.ones_like(x) for n, x in q.mean.items()})
    draws = both.sample(40000, torch.Generator().manual_seed(0))
    squares = torch.stack([(x - 1).square().flatten(1).sum(1) for x in draws.values()]).sum(0)
    result = float(coset.wasserstein(point, both)) ** 2
    assert result == pytest.approx(float(squares.mean()), abs=4 * float(squares.std()) / 200)
    assert float(coset.wasserstein(coset.Mixture([both, point]), point)) ** 2 == pytest.approx(result / 2)


def test_fixed_and_foreign_coordinates_of_a_symmetrized_density() -> None:
    """A tensor that nothing moves may be fixed in part, and may be unknown to the symmetry."""
    _, q, sym = posterior("mlp:2-4-1")
    mean = {**q.mean, "extra": torch.zeros(3, dtype=torch.float64)}
    spread = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)
    wide = coset.Symmetrized(coset.Gaussian(mean, {**q.std, "extra": spread}), sym)
    state = {**q.mean, "extra": torch.tensor([0.0, 0.5, -1.0], dtype=torch.float64)}
    extra = torch.distributions.Normal(0.0, spread[1:]).log_prob(state["extra"][1:]).sum()
    narrow = coset.Symmetrized(q, sym).log_prob(q.mean)
    assert float(wide.log_prob(state)) == pytest.approx(float(narrow + extra), abs=1e-9)
    state["extra"] = torch.ones(3, dtype=torch.float64)
    assert float(wide.log_prob(state)) == -math.inf


def test_without_permutations_symmetrized_is_plain() -> None:
    _, q, sym = posterior("mlp:2-1-1")
    both = coset.Symmetrized(q, sym)
    assert float(both.log_prob(q.mean)) == pytest.approx(float(q.log_prob(q.mean)))
    with pytest.raises(CosetError, match="no permutations"):
        coset.overlap(q, sym)


def test_rescaled_symmetrized_solutions_are_refused() -> None:
    _, q, sym = posterior("mlp:2-4-1")
    g = sym.random(torch.Generator().manual_seed(0), scalings=True)
    assert g.scales
    with pytest.raises(SymmetryError, match="act on the solution it is made of"):
        sym.act(g, coset.Symmetrized(q, sym))


@pytest.mark.parametrize("std", [1e-8, 0.5, 1e4])
@pytest.mark.parametrize("entropy", ["infonce", "importance", "bethe", "exact"])
def test_overlap_at_all_widths(entropy: str, std: float) -> None:
    _, q, sym = posterior("mlp:2-4-3-1", std=std)
    result = coset.overlap(q, sym, entropy, samples=8, elements=4)  # type: ignore[arg-type]
    assert 0 <= result.lower <= result.information <= result.upper <= result.log_order + 1e-9
    assert math.isfinite(result.error) and result.sentence
    if std == 1e-8 and entropy in ("importance", "exact"):
        assert result.index < 1e-9


def test_information_lies_between_its_bounds_where_draws_fit_badly() -> None:
    """Two wide layers that are told apart only together: the upper bound says nothing, and must not be the answer."""
    _, q, sym = posterior("mlp:1-30-30-1", spread=0.4, std=0.1)
    result = coset.overlap(q, sym, samples=4, elements=3)
    assert result.upper == result.log_order and result.lower < result.log_order - 1
    assert result.information == pytest.approx((result.lower + result.upper) / 2)


def test_overlap_needs_elements() -> None:
    _, q, sym = posterior("mlp:2-4-1")
    with pytest.raises(CosetError, match="two elements or more, not 1"):
        coset.overlap(q, sym, elements=1)


@pytest.mark.parametrize("name", ["mlp:3-20-2", "mlp:2-12-12-2"])
def test_nearest_image_finds_the_way_back(name: str) -> None:
    _, q, sym = posterior(name, std=0.1)
    v = flat_gaussian(q, sym)
    mean, std = v.mean.unsqueeze(0), v.std.unsqueeze(0)
    generator = torch.Generator().manual_seed(0)
    w = v.sample(1, generator)
    shifted = torch.gather(w, 1, v.orbit.index(v.orbit.uniform((1,), generator)))
    assert torch.equal(nearest(v.orbit, shifted, mean, std), w) and torch.equal(nearest(v.orbit, w, mean, std), w)
    assert float(log_densities(shifted, mean, std)) < float(log_densities(w, mean, std))


def test_density_is_no_less_than_that_of_the_nearest_image() -> None:
    """Draws alone miss it by two thousand nats here."""
    _, q, sym = posterior("mlp:1-30-30-1", spread=0.4, std=0.1)
    both = coset.Symmetrized(q, sym)
    state = states.unstack(q.sample(1, torch.Generator().manual_seed(1)))[0]
    low = float(q.log_prob(state)) - sym.log_order
    for image in (state, sym.act(sym.random(torch.Generator().manual_seed(2)), state)):
        assert low - 1e-9 <= float(both.log_prob(image)) < low + 10
