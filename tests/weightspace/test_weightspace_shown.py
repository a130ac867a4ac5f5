"""What the room makes shows itself, and takes modules and Diracs wherever a state will do."""

from __future__ import annotations

import pytest
import torch

import coset
from coset import GraphNetwork, UnitTransformer, zoo
from coset.core.show import LINES, WIDTH, Shown
from coset.weightspace.graph import Wiring

MODEL = zoo.build("resnet20:width=0.25")
SYM = coset.symmetry(MODEL, zoo.example_input(MODEL), verify=False)
STATE = coset.state.of(MODEL)
SMALL = zoo.build("mlp:4-3-2")
SMALL_SYM = coset.symmetry(SMALL, zoo.example_input(SMALL))


def networks() -> list[GraphNetwork | UnitTransformer]:
    wiring = Wiring.of(SYM, STATE)
    return [kind(wiring, 8, 1) for kind in (coset.PNA, coset.RelationalTransformer, coset.UnitTransformer)]


@pytest.mark.parametrize(
    ("view", "words"),
    [
        (coset.canonicalize(MODEL, SYM), "Canonical form of one network"),
        (coset.canonicalize({name: x[None] for name, x in STATE.items()}, SYM), "Canonical form of 1 network"),
        (coset.manifold(SYM), "Manifold of dimension"),
        (coset.manifold(SYM).chart, "Chart of"),
        (coset.neural_graph(MODEL, SYM), "NeuralGraph of 1 network"),
        (Wiring.of(SYM, MODEL), "Wiring of"),
        *((net, f"{type(net).__name__} with ") for net in networks()),
    ],
)
def test_in_a_few_lines(view: Shown, words: str) -> None:
    lines = repr(view).splitlines()
    assert lines[0].startswith(words)
    assert 1 < len(lines) <= LINES and max(map(len, lines)) <= WIDTH
    assert "<table>" in view._repr_html_()


def test_a_module_is_a_state() -> None:
    state, dirac = coset.state.of(SMALL), coset.Dirac(SMALL)
    expected = coset.canonicalize(state, SMALL_SYM)
    space = coset.manifold(SMALL_SYM, like=SMALL)
    x = torch.randn(5, 4)
    for network in (SMALL, dirac):
        assert coset.state.allclose(coset.canonicalize(network, SMALL_SYM).state, expected.state)
        nearest = (coset.canonicalize(q, SMALL_SYM, reference=q).state for q in (network, state))
        assert coset.state.allclose(*nearest)
        assert coset.state.allclose(coset.neural_graph(network, SMALL_SYM).state(network), state)
        assert torch.equal(
            coset.probes(SMALL, network, SMALL_SYM, x)["layers.0"], coset.probes(SMALL, state, SMALL_SYM, x)["layers.0"]
        )
        assert space.state(space.coordinates(expected.state), like=network).keys() == state.keys()
