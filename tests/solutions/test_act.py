"""`sym.act` gives what it got: a state, the state of a module, a solution of the same class, a population."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import coset
from coset import state as states, zoo

MODEL = zoo.build("mlp:4-6-3")
SYM = coset.symmetry(MODEL, torch.randn(2, 4, generator=torch.Generator().manual_seed(0)))
STATE = states.of(MODEL)
G = SYM.random(torch.Generator().manual_seed(1), scalings=True)


def population(n: int) -> dict[str, Tensor]:
    return states.stack(states.scale(STATE, k + 1) for k in range(n))


def test_a_module_gives_the_image_of_its_state() -> None:
    image: dict[str, Tensor] = SYM.act(G, MODEL)
    assert states.allclose(image, SYM.act(G, STATE)) and states.allclose(MODEL, STATE)


def test_a_solution_gives_one_of_its_class() -> None:
    std = {name: torch.ones_like(x) for name, x in STATE.items()}
    full = coset.Gaussian(STATE, std)
    dirac: coset.Dirac = SYM.act(G, coset.Dirac(STATE))  # the types say so too
    gaussian: coset.Gaussian = SYM.act(G, full)
    mixture: coset.Mixture = SYM.act(G, coset.Mixture([full, full]))
    ensemble: coset.Ensemble = SYM.act(G, coset.Ensemble(population(3)))
    for q in (dirac, gaussian, mixture):
        assert states.allclose(q.mean, SYM.act(G, STATE))
    assert states.allclose(ensemble.population, SYM.act(G, population(3)))


def test_a_population_gives_a_population_that_began_elsewhere_too() -> None:
    labels = {"loss": torch.arange(3.0)}
    networks = coset.Population(population(3), states.scale(population(3), 0.5), labels, {"model": "mlp:4-6-3"})
    each = SYM.random(torch.Generator().manual_seed(2), batch=3)
    for g in (G, each):
        image: coset.Population = SYM.act(g, networks)
        assert states.allclose(image.states, SYM.act(g, networks.states))
        assert image.starts is not None and networks.starts is not None
        assert states.allclose(image.starts, SYM.act(g, networks.starts))
        assert image.labels == networks.labels and image.about == networks.about
    assert not states.allclose(SYM.act(G, networks).states, SYM.act(each, networks).states)
    assert SYM.act(G, coset.Population(population(2))).starts is None


def test_ties_stay() -> None:
    w = torch.randn(2, 3)
    sym = coset.Symmetry.from_json('{"groups": {"u": 3}, "tensors": {"a": [2, "u"], "b": [2, "u"]}}')
    g = sym.element({"u": torch.tensor([2, 0, 1])})
    image = sym.act(g, coset.Dirac({"a": w, "b": w})).mean
    assert image["a"] is image["b"] and torch.equal(image["a"], w[:, [2, 0, 1]])
    networks = sym.act(g, coset.Population({"a": w.expand(2, 2, 3), "b": w.expand(2, 2, 3)})).states
    assert torch.equal(networks["b"][1], image["b"])


def test_many_elements_make_no_solution_of_one_network() -> None:
    batch = SYM.random(batch=2)
    for q in (coset.Dirac(STATE), coset.Gaussian(STATE, {})):
        with pytest.raises(coset.SymmetryError, match="2 elements would make a population of one network"):
            SYM.act(batch, q)
    assert len(SYM.act(batch, coset.Ensemble(population(2)))) == 2
    assert states.size(SYM.act(batch, STATE)) == 2


def test_what_is_no_network_is_refused() -> None:
    with pytest.raises(coset.StateError, match=r"^A list was given as the state"):
        SYM.act(G, [STATE])  # type: ignore[call-overload]
