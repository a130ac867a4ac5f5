"""What all networks on graphs share: time and condition as a vector, features in and out of their width."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

from coset.core.errors import ModelError
from coset.core.show import Shown, Table
from coset.weightspace.graph import NeuralGraph, Wiring

FREQUENCIES = 32
FASTEST = 1000.0


def linear(inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
    """A linear layer, also from or to no features at all, where torch's initialisation would warn."""
    if inputs and outputs:
        return nn.Linear(inputs, outputs, bias)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.Linear(inputs, outputs, bias)


def zeroed(layer: nn.Linear) -> nn.Linear:
    """The layer with zero weights and biases."""
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer


def refuse_probes(graph: NeuralGraph, count: int, layers: Collection[str]) -> None:
    """Refuse a graph with another number of probes than the network is made for, or of other than these layers."""
    if count and not graph.probes:
        raise ModelError(f"This network is made for {count} probes and the graph has 0: add them by `with_probes`.")
    for name, x in graph.probes.items():
        if name not in layers:
            raise ModelError(f"The graph has probes of {name!r}, which are no units of this network.")
        if x.shape[-1] != count:
            raise ModelError(
                f"This network is made for {count} probes and the graph has {x.shape[-1]}: build it with probes= their "
                "number."
            )
        shape = (graph.batch, graph.wiring.layers[name].size, count)
        if tuple(x.shape) != shape:
            raise ModelError(f"The probes of {name!r} have shape {tuple(x.shape)} where {shape} is expected.")


def refuse_inputs(graph: NeuralGraph, time: Tensor, dtype: torch.dtype) -> None:
    """Refuse times that are not one for each network, or one for all, and what a network in `dtype` cannot multiply."""
    if not isinstance(time, Tensor) or time.dim() != 1 or time.shape[0] not in (1, graph.batch):
        kind = f"shape {tuple(time.shape)}" if isinstance(time, Tensor) else type(time).__name__
        raise ModelError(f"Give one time for each of the {graph.batch} networks, as a tensor, not {kind}.")
    features = next(iter([*graph.nodes.values(), *graph.edges.values()]))
    if torch.is_autocast_enabled(features.device.type):
        return
    if features.dtype != dtype:
        raise ModelError(f"This network is in {dtype} and cannot take graphs in {features.dtype}: convert one of them.")
    if torch.promote_types(time.dtype, dtype) != dtype:
        raise ModelError(f"This network is in {dtype} and cannot take times in {time.dtype}: convert them.")


class ShownModule(Shown, nn.Module):
    """A network on graphs, which shows its size and its parts in a few lines, and not every layer."""

    wiring: Wiring

    def _shown(self) -> Table:
        count = sum(parameter.numel() for parameter in self.parameters())
        parts = [
            (name, type(part).__name__, sum(parameter.numel() for parameter in part.parameters()))
            for name, part in self.named_children()
        ]
        return Table(f"{type(self).__name__} with {count:,} parameters", [row for row in parts if row[-1]])


class Conditioning(nn.Module):
    """A vector [batch, width] from times [batch] in [0, 1] and, if `size` > 0, conditions [batch, size].

    An MLP of cos and sin of 32 frequencies, geometric from 1000 down to about 1 radian, plus a linear map.
    """

    frequencies: Tensor

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        rates = FASTEST * torch.exp(-math.log(FASTEST) * torch.arange(FREQUENCIES) / FREQUENCIES)
        self.register_buffer("frequencies", rates, persistent=False)
        self.time = nn.Sequential(nn.Linear(2 * FREQUENCIES, width), nn.SiLU(), nn.Linear(width, width))
        self.condition = nn.Linear(size, width, bias=False) if size else None

    def forward(self, time: Tensor, condition: Tensor | None) -> Tensor:
        phase = time[:, None] * self.frequencies
        c: Tensor = self.time(torch.cat([phase.cos(), phase.sin()], -1))
        size = 0 if self.condition is None else self.condition.in_features
        count = 0 if condition is None else condition.shape[-1]
        if size != count:
            raise ModelError(
                f"This network is made for conditions of {size} numbers and gets {count}: build it with condition= "
                "their number."
            )
        return c if self.condition is None else c + self.condition(condition)


class Film(nn.Module):
    """(1 + scale) LN(x) + shift with scale and shift linear in the conditioning vector (Perez et al. 2018).

    x: [batch, n, width], c: [batch, width]. Both are zero at first.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.modulation = zeroed(nn.Linear(width, 2 * width))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        scale, shift = self.modulation(c)[:, None].chunk(2, -1)
        out: Tensor = self.norm(x) * (1 + scale) + shift
        return out


class GraphEmbedding(nn.Module):
    """Node and edge features as vectors: [batch, n, width] a layer and [batch, from, to, edge_width] a block.

    Each layer and each block has a linear map of its own, so features of any number fit, and a learned embedding: one
    for each node that cannot move, one for all nodes of a layer that can.
    """

    def __init__(self, wiring: Wiring, width: int, edge_width: int, probes: int = 0) -> None:
        super().__init__()
        layers, blocks = wiring.layers.values(), wiring.blocks.values()
        self.nodes = nn.ModuleList(linear(layer.features, width, bias=False) for layer in layers)
        self.places = nn.ParameterList(torch.randn(1 if layer.movable else layer.size, width) for layer in layers)
        self.edges = nn.ModuleList(nn.Linear(block.features, edge_width) for block in blocks)
        self.probes = linear(probes, width, bias=False)

    def forward(self, graph: NeuralGraph) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        layers = zip(graph.wiring.layers, self.nodes, self.places, strict=True)
        nodes: dict[str, Tensor] = {name: into(graph.nodes[name]) + place for name, into, place in layers}
        refuse_probes(graph, self.probes.in_features, graph.wiring.layers)
        for name, x in graph.probes.items():
            nodes[name] = nodes[name] + self.probes(x)
        edges = {name: into(graph.edges[name]) for name, into in zip(graph.wiring.blocks, self.edges, strict=True)}
        return nodes, edges


class GraphReadout(nn.Module):
    """Vectors of nodes and edges back to as many features as the graph has; the inverse shapes of the embedding."""

    def __init__(self, wiring: Wiring, width: int, edge_width: int) -> None:
        super().__init__()
        self.node_norm, self.edge_norm = nn.LayerNorm(width), nn.LayerNorm(edge_width)
        self.nodes = nn.ModuleList(linear(width, layer.features) for layer in wiring.layers.values())
        self.edges = nn.ModuleList(nn.Linear(edge_width, block.features) for block in wiring.blocks.values())

    def forward(self, graph: NeuralGraph, nodes: Mapping[str, Tensor], edges: Mapping[str, Tensor]) -> NeuralGraph:
        outward = zip(graph.wiring.layers, self.nodes, strict=True)
        across = zip(graph.wiring.blocks, self.edges, strict=True)
        return graph.with_values(
            {name: out(self.node_norm(nodes[name])) for name, out in outward},
            {name: out(self.edge_norm(edges[name])) for name, out in across},
        )
