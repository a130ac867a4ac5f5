"""Balanced networks, and alignment that matches factors too."""

from __future__ import annotations

import pytest
import torch
from alignment_nets import network, random_state

import coset
from coset import zoo
from coset.alignment.rescaling import balance, nearest_factors
from coset.core import state as states


@pytest.mark.parametrize("name", ["mlp", "llama", "gpt"])
def test_all_rescalings_have_one_balanced_form(name: str) -> None:
    model, sym = network(name)
    a = random_state(model, 0)
    scalings = {s.name: s for s in sym.scalings if s.exact and s.kind == "scaling" and s.units}
    element = sym.random(torch.Generator().manual_seed(1), scalings=True)
    rescaled = sym.act(sym.element(scales={n: c for n, c in element.scales.items() if n in scalings}), a)
    first, second = (sym.act(balance(s, sym), s) for s in (a, rescaled))
    distance = states.norm(states.sub(first, second)) / states.norm(first)
    assert float(distance) < 1e-3
    apart = states.norm(states.sub(a, rescaled)) / states.norm(a)
    assert float(apart) > 0.1


def test_a_balanced_relu_unit() -> None:
    """The log norms of incoming weights, bias and outgoing weights balance."""
    model, sym = network("mlp")
    a = random_state(model, 0)
    b = sym.act(balance(a, sym), a)
    incoming, bias = b["layers.0.weight"].norm(dim=1).log(), b["layers.0.bias"].abs().log()
    assert (incoming + bias - b["layers.1.weight"].norm(dim=0).log()).abs().max() < 1e-4


def test_scale_finds_hidden_factors() -> None:
    model, sym = network("mlp")
    a = random_state(model, 0)
    hidden = sym.random(torch.Generator().manual_seed(2), scalings=True)
    signs = {s.name for s in sym.scalings if s.kind == "sign" or not s.units}
    hidden = sym.element(hidden.permutations, {n: c for n, c in hidden.scales.items() if n not in signs})
    b = sym.act(hidden, a)
    plain, scaled = coset.align(a, b, sym), coset.align(a, b, sym, scale=True)

    def distance(element: coset.Element) -> float:
        return float(states.norm(states.sub(a, sym.act(element, b))) / states.norm(a))

    assert distance(scaled.element) < 1e-3 < 0.05 < distance(plain.element)
    with torch.no_grad():
        args = zoo.example_input(model)
        before, after = (states.call(model, s, args) for s in (b, sym.act(scaled.element, b)))
    torch.testing.assert_close(after, before, rtol=1e-3, atol=1e-3)


def test_dead_units_stay_finite() -> None:
    model, sym = network("mlp")
    a = random_state(model, 0)
    a["layers.0.weight"][2] = 0.0
    a["layers.0.bias"][2] = 0.0
    element = balance(a, sym)
    assert all(bool(c.isfinite().all()) and bool((c > 0).all()) for c in element.scales.values())


@pytest.mark.parametrize("name", ["mlp", pytest.param("resnet", marks=pytest.mark.slow), "llama"])
def test_factors_never_lead_away(name: str) -> None:
    model, sym = network(name)
    a, b = random_state(model, 0), random_state(model, 1)
    trained = [n for n, x in a.items() if x.is_floating_point() and n not in sym.buffers]

    def distance(element: coset.Element) -> float:
        image = sym.act(element, b)
        return sum(float((a[n].double() - image[n].double()).square().sum()) for n in trained)

    plain, scaled = coset.align(a, b, sym), coset.align(a, b, sym, scale=True)
    assert distance(scaled.element) < distance(plain.element)
    with torch.no_grad():
        args = zoo.example_input(model)
        before, after = (states.call(model, s, args) for s in (b, sym.act(scaled.element, b)))
    torch.testing.assert_close(after, before, rtol=1e-3, atol=1e-3)


def test_nearest_factors_of_a_unit_against_a_search() -> None:
    model, sym = network("mlp")
    a, b = random_state(model, 0), random_state(model, 1)
    best = nearest_factors(a, b, sym)
    image = sym.act(best, b)
    least = states.norm(states.sub(a, image))
    for scaling in [s for s in sym.scalings if s.kind == "scaling"]:
        for c in (0.9, 0.99, 1.01, 1.1):
            for unit in range(scaling.size):
                factor = torch.ones(scaling.size, dtype=torch.float64)
                factor[unit] = c
                other = sym.act(sym.element(scales={scaling.name: factor}), image)
                assert states.norm(states.sub(a, other)) >= least * (1 - 1e-6)
