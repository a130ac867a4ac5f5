"""A network as a graph: nodes are units, edges are weights (Kofinas et al. 2024)."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from coset.core.errors import ModelError, StateError, SymmetryError
from coset.core.names import plural
from coset.core.show import Shown, Table
from coset.core.state import StateLike, as_state, is_coordinate, leading_shape, refuse_names, refuse_unequal_ties
from coset.symmetries.group import Axis, Label, blocks, labels
from coset.symmetries.symmetry import Symmetry


@dataclass(frozen=True)
class Piece:
    """A block of a tensor: which one, its shape, and the order of its dimensions that puts nodes before features.

    ends
        how many of its dimensions index nodes
    features
        how many numbers that leaves for a node or an edge
    """

    tensor: str
    block: int
    shape: tuple[int, ...]
    order: tuple[int, ...]
    ends: int
    features: int


@dataclass(frozen=True)
class NodeLayer:
    """Nodes of one kind: the units of an index set, or the places of a fixed axis.

    movable
        whether the symmetry permutes them; then the name is that of its group
    pieces
        what the node features are, one after the other
    """

    name: str
    size: int
    movable: bool
    pieces: tuple[Piece, ...]

    @property
    def features(self) -> int:
        return sum([piece.features for piece in self.pieces])


@dataclass(frozen=True)
class EdgeBlock:
    """All edges from the nodes of one layer to those of another, whose features are one block of a weight.

    The target stands first in the tensor, as in the weights [out, in] of linear layers and convolutions.
    """

    name: str
    source: str
    target: str
    piece: Piece

    @property
    def features(self) -> int:
        return self.piece.features


@dataclass(frozen=True, repr=False)
class Wiring(Shown):
    """The node layers by name, in the order of the network, and the edge blocks between them.

    Args:
        layers: the node layers.
        blocks: the edge blocks.
        axes: the tensors that the graph holds, and what their axes index.
        tied: other names of these tensors -> the one that is used.
    """

    layers: dict[str, NodeLayer]
    blocks: dict[str, EdgeBlock]
    axes: dict[str, tuple[Axis, ...]]
    tied: dict[str, str]

    def _shown(self) -> Table:
        layers = [
            (x.name, f"{plural(x.size, 'node')}, {'movable' if x.movable else 'fixed'}", plural(x.features, "feature"))
            for x in self.layers.values()
        ]
        blocks = [(x.name, f"{x.source} -> {x.target}", plural(x.features, "feature")) for x in self.blocks.values()]
        title = f"Wiring of {plural(len(layers), 'layer')} of nodes and {plural(len(blocks), 'block')} of edges"
        return Table(title, [*layers, *blocks])

    @classmethod
    def of(cls, sym: Symmetry, state: StateLike) -> Wiring:
        """The wiring of networks with this symmetry; none of its sets of units may lie over others.

        Args:
            sym: the symmetry of the network.
            state: a state, a module, a Dirac or the tensors of a population; says which tensors are coordinates.
        """
        tensors = as_state(state)
        refuse_names(sym.missing(tensors), [], "the state for a neural graph")
        return _Builder(sym).build([name for name in sym.axes if name in tensors and is_coordinate(tensors[name])])

    @cached_property
    def kind(self) -> tuple[object, ...]:
        """What networks on graphs depend on: all but the number of units that can move."""
        layers = [(x.name, None if x.movable else x.size, x.features) for x in self.layers.values()]
        blocks = [(x.name, x.source, x.target, x.features) for x in self.blocks.values()]
        return (*layers, *blocks)

    def refuse(self, other: Wiring) -> None:
        """Refuse a graph of another kind than this.

        Args:
            other: the wiring of that graph.
        """
        if other is self or self.kind == other.kind:
            return
        mine, theirs = set(self.kind), set(other.kind)
        odd = next(iter([x for x in other.kind if x not in mine] or [x for x in self.kind if x not in theirs]), None)
        name = odd[0] if isinstance(odd, tuple) else "the order of layers"
        raise ModelError(
            f"This network is made for graphs of another architecture: they differ in {name!r}; only the number of "
            "units in layers that can be permuted may differ."
        )


class _Builder:
    def __init__(self, sym: Symmetry) -> None:
        self.sym = sym
        self.sizes: dict[str, int] = {}
        self.pieces: dict[str, list[Piece]] = {}
        self.blocks: dict[str, EdgeBlock] = {}

    def build(self, names: Sequence[str]) -> Wiring:
        first: dict[str, str] = {}
        tied = {name: first.setdefault(self.sym.tied.get(name, name), name) for name in names}
        axes = {name: self.sym.axes[name] for name in first.values()}
        for tensor, row in axes.items():
            # The blocks of a tensor are all combinations of the parts of its axes, in this order.
            parts = [list(enumerate(labels((axis,)))) for axis in row]
            for k, combination in enumerate(itertools.product(*parts)):
                dims = [(label, d, part) for d, (part, block) in enumerate(combination) for label in block]
                self._block(tensor, k, math.prod(len(x) for x in parts) > 1, dims)
        layers = {
            name: NodeLayer(
                name,
                size,
                name in self.sym.sets and self.sym.sets[name].movable,
                tuple(self.pieces.get(name, ())),
            )
            for name, size in self.sizes.items()
        }
        return Wiring(layers, self.blocks, axes, {name: used for name, used in tied.items() if name != used})

    def _block(self, tensor: str, k: int, many: bool, dims: Sequence[tuple[Label, int, int]]) -> None:
        ends = self._ends(tensor, [(label, axis) for label, axis, _ in dims])
        # Sources first, so that layers come in the order of the network.
        names = [self._layer(tensor, *dims[d]) for d in reversed(ends)] or [self._fixed_layer(tensor, 1)]
        shape = tuple(label.size for label, _, _ in dims)
        others = [d for d in range(len(shape)) if d not in ends]
        piece = Piece(tensor, k, shape, (*reversed(ends), *others), len(ends), math.prod(shape[d] for d in others))
        if len(ends) < 2:
            self.pieces.setdefault(names[0], []).append(piece)
        else:
            name = f"{tensor}.{k}" if many else tensor
            self.blocks[name] = EdgeBlock(name, names[0], names[1], piece)

    def _ends(self, tensor: str, dims: Sequence[tuple[Label, int]]) -> list[int]:
        """The dimensions of a block that index nodes: none, one, or target and source."""
        units = [d for d, (label, _) in enumerate(dims) if label.units]
        for d in units:
            index_set = self.sym.sets[dims[d][0].units]
            if index_set.over:
                raise SymmetryError(
                    f"A neural graph has no nodes for {index_set.name!r}, whose units have an order of their own for "
                    f"each of {' and '.join(map(repr, index_set.over))}, as in attention heads: use a network without "
                    "such."
                )
        if len(units) > 2:
            raise SymmetryError(
                f"Tensor {tensor!r} joins {len(units)} sets of units, and an edge of a neural graph joins two: use a "
                "network without such a tensor."
            )
        if len(units) == 2:
            return units
        used_axes = {dims[d][1] for d in units}
        # Inputs and outputs of a weight are its first two axes; a fixed order on another one is a position.
        fixed = {axis: d for d, (label, axis) in reversed(list(enumerate(dims))) if not label.units}
        more = [d for axis, d in fixed.items() if axis not in used_axes and axis < 2]
        if units and dims[units[0]][1] > 1:
            more = sorted(more, key=lambda d: dims[d][0].size)[-1:]
        return sorted([*units, *more])

    def _layer(self, tensor: str, label: Label, axis: int, part: int) -> str:
        if label.units:
            self.sizes.setdefault(label.units, label.size)
            return label.units
        owner = tensor.rpartition(".")[0] or tensor
        role = "outputs" if axis == 0 else "inputs"
        return self._fixed_layer(f"{owner}.{role}" + (f".{part}" if part else ""), label.size)

    def _fixed_layer(self, name: str, size: int) -> str:
        """A layer of nodes that stay: weight and bias of a module share its outputs, if they have as many."""
        while name in self.sym.sets or self.sizes.get(name, size) != size:
            name = f"{name}.{size}"
        self.sizes.setdefault(name, size)
        return name


@dataclass(frozen=True, repr=False)
class NeuralGraph(Shown):
    """A batch of networks of one architecture as graphs. `coset.neural_graph` makes it.

    Permuting the units of the states by p permutes the nodes of that layer and their edges by p, and nothing else.

    Args:
        wiring: the layers of nodes and blocks of edges.
        nodes: layer -> [batch, n, features]: biases, norm parameters and statistics of the units.
        edges: block -> [batch, from, to, features]: a weight, or its kernel positions.
        probes: layer -> [batch, n, inputs]: what the units do, see `coset.probes`.
        population: False for the graph of a single state, whose batch is one.

    Example:
        >>> graph = coset.neural_graph(a, sym)
        >>> {name: tuple(x.shape) for name, x in graph.edges.items()}
        {'layers.0.weight': (1, 64, 16, 1), 'layers.1.weight': (1, 16, 10, 1)}
    """

    wiring: Wiring
    nodes: Mapping[str, Tensor]
    edges: Mapping[str, Tensor]
    probes: Mapping[str, Tensor] = field(default_factory=dict)
    population: bool = True

    def _shown(self) -> Table:
        nodes = [(name, "nodes", "x".join(map(str, x.shape[1:]))) for name, x in self.nodes.items()]
        edges = [(name, "edges", "x".join(map(str, x.shape[1:]))) for name, x in self.edges.items()]
        return Table(f"NeuralGraph of {plural(self.batch, 'network')}", [*nodes, *edges])

    @property
    def batch(self) -> int:
        """How many networks."""
        return next(iter([*self.nodes.values(), *self.edges.values()])).shape[0]

    def with_values(self, nodes: Mapping[str, Tensor], edges: Mapping[str, Tensor]) -> NeuralGraph:
        """The graph with other features of the same shapes, and no probes.

        Args:
            nodes: layer -> [batch, n, features].
            edges: block -> [batch, from, to, features].
        """
        return replace(self, nodes=nodes, edges=edges, probes={})

    def with_probes(self, probes: Mapping[str, Tensor]) -> NeuralGraph:
        """The same graph with probes.

        Args:
            probes: layer -> [batch, n, inputs], as `coset.probes` gives them.
        """
        return replace(self, probes=dict(probes))

    def state(self, like: StateLike) -> dict[str, Tensor]:
        """The state or population with these features: the inverse of `coset.neural_graph`, also for gradients.

        Args:
            like: a state, a module, a Dirac or the tensors of a population, whose names, dtypes and tensors that are
                no part of a graph, such as counters, the result has.
        """
        parts: dict[str, dict[int, Tensor]] = {}
        for name, layer in self.wiring.layers.items():
            chunks = self.nodes[name].split_with_sizes([piece.features for piece in layer.pieces], -1)
            for piece, values in zip(layer.pieces, chunks, strict=True):
                parts.setdefault(piece.tensor, {})[piece.block] = _block(values, piece)
        for name, edge in self.wiring.blocks.items():
            parts.setdefault(edge.piece.tensor, {})[edge.piece.block] = _block(self.edges[name], edge.piece)
        result: dict[str, Tensor] = {}
        for name, x in as_state(like, "the state to be like").items():
            used = self.wiring.tied.get(name, name)
            if used not in parts:
                result[name] = x
                continue
            blocks_of_tensor = [parts[used][k] for k in range(len(parts[used]))]
            values = _tensor(blocks_of_tensor, self.wiring.axes[used]).to(x.dtype)
            result[name] = values if self.population else values[0]
        return result


def neural_graph(state: StateLike, sym: Symmetry | Wiring) -> NeuralGraph:
    """The graph of a network, or of each network of a population, from its symmetry (Kofinas et al. 2024).

    Layers of nodes are the groups of `sym`, which move, and the fixed axes (inputs, outputs), which do not.
    `NeuralGraph.state` is the inverse.

    Args:
        state: a state, a module or a Dirac; or the tensors of a population.
        sym: the symmetry of the network, or the `wiring` of another graph of it, which saves working it out again.

    Returns:
        A batch of graphs, of one for a single network.

    Raises:
        SymmetryError: units lie over others, as in attention heads, or a tensor joins three sets of units.
        StateError: names or shapes are not those of the symmetry, or weights are complex.

    Example:
        >>> graph = coset.neural_graph(a, sym)
        >>> coset.state.allclose(graph.state(a), a.state)
        True
    """
    state = as_state(state)
    wiring = sym if isinstance(sym, Wiring) else Wiring.of(sym, state)
    shapes = {name: tuple(axis.size for axis in axes) for name, axes in wiring.axes.items()}
    lead = leading_shape(state, shapes, "the symmetry")
    refuse_unequal_ties(state, wiring.tied)
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
        features = [_features(values[piece.tensor], piece) for piece in layer.pieces]
        nodes[name] = torch.cat(features, -1) if features else anything.new_zeros(anything.shape[0], layer.size, 0)
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
