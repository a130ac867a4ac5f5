"""What calls return shows itself in a few lines, and as HTML in a notebook: networks of the sizes that people have."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import coset
from coset import data, zoo
from coset.core.show import LINES, WIDTH


def shown() -> dict[str, Any]:
    """One of each public object, by a name that says where it is from."""
    torch.manual_seed(0)
    digits = data.load("digits")
    model = zoo.build("mlp:64-16-10")
    networks = coset.collect(model, digits.train, 8, coset.Collect(epochs=1))
    a, b = (coset.Dirac({name: x[k] for name, x in networks.states.items()}) for k in range(2))
    (posterior,) = coset.fit(model, digits.train, coset.VI(epochs=1))
    (chain,) = coset.fit(model, digits.train, coset.SGLD(chains=2, epochs=6, burn_in=2))
    few = digits.test.inputs[:8], digits.test.targets[:8]
    sym = coset.symmetry(model, few[0])
    match = coset.align(a, b, sym)
    flow = coset.Flow(sym)
    objects = {
        "digits": digits,
        "split": digits.train,
        "population": networks,
        "Dirac": a,
        "posterior": posterior,
        "chain": chain,
        "Symmetrized": coset.Symmetrized(posterior, sym),
        "group": sym.groups[0],
        "match": match,
        "match.element": match.element,
        "align_many": coset.align_many([a, b], sym, reference=0),
        "align_many of a population": coset.align_many(networks, sym),
        "geodesic": coset.geodesic(a, b),
        "mixture": coset.mixture(a, b),
        "curve": coset.Bezier(a, b),
        "barrier": coset.barrier(coset.geodesic(a, b), model, few, points=3),
        "plane": coset.plane(a, b, sym.act(match.element, b), model, few, points=3),
        "evaluation": coset.evaluate(posterior, model, few),
        "overlap": coset.overlap(posterior, sym),
        "elbo": coset.elbo(posterior, model, few),
        "convergence": coset.convergence(chain, model, few[0], chains=2),
        "canonical": coset.canonicalize(a, sym),
        "manifold": coset.manifold(sym, a),
        "graph": coset.neural_graph(a, sym),
        "scores": coset.scores(networks, model, few),
        "diversity": coset.diversity(networks, model, few),
        "novelty": coset.novelty(networks, networks, sym),
        "flow": flow,
        "fitted flow": flow.fit(networks, coset.Matching(epochs=1)),
        "samples": flow.sample(2),
        "method": coset.VI(),
        "method within a method": coset.Laplace(),
    }
    for name in ("resnet20", "vit", "gpt"):
        net = zoo.build(name)
        own = coset.symmetry(net, zoo.example_input(net))
        objects |= {name: own, f"element of {name}": own.random(), f"verification of {name}": own.verification}
        objects |= {f"Dirac of {name}": coset.Dirac(net), f"group of {name}": max(own.groups, key=lambda g: g.size)}
    return objects


def test_all_show_themselves() -> None:
    too_long, without_html = [], []
    for name, thing in shown().items():
        lines = repr(thing).splitlines()
        if len(lines) > LINES or max(map(len, lines)) > WIDTH or " object at 0x" in lines[0]:
            too_long.append(f"{name}: {len(lines)} lines, {max(map(len, lines))} columns: {lines[0][:80]}")
        if not (hasattr(thing, "_repr_html_") and "<" in thing._repr_html_()) and len(lines) > 1:
            without_html.append(name)
    assert not too_long, "\n".join(too_long)
    assert not without_html, without_html


@pytest.mark.parametrize("room", ["alignment", "data", "flow", "paths", "state", "zoo"])
def test_rooms_are_there_at_once(room: str) -> None:
    assert getattr(coset, room).__name__.startswith("coset.")
