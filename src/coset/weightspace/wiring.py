"""How the tensors of a network become nodes and edges of a graph: told by its symmetry alone.

Every dimension of a tensor's block (see `coset.symmetries.views`) indexes units or a fixed order. Two of them become
the ends of edges, or one the nodes; the others, such as the positions of a kernel, become features.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from coset.checks import State, is_coordinate, refuse_names
from coset.errors import ModelError, SymmetryError
from coset.symmetries import Symmetry
from coset.symmetries.axes import Axis
from coset.symmetries.views import Label, labels


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


@dataclass(frozen=True)
class Wiring:
    """The node layers by name, in the order of the network, and the edge blocks between them.

    axes
        the tensors that the graph holds, and what their axes index
    tied
        other names of these tensors -> the one that is used
    """

    layers: dict[str, NodeLayer]
    blocks: dict[str, EdgeBlock]
    axes: dict[str, tuple[Axis, ...]]
    tied: dict[str, str]

    @classmethod
    def of(cls, sym: Symmetry, state: State) -> Wiring:
        """The wiring of networks with this symmetry; a state or a population tells which tensors are coordinates.

        None of the sets of units may lie over others.
        """
        refuse_names(sym.missing(state), [], "the state for a neural graph")
        return _Builder(sym).build([name for name in sym.axes if name in state and is_coordinate(state[name])])

    @cached_property
    def kind(self) -> tuple[object, ...]:
        """What networks on graphs depend on: all but the number of units that can move."""
        layers = [(x.name, None if x.movable else x.size, x.features) for x in self.layers.values()]
        blocks = [(x.name, x.source, x.target, x.features) for x in self.blocks.values()]
        return (*layers, *blocks)

    def refuse(self, other: Wiring) -> None:
        """Refuse a graph of another kind than this."""
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
            for k, chosen in enumerate(itertools.product(*parts)):
                found = [(label, d, part) for d, (part, block) in enumerate(chosen) for label in block]
                self._block(tensor, k, math.prod(len(x) for x in parts) > 1, found)
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

    def _block(self, tensor: str, k: int, many: bool, found: Sequence[tuple[Label, int, int]]) -> None:
        ends = self._ends(tensor, [(label, axis) for label, axis, _ in found])
        # Sources first, so that layers come in the order of the network.
        names = [self._layer(tensor, *found[d]) for d in reversed(ends)] or [self._named(tensor, 1)]
        shape = tuple(label.size for label, _, _ in found)
        others = [d for d in range(len(shape)) if d not in ends]
        piece = Piece(tensor, k, shape, (*reversed(ends), *others), len(ends), math.prod(shape[d] for d in others))
        if len(ends) < 2:
            self.pieces.setdefault(names[0], []).append(piece)
        else:
            name = f"{tensor}.{k}" if many else tensor
            self.blocks[name] = EdgeBlock(name, names[0], names[1], piece)

    def _ends(self, tensor: str, found: Sequence[tuple[Label, int]]) -> list[int]:
        """The dimensions of a block that index nodes: none, one, or target and source."""
        units = [d for d, (label, _) in enumerate(found) if label.units]
        for d in units:
            known = self.sym.sets[found[d][0].units]
            if known.over:
                raise SymmetryError(
                    f"A neural graph has no nodes for {known.name!r}, whose units have an order of their own for each "
                    f"of {' and '.join(map(repr, known.over))}, as in attention heads: use a network without such."
                )
        if len(units) > 2:
            raise SymmetryError(
                f"Tensor {tensor!r} joins {len(units)} sets of units, and an edge of a neural graph joins two: use a "
                "network without such a tensor."
            )
        if len(units) == 2:
            return units
        taken = {found[d][1] for d in units}
        # Inputs and outputs of a weight are its first two axes; a fixed order on another one is a position.
        fixed = {axis: d for d, (label, axis) in reversed(list(enumerate(found))) if not label.units}
        more = [d for axis, d in fixed.items() if axis not in taken and axis < 2]
        if units and found[units[0]][1] > 1:
            more = sorted(more, key=lambda d: found[d][0].size)[-1:]
        return sorted([*units, *more])

    def _layer(self, tensor: str, label: Label, axis: int, part: int) -> str:
        if label.units:
            self.sizes.setdefault(label.units, label.size)
            return label.units
        owner = tensor.rpartition(".")[0] or tensor
        role = "outputs" if axis == 0 else "inputs"
        return self._named(f"{owner}.{role}" + (f".{part}" if part else ""), label.size)

    def _named(self, name: str, size: int) -> str:
        """A layer of nodes that stay: weight and bias of a module share its outputs, if they have as many."""
        while name in self.sym.sets or self.sizes.get(name, size) != size:
            name = f"{name}.{size}"
        self.sizes.setdefault(name, size)
        return name
