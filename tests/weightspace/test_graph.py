"""Neural graphs: shapes known by hand, an exact inverse, and permutations that move nodes and edges alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from graph_cases import NETS, distance, graph, make, permuted, population, symmetry
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

import coset
from coset import Symmetry
from coset.core import state as states
from coset.symmetries.group import Fixed, IndexSet, Product, Units
from coset.weightspace.graph import Wiring, neural_graph

sys.path.append(str(Path(__file__).parents[1] / "symmetry"))
from nets import FAMILIES


def test_nodes_and_edges_of_an_mlp() -> None:
    s = states.of(make("mlp:5-6-4-3")[0])
    g = coset.neural_graph(s, symmetry("mlp:5-6-4-3"))
    layers = [(x.name, x.size, x.movable, x.features) for x in g.wiring.layers.values()]
    assert layers == [
        ("layers.0.inputs", 5, False, 0),
        ("layers.0", 6, True, 1),
        ("layers.1", 4, True, 1),
        ("layers.2.outputs", 3, False, 1),
    ]
    assert [(x.source, x.target) for x in g.wiring.blocks.values()] == [
        ("layers.0.inputs", "layers.0"),
        ("layers.0", "layers.1"),
        ("layers.1", "layers.2.outputs"),
    ]
    assert g.batch == 1
    for name, e in g.edges.items():
        torch.testing.assert_close(e[0, :, :, 0], s[name].T, rtol=0, atol=0)
    torch.testing.assert_close(g.nodes["layers.1"][0, :, 0], s["layers.1.bias"], rtol=0, atol=0)
    torch.testing.assert_close(g.nodes["layers.2.outputs"][0, :, 0], s["layers.2.bias"], rtol=0, atol=0)


def test_nodes_and_edges_of_a_convolution() -> None:
    p = population("conv", 2)
    g = neural_graph(p, symmetry("conv"))
    assert {name: tuple(x.shape) for name, x in g.nodes.items()} == {
        "a.inputs": (2, 2, 0),
        "a": (2, 5, 5),
        "b": (2, 4, 1),
        "head.outputs": (2, 3, 1),
    }
    assert {name: tuple(x.shape) for name, x in g.edges.items()} == {
        "a.weight": (2, 2, 5, 9),
        "b.weight": (2, 5, 4, 4),
        "head.weight": (2, 4, 3, 16),
    }
    assert torch.equal(g.edges["b.weight"][1, 2, 3], p["b.weight"][1, 3, 2].flatten())
    assert torch.equal(g.edges["head.weight"][0, 2, 1], p["head.weight"][0, 1].reshape(4, 16)[2])
    norm = ["norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"]
    assert torch.equal(g.nodes["a"], torch.stack([p[name] for name in ["a.bias", *norm]], -1))


def test_a_residual_stream_is_one_layer_that_branches_read_and_write() -> None:
    wiring = graph("residual").wiring
    ends = {name: (block.source, block.target) for name, block in wiring.blocks.items()}
    assert ends["up.0.weight"] == ("stem", "up.0") and ends["down.1.weight"] == ("up.1", "stem")
    assert ends["head.weight.0"] == ("stem", "head.outputs") and ends["head.weight.1"][1] == "head.outputs"
    assert wiring.layers["stem"].features == 3
    assert (wiring.layers["temperature"].size, wiring.layers["temperature"].movable) == (1, False)


@pytest.mark.parametrize("name", NETS)
def test_the_inverse_is_exact(name: str) -> None:
    p = population(name, 3)
    g = neural_graph(p, symmetry(name))
    zero = {key: torch.zeros_like(x) if x.is_floating_point() else x for key, x in p.items()}
    back = g.state(zero)
    assert back.keys() == p.keys() and all(torch.equal(back[key], p[key]) for key in p)
    one = states.unstack(p)[1]
    single = neural_graph(one, g.wiring)
    assert distance(single, g.with_values(_row(g.nodes, 1), _row(g.edges, 1))) == 0
    assert all(torch.equal(x, one[key]) for key, x in single.state(one).items())


def _row(parts: object, k: int) -> dict[str, Tensor]:
    assert isinstance(parts, dict)
    return {name: x[k : k + 1] for name, x in parts.items()}


@pytest.mark.parametrize("name", NETS)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_permuting_the_state_permutes_nodes_and_edges(name: str, seed: int) -> None:
    sym, p = symmetry(name), population(name, 2, seed=seed)
    element = sym.random(torch.Generator().manual_seed(seed), batch=2)
    image = neural_graph(sym.act(element, p), sym)
    assert distance(image, permuted(neural_graph(p, sym), element)) == 0


ODD = ["gram_units", "outer_product", "tied_autoencoder", "glu", "batch_norm_inputs", "every_other_unit"]


@pytest.mark.parametrize("name", ODD)
def test_odd_networks_have_graphs_too(name: str) -> None:
    _check_family(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [f.name for f in FAMILIES.values() if not f.slow and f.name not in ODD])
def test_every_network_has_a_graph_or_a_clear_error(name: str) -> None:
    _check_family(name)


def _check_family(name: str) -> None:
    torch.manual_seed(0)
    model, args = FAMILIES[name].make()
    try:
        sym = coset.symmetry(model.eval(), args, verify=False)
    except coset.SymmetryError:
        pytest.skip("it cannot be traced")
    p = states.stack([states.of(model)] * 2)
    p = {key: torch.randn_like(x) if x.is_floating_point() else x for key, x in p.items()}
    fibred = any(sym.sets[group.name].over for group in sym.groups)
    try:
        g = neural_graph(p, sym)
    except coset.CosetError as error:
        assert name not in ODD and (fibred or "joins 3 sets" in str(error) or "complex" in str(error))
        return
    assert not fibred
    assert all(torch.equal(x, p[key]) for key, x in g.state(p).items())
    element = sym.random(torch.Generator().manual_seed(1), batch=2)
    assert distance(neural_graph(sym.act(element, p), sym), permuted(g, element)) == 0


def test_the_inverse_is_differentiable_and_maps() -> None:
    sym, p = symmetry("residual"), population("residual", 3)
    wiring = Wiring.of(sym, p)

    def twice(state: dict[str, Tensor]) -> dict[str, Tensor]:
        g = neural_graph(state, wiring)
        return g.with_values(
            {name: 2 * x for name, x in g.nodes.items()}, {name: 2 * x for name, x in g.edges.items()}
        ).state(state)

    for key, x in torch.vmap(twice)(p).items():
        assert torch.equal(x, 2 * p[key])
    _, vjp = torch.func.vjp(twice, p)
    (back,) = vjp(p)
    assert all(torch.equal(back[key], 2 * p[key]) for key in p)


def test_tied_names_are_one_tensor() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 4)
            self.c.weight, self.head = self.b.weight, nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.c(torch.relu(self.b(torch.relu(self.a(x))))))
            return out

    model = Tied()
    s = states.of(model)
    g = neural_graph(s, coset.symmetry(model, (torch.randn(2, 3),)))
    assert ("b.weight" in g.edges) != ("c.weight" in g.edges)
    doubled = g.with_values(g.nodes, {name: 2 * e for name, e in g.edges.items()}).state(s)
    assert torch.equal(doubled["b.weight"], doubled["c.weight"])
    assert torch.equal(doubled["c.weight"], 2 * s["c.weight"])


def by_hand() -> Symmetry:
    """Units before positions on one axis, and a set that is called as the outputs of a module would be."""
    sets = {name: IndexSet(name, size) for name, size in (("a", 2), ("b", 3), ("c.outputs", 3))}
    units = {name: Units(name, index_set.size) for name, index_set in sets.items()}
    axes = {"w": (Product((units["a"], Fixed(4))), units["b"]), "c.weight": (Fixed(3), units["c.outputs"])}
    return Symmetry(sets, axes)


def test_axes_in_any_order_and_names_that_clash() -> None:
    sym = by_hand()
    p = {"w": torch.randn(2, 8, 3), "c.weight": torch.randn(2, 3, 3)}
    g = neural_graph(p, sym)
    assert torch.equal(g.edges["w"], p["w"].reshape(2, 2, 4, 3).permute(0, 3, 1, 2))
    assert all(torch.equal(x, p[key]) for key, x in g.state(p).items())
    assert g.wiring.blocks["c.weight"].source == "c.outputs" != g.wiring.blocks["c.weight"].target
    assert [layer.name for layer in g.wiring.layers.values() if layer.movable] == ["b", "a", "c.outputs"]
    element = sym.random(torch.Generator().manual_seed(0), batch=2)
    assert distance(neural_graph(sym.act(element, p), sym), permuted(g, element)) == 0


def test_errors_name_the_culprit() -> None:
    sym, p = symmetry("mlp:5-6-3"), population("mlp:5-6-3")
    bias = "layers.0.bias"
    bad: list[tuple[dict[str, Tensor], str]] = [
        ({key: x for key, x in p.items() if key != bias}, f"Missing '{bias}'"),
        ({**p, bias: torch.zeros(2, 7)}, rf"'{bias}' has shape \(2, 7\)"),
        ({**p, bias: torch.zeros(6)}, "leading dimension"),
        ({**p, bias: torch.zeros(3, 6)}, "one size in all tensors"),
        ({**p, bias: torch.zeros(2, 6, dtype=torch.complex64)}, "real features only"),
    ]
    for state, message in bad:
        with pytest.raises(coset.StateError, match=message):
            neural_graph(state, sym)
    model = coset.zoo.build("vit:dim=16,depth=1,heads=2,patch=16")
    heads = coset.symmetry(model, coset.zoo.example_input(model), verify=False)
    with pytest.raises(coset.SymmetryError, match="attention heads"):
        neural_graph(states.of(model), heads)


@pytest.mark.parametrize("name", ["mlp:5-6-4-3", "conv"])
def test_there_and_back_is_one_graph_for_the_compiler(name: str) -> None:
    """Every break would make a step of a flow several programs, each with a call of its own."""
    p = population(name, 2)
    wiring = neural_graph(p, symmetry(name)).wiring

    def back(given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return neural_graph(given, wiring).state(given)

    result = torch.compile(back, backend="eager", fullgraph=True)(p)
    assert all(x.equal(p[key]) for key, x in result.items())
