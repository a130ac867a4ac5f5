"""The relational transformer against attention with q, k and v of every edge."""

from __future__ import annotations

import pytest
import torch
from graph_cases import distance, graph, shaken
from torch import Tensor, nn

from coset.weightspace.graph import NeuralGraph
from coset.weightspace.relational_transformer import Attention, Reading, RelationalTransformer

WIDTH = 7


def inputs(graphs: NeuralGraph) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    torch.manual_seed(0)
    nodes = {
        name: torch.randn(2, layer.size, WIDTH, dtype=torch.float64) for name, layer in graphs.wiring.layers.items()
    }
    edges = {name: torch.randn(*e.shape[:3], WIDTH, dtype=torch.float64) for name, e in graphs.edges.items()}
    return nodes, edges


@pytest.mark.parametrize("name", ["mlp:5-6-4-3", "residual"])
def test_attention_is_that_of_the_definition(name: str) -> None:
    """Node by node: q, k, v = [n, e] W for each of its edges, softmax over them all (weightflow Eq. 5.5)."""
    graphs = graph(name)
    attention = shaken(Attention(WIDTH)).double()
    assert isinstance(attention, Attention)
    nodes, edges = inputs(graphs)
    result = attention(nodes, edges, graphs.wiring.blocks)

    def both(node: nn.Module, edge: nn.Module, n: Tensor, e: Tensor) -> Tensor:
        assert isinstance(node, nn.Linear) and isinstance(edge, nn.Linear)
        return torch.cat([n, e]) @ torch.cat([node.weight.T, edge.weight.T]) + node.bias

    for layer, heard in result.items():
        for b in range(2):
            for i in range(heard.shape[1]):
                scores: list[Tensor] = []
                values: list[Tensor] = []
                own = nodes[layer][b, i]
                for key, block in graphs.wiring.blocks.items():
                    ways: list[tuple[Reading, str, Tensor]] = []
                    if block.target == layer:
                        ways.append((attention.inward, block.source, edges[key][b, :, i]))
                    if block.source == layer:
                        ways.append((attention.outward, block.target, edges[key][b, i]))
                    for r, other, row in ways:
                        for n, e in zip(nodes[other][b], row, strict=True):
                            q = both(r.query, r.query_edge, own, e)
                            scores.append(q @ both(r.key, r.key_edge, n, e) / WIDTH**0.5)
                            values.append(both(r.value, r.value_edge, n, e))
                expected = attention.out(torch.stack(scores).softmax(0) @ torch.stack(values))
                torch.testing.assert_close(heard[b, i], expected)


def test_recomputing_changes_nothing_but_memory() -> None:
    graphs, time = graph("mlp:5-6-4-3"), torch.tensor([0.2, 0.7])
    rest: list[int] = []
    gradients: list[list[Tensor]] = []
    outputs: list[NeuralGraph] = []
    for recompute in (False, True):
        net = RelationalTransformer(graphs.wiring, width=8, depth=3, recompute=recompute)
        shaken(net)
        sizes: list[int] = []

        def pack(x: Tensor, sizes: list[int] = sizes) -> Tensor:
            sizes.append(x.numel())
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            out = net(graphs, time)
        rest.append(sum(sizes))
        loss = torch.stack([x.square().sum() for x in out.edges.values()]).sum()
        gradients.append(
            [g for g in torch.autograd.grad(loss, list(net.parameters()), allow_unused=True) if g is not None]
        )
        outputs.append(out)
    assert distance(*outputs) == 0
    assert rest[1] < rest[0] / 3
    for x, y in zip(*gradients, strict=True):
        torch.testing.assert_close(x, y)
