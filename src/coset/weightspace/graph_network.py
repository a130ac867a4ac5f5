"""Networks on neural graphs: embed, pass messages, read out."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from coset.weightspace.graph import NeuralGraph, Wiring
from coset.weightspace.graph_embedding import Conditioning, GraphEmbedding, GraphReadout, ShownModule, refuse_inputs
from coset.weightspace.graph_layer import Exchange, GraphLayer


class GraphNetwork(ShownModule):
    """An equivariant map from graphs at times t to an update of every weight, or to features of the whole network.

    It permutes as its argument does: no part of it knows the order of nodes that can move, and every map of nodes and
    edges is shared within its layer or block. So it takes any number of them.

    Args:
        wiring: of the graphs that it takes.
        exchange: makes what nodes hear from their neighbours by, one for each layer.
        width: numbers of every node and edge.
        depth: how many layers.
        condition: numbers that the network is told about each graph besides its time.
        probes: inputs of the probes that graphs have.
        recompute: keep only what enters each layer and run it again for the gradient: less memory, a third more time.

    Raises:
        ModelError: a call gets a graph of another architecture, or times, conditions or probes that do not fit.

    Example:
        >>> graph = coset.neural_graph(population.states, sym)
        >>> net = coset.PNA(graph.wiring, width=8, depth=1)
        >>> isinstance(net, coset.GraphNetwork), net.features(graph, torch.zeros(8)).shape
        (True, torch.Size([8, 8]))
    """

    def __init__(
        self,
        wiring: Wiring,
        exchange: Callable[[], Exchange],
        width: int,
        depth: int,
        condition: int,
        probes: int,
        recompute: bool,
    ) -> None:
        super().__init__()
        self.wiring, self.recompute = wiring, recompute
        self.conditioning = Conditioning(width, condition)
        self.embedding = GraphEmbedding(wiring, width, width, probes)
        self.layers = nn.ModuleList(GraphLayer(width, exchange()) for _ in range(depth))
        self.readout = GraphReadout(wiring, width, width)
        self.pool = nn.ModuleList(nn.Linear(width, width) for _ in wiring.layers)

    def forward(self, graph: NeuralGraph, time: Tensor, condition: Tensor | None = None) -> NeuralGraph:
        """An update of every weight.

        Args:
            graph: networks of this architecture, of any number of units.
            time: [batch].
            condition: [batch, size], for a network that is built with `condition=size`.

        Returns:
            A graph of the same shapes.
        """
        out: NeuralGraph = self.readout(graph, *self._encode(graph, time, condition))
        return out

    def features(self, graph: NeuralGraph, time: Tensor, condition: Tensor | None = None) -> Tensor:
        """What is the same for all permutations of a network: sum over layers of A_l mean_i n_i + b_l.

        Args:
            graph: networks of this architecture, of any number of units.
            time: [batch].
            condition: [batch, size], for a network that is built with `condition=size`.

        Returns:
            [batch, width].
        """
        nodes, _ = self._encode(graph, time, condition)
        means = [self.readout.node_norm(nodes[name]).mean(1) for name in graph.wiring.layers]
        return torch.stack([pool(x) for pool, x in zip(self.pool, means, strict=True)]).sum(0)

    def _encode(
        self, graph: NeuralGraph, time: Tensor, condition: Tensor | None
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        self.wiring.refuse(graph.wiring)
        refuse_inputs(graph, time, self.conditioning.frequencies.dtype)
        c: Tensor = self.conditioning(time, condition)
        nodes, edges = self.embedding(graph)
        for layer in self.layers:
            if self.recompute and torch.is_grad_enabled():
                nodes, edges = checkpoint(layer, nodes, edges, graph.wiring.blocks, c, use_reentrant=False)
            else:
                nodes, edges = layer(nodes, edges, graph.wiring.blocks, c)
        return nodes, edges
