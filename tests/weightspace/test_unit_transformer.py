"""The unit transformer: its tokens are those of the prototype, and hidden matrices are read as said."""

from __future__ import annotations

import pytest
import torch
from graph_cases import NETS, distance, graph, population, shaken, symmetry
from torch import Tensor

import coset
from coset.weightspace.graph import neural_graph
from coset.weightspace.unit_transformer import EdgeReadout, InnerEdges, TokenLayout, UnitTransformer


def test_a_token_is_incoming_weights_bias_and_outgoing_weights() -> None:
    p = population("mlp:5-6-3", 2)
    graphs = neural_graph(p, symmetry("mlp:5-6-3"))
    layout = TokenLayout(graphs.wiring)
    tokens = layout.read(graphs)
    expected = torch.cat(
        [p["layers.0.bias"][..., None], p["layers.0.weight"], p["layers.1.weight"].transpose(1, 2)], -1
    )
    assert torch.equal(tokens.units["layers.0"], expected)
    assert torch.equal(tokens.rest, p["layers.1.bias"])
    assert not tokens.inner and layout.size("layers.0") == 5 + 1 + 3 and layout.rest == 3


@pytest.mark.parametrize("name", NETS)
def test_tokens_hold_all_of_the_graph(name: str) -> None:
    graphs = graph(name, 3)
    layout = TokenLayout(graphs.wiring)
    tokens = layout.read(graphs)
    assert distance(layout.write(graphs, tokens), graphs) == 0
    numbers = sum(x[0].numel() for x in [*tokens.units.values(), tokens.rest, *tokens.inner.values()])
    assert numbers == sum(x[0].numel() for x in population(name).values() if x.is_floating_point())


def test_one_hidden_layer_needs_no_edges() -> None:
    net = UnitTransformer(graph("mlp:5-6-3").wiring, width=16, depth=2, heads=2)
    assert not any("mixing" in name or "edges" in name for name, _ in net.named_parameters())
    deep = UnitTransformer(graph("mlp:5-6-4-3").wiring, width=16, depth=2, heads=2)
    assert any("mixing" in name for name, _ in deep.named_parameters())


def test_heads_share_the_width() -> None:
    with pytest.raises(coset.ModelError, match=r"width of 16 .* 3 heads"):
        UnitTransformer(graph("mlp:5-6-3").wiring, width=16, heads=3)


@pytest.mark.parametrize(("edge_width", "each"), [(2, 3), (4, 1), (8, 1)])
def test_inner_edges_by_loops(edge_width: int, each: int) -> None:
    graphs = graph("mlp:5-6-4-4-3")
    mix = shaken(InnerEdges(6, edge_width)).double()
    assert isinstance(mix, InnerEdges)
    inner = TokenLayout(graphs.wiring).inner
    torch.manual_seed(0)
    tokens = {
        x.name: torch.randn(1, x.size, 6, dtype=torch.float64) for x in graphs.wiring.layers.values() if x.movable
    }
    edges = {name: torch.randn(1, *graphs.edges[name].shape[1:3], edge_width, dtype=torch.float64) for name in inner}
    heard, updated = mix(tokens, edges, inner)
    n = {name: mix.norm(x)[0] for name, x in tokens.items()}
    e = {name: mix.edge_norm(x)[0] for name, x in edges.items()}
    first, second = inner
    weigh = {name: x.repeat_interleave(each, -1) for name, x in e.items()}
    for t in range(4):  # the middle layer: into it from the first matrix, out of it through the second
        into = torch.stack([weigh[first][f, t] * mix.forth(n["layers.0"][f]) for f in range(6)]).mean(0)
        out = torch.stack([weigh[second][t, u] * mix.back(n["layers.2"][u]) for u in range(4)]).mean(0)
        torch.testing.assert_close(heard["layers.1"][0, t], mix.forth_out(into) + mix.back_out(out))
    step = mix.update
    hidden = step.edge(e[first][2, 3]) + step.source(n["layers.0"][2]) + step.target(n["layers.1"][3])
    product = mix.source(n["layers.0"][2]) * mix.target(n["layers.1"][3])
    torch.testing.assert_close(updated[first][0, 2, 3], edges[first][0, 2, 3] + step.out(hidden) + product)


def test_the_readout_is_a_bilinear_form_for_each_feature() -> None:
    out = shaken(EdgeReadout(6, 4, 3)).double()
    assert isinstance(out, EdgeReadout)
    e, f, t = (torch.randn(2, *shape, dtype=torch.float64) for shape in ((5, 3, 4), (5, 6), (3, 6)))
    forms: list[Tensor] = [out.source.weight.T @ out.target.weight.reshape(4, 3, 6)[:, d] / 4**0.5 for d in range(3)]
    pair = torch.stack([f @ form @ t.mT for form in forms], -1)
    torch.testing.assert_close(out(e, f, t), out.edge(out.norm(e)) + pair)
