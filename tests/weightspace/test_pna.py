"""Principal neighbourhood aggregation against a loop over nodes."""

from __future__ import annotations

import math

import pytest
import torch
from graph_cases import graph, shaken
from torch import Tensor

from coset.weightspace.pna import EPSILON, Aggregation, mean_log_degree

WIDTH = 5


@pytest.mark.parametrize("name", ["mlp:5-6-4-3", "residual"])
def test_aggregation_is_that_of_the_definition(name: str) -> None:
    """Each node's messages gathered in a list; twelve statistics of it (weightflow Eq. 5.3)."""
    graphs = graph(name)
    delta = mean_log_degree(graphs.wiring)
    layer = shaken(Aggregation(WIDTH, delta)).double()
    assert isinstance(layer, Aggregation)
    torch.manual_seed(0)
    nodes = {key: torch.randn(2, x.size, WIDTH, dtype=torch.float64) for key, x in graphs.wiring.layers.items()}
    edges = {key: torch.randn(*e.shape[:3], WIDTH, dtype=torch.float64) for key, e in graphs.edges.items()}
    result = layer(nodes, edges, graphs.wiring.blocks)
    degrees: list[int] = []
    for key, x in nodes.items():
        for i in range(x.shape[1]):
            messages: list[Tensor] = []
            for block_name, block in graphs.wiring.blocks.items():
                e = edges[block_name][1]
                if block.target == key:
                    gamma, beta = layer.inward.film(e[:, i]).chunk(2, -1)
                    messages += list(gamma * layer.inward.node(nodes[block.source][1]) + beta)
                if block.source == key:
                    gamma, beta = layer.outward.film(e[i]).chunk(2, -1)
                    messages += list(gamma * layer.outward.node(nodes[block.target][1]) + beta)
            degrees.append(len(messages))
            if not messages:
                assert key not in result
                continue
            m = torch.stack(messages)
            std = (m.var(0, correction=0) + EPSILON).sqrt()
            four = torch.cat([m.mean(0), std, m.max(0).values, m.min(0).values])
            scale = math.log(len(m) + 1) / delta
            expected = layer.out(torch.cat([four, four * scale, four / scale]))
            torch.testing.assert_close(result[key][1, i], expected)
    assert math.isclose(delta, sum(math.log(d + 1) for d in degrees) / len(degrees))
