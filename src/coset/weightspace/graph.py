"""A network as a graph: nodes are units, edges are weights (Kofinas et al. 2024)."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from coset.checks import State
from coset.errors import StateError
from coset.symmetries import Symmetry
from coset.symmetries.axes import Axis
from coset.symmetries.views import blocks
from coset.weightspace.given import leading, refuse_torn
from coset.weightspace.wiring import Piece, Wiring


@dataclass(frozen=True)
class NeuralGraph:
    """A batch of networks of one architecture.

    nodes
        layer -> [batch, n, features]: biases, norm parameters and statistics of the units
    edges
        block -> [batch, from, to, features]: a weight, or its kernel positions
    probes
        layer -> [batch, n, inputs]: what the units do, see `coset.weightspace.probes`
    population
        False for the graph of a single state, whose batch is one

    Permuting the units of the states by p permutes the nodes of that layer and their edges by p, and nothing else.
    """

    wiring: Wiring
    nodes: Mapping[str, Tensor]
    edges: Mapping[str, Tensor]
    probes: Mapping[str, Tensor] = field(default_factory=dict)
    population: bool = True

    @property
    def batch(self) -> int:
        return next(iter([*self.nodes.values(), *self.edges.values()])).shape[0]

    def with_values(self, nodes: Mapping[str, Tensor], edges: Mapping[str, Tensor]) -> NeuralGraph:
        """The graph with other features of the same shapes, and no probes."""
        return replace(self, nodes=nodes, edges=edges, probes={})

    def with_probes(self, probes: Mapping[str, Tensor]) -> NeuralGraph:
        """The graph with these probes, layer -> [batch, n, inputs]."""
        return replace(self, probes=dict(probes))

    def state(self, like: State) -> dict[str, Tensor]:
        """The state or population with these features: the inverse of `neural_graph`, also for gradients.

        Names, dtypes and what is no part of a graph, such as counters, are those of `like`, a state or a population.
        """
        parts: dict[str, dict[int, Tensor]] = {}
        for name, layer in self.wiring.layers.items():
            chunks = self.nodes[name].split_with_sizes([piece.features for piece in layer.pieces], -1)
            for piece, values in zip(layer.pieces, chunks, strict=True):
                parts.setdefault(piece.tensor, {})[piece.block] = _block(values, piece)
        for name, edge in self.wiring.blocks.items():
            parts.setdefault(edge.piece.tensor, {})[edge.piece.block] = _block(self.edges[name], edge.piece)
        result: dict[str, Tensor] = {}
        for name, x in like.items():
            used = self.wiring.tied.get(name, name)
            if used not in parts:
                result[name] = x
                continue
            found = [parts[used][k] for k in range(len(parts[used]))]
            values = _tensor(found, self.wiring.axes[used]).to(x.dtype)
            result[name] = values if self.population else values[0]
        return result


def neural_graph(state: State, sym: Symmetry | Wiring) -> NeuralGraph:
    """The graph of a state, or of each state of a population, from its symmetry; `NeuralGraph.state` is the inverse.

    Layers of nodes are the groups of `sym`, which move, and the fixed axes (inputs, outputs), which do not. A `Wiring`
    in place of the symmetry saves working it out again.
    """
    wiring = sym if isinstance(sym, Wiring) else Wiring.of(sym, state)
    shapes = {name: tuple(axis.size for axis in axes) for name, axes in wiring.axes.items()}
    lead = leading(state, shapes, "the symmetry")
    refuse_torn(state, wiring.tied)
    values: dict[str, list[Tensor]] = {}
    for name, axes in wiring.axes.items():
        x = state[name]
        if x.is_complex():
            raise StateError(f"Tensor '{name}' is {x.dtype}, and a neural graph has real features only.")
        values[name] = [block.values for block in blocks(x if lead else x[None], axes, 1)]
    edges = {name: _features(values[b.piece.tensor], b.piece) for name, b in wiring.blocks.items()}
    nodes: dict[str, Tensor] = {}
    if not values:
        raise StateError("A graph is that of some weights, and this state has no floating tensors that belong to it.")
    anything = values[next(iter(values))][0]
    for name, layer in wiring.layers.items():
        found = [_features(values[piece.tensor], piece) for piece in layer.pieces]
        nodes[name] = torch.cat(found, -1) if found else anything.new_zeros(anything.shape[0], layer.size, 0)
    return NeuralGraph(wiring, nodes, edges, population=bool(lead))


def _features(parts: list[Tensor], piece: Piece) -> Tensor:
    """[batch, *ends, features] from the block of a tensor; a lone number is one node."""
    x = parts[piece.block].permute(0, *(1 + d for d in piece.order))
    ends = x.shape[1 : 1 + piece.ends] or (1,)
    return x.reshape(x.shape[0], *ends, piece.features)


def _block(x: Tensor, piece: Piece) -> Tensor:
    """The inverse of `_features`."""
    x = x.reshape(x.shape[0], *(piece.shape[d] for d in piece.order))
    back = sorted(range(len(piece.order)), key=piece.order.__getitem__)
    return x.permute(0, *(1 + d for d in back))


def _tensor(parts: list[Tensor], axes: tuple[Axis, ...]) -> Tensor:
    """The tensor with these blocks: put together by a gather, so that it can be differentiated and vmapped."""
    shape = (parts[0].shape[0], *(axis.size for axis in axes))
    if len(parts) == 1:
        return parts[0].reshape(shape)
    flat = torch.cat([x.flatten(1) for x in parts], 1)
    return flat[:, _places(axes).to(flat.device)].reshape(shape)


@functools.lru_cache(maxsize=4096)
def _places(axes: tuple[Axis, ...]) -> Tensor:
    """(n,) where each entry of a tensor stands in its blocks, laid out one after the other."""
    count = torch.Size([axis.size for axis in axes]).numel()
    numbers = torch.arange(count).reshape([axis.size for axis in axes])
    return torch.cat([block.values.flatten() for block in blocks(numbers, axes)]).argsort()
