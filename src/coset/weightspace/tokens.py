"""A network as tokens: one for each unit that can move, with all its weights from and to places that cannot."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from coset.weightspace.graph import NeuralGraph
from coset.weightspace.wiring import EdgeBlock, Wiring


@dataclass(frozen=True)
class Tokens:
    """units: layer -> [batch, n, numbers]; rest: [batch, numbers], what belongs to no unit, as the last bias.

    inner: block -> [batch, from, to, features], the weights between units that can both move.
    """

    units: Mapping[str, Tensor]
    rest: Tensor
    inner: Mapping[str, Tensor]


@dataclass(frozen=True)
class TokenLayout:
    """Which features of a graph stand in which token: those of the node, then of its edges, block by block."""

    wiring: Wiring

    @cached_property
    def layers(self) -> list[str]:
        """The layers whose nodes are tokens."""
        return [name for name, layer in self.wiring.layers.items() if layer.movable]

    @cached_property
    def inner(self) -> dict[str, EdgeBlock]:
        return {name: b for name, b in self.wiring.blocks.items() if self._moves(b.source) and self._moves(b.target)}

    def _moves(self, layer: str) -> bool:
        return self.wiring.layers[layer].movable

    def _own(self, layer: str) -> list[EdgeBlock]:
        """The blocks between a layer and places that cannot move."""
        return [b for b in self.wiring.blocks.values() if layer in (b.source, b.target) and b.name not in self.inner]

    @cached_property
    def _fixed(self) -> tuple[list[str], list[str]]:
        """Layers and blocks in which nothing moves."""
        blocks = self.wiring.blocks.values()
        return (
            [name for name in self.wiring.layers if not self._moves(name)],
            [b.name for b in blocks if not self._moves(b.source) and not self._moves(b.target)],
        )

    def size(self, layer: str) -> int:
        """The numbers of a token of this layer."""
        return sum(self._split(layer))

    @cached_property
    def rest(self) -> int:
        """The numbers that belong to no unit."""
        return sum(math.prod(shape) for shape in self._rest_shapes())

    def _split(self, layer: str) -> list[int]:
        others = [b.source if b.target == layer else b.target for b in self._own(layer)]
        sizes = [self.wiring.layers[other].size * b.features for other, b in zip(others, self._own(layer), strict=True)]
        return [self.wiring.layers[layer].features, *sizes]

    def _rest_shapes(self) -> list[tuple[int, ...]]:
        layers, blocks = self.wiring.layers, self.wiring.blocks
        nodes = [(layers[name].size, layers[name].features) for name in self._fixed[0]]
        edges = [
            (layers[b.source].size, layers[b.target].size, b.features) for b in map(blocks.get, self._fixed[1]) if b
        ]
        return [*nodes, *edges]

    def read(self, graph: NeuralGraph) -> Tokens:
        """The tokens of a graph with this layout, for any number of units."""
        units: dict[str, Tensor] = {}
        for layer in self.layers:
            parts = [graph.nodes[layer]]
            for b in self._own(layer):
                e = graph.edges[b.name]
                parts.append((e if b.source == layer else e.transpose(1, 2)).flatten(2))
            units[layer] = torch.cat(parts, -1)
        nodes, edges = self._fixed
        still = [graph.nodes[name].flatten(1) for name in nodes] + [graph.edges[name].flatten(1) for name in edges]
        some = next(iter(units.values()), torch.empty(graph.batch, 0))
        rest = torch.cat(still, 1) if still else some.new_empty(graph.batch, 0)
        return Tokens(units, rest, {name: graph.edges[name] for name in self.inner})

    def write(self, graph: NeuralGraph, tokens: Tokens) -> NeuralGraph:
        """The graph, of the shapes of `graph`, whose tokens are these: the inverse of `read`."""
        nodes: dict[str, Tensor] = {}
        edges: dict[str, Tensor] = dict(tokens.inner)
        for layer in self.layers:
            own, *parts = tokens.units[layer].split_with_sizes(self._split(layer), -1)
            nodes[layer] = own
            for b, x in zip(self._own(layer), parts, strict=True):
                x = torch.unflatten(x, 2, (-1, b.features))
                edges[b.name] = x if b.source == layer else x.transpose(1, 2)
        shapes = self._rest_shapes()
        still = [
            torch.unflatten(x, 1, shape)
            for x, shape in zip(tokens.rest.split_with_sizes([math.prod(s) for s in shapes], 1), shapes, strict=True)
        ]
        nodes.update(zip(self._fixed[0], still, strict=False))
        edges.update(zip(self._fixed[1], still[len(self._fixed[0]) :], strict=True))
        return graph.with_values(
            {name: nodes[name] for name in graph.wiring.layers}, {name: edges[name] for name in graph.wiring.blocks}
        )
