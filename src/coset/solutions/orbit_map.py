"""A Gaussian as two vectors over the coordinates that a symmetry may move."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from coset.core.errors import CosetError
from coset.core.state import distinct
from coset.solutions.gaussian import Gaussian
from coset.symmetries.group import Block, blocks
from coset.symmetries.symmetry import Symmetry

Permutations = dict[str, Tensor]
"""index set -> (*batch, copies, size); one copy where the set lies over no other"""


@dataclass(frozen=True, eq=False)
class _Factor:
    """A dimension of a block: a permutation p moves position x along it to x + stride (p[copy, unit] - unit)."""

    units: str
    stride: int
    unit: Tensor
    copy: Tensor


@dataclass(frozen=True, eq=False)
class _Piece:
    """Coordinates of the vector, and the dimensions along which they can move; all are flat."""

    positions: Tensor
    factors: tuple[_Factor, ...]


class OrbitMap:
    """How the permutations of a symmetry act on a vector of parameters: (g w)[x] = w[index(g)[x]].

    The vector holds the tensors of `shapes` one after the other, flattened. Factors of rescalings are no part of it.
    Everything is on `device` from the start, so drawing elements and applying them can be captured.
    """

    def __init__(self, sym: Symmetry, shapes: Mapping[str, torch.Size], device: torch.device) -> None:
        self.size = sum(shape.numel() for shape in shapes.values())
        self.device = device
        self._blocks: list[Block] = []
        positions = torch.split(torch.arange(self.size), [shape.numel() for shape in shapes.values()])
        first = {other: name for name, other in sym.tied.items()}
        for name, part in zip(shapes, positions, strict=True):
            axes = sym.axes.get(name, sym.axes.get(first.get(name, "")))
            if axes and part.numel():
                self._blocks += blocks(part.view(shapes[name]), axes)
        present = {label.units for block in self._blocks for label in block.labels}
        self.sets = {n: s for n, s in sym.sets.items() if s.movable and s.size > 1 and n in present}
        self._sizes = {name: units.size for name, units in sym.sets.items()}
        self._pieces = [piece for block in self._blocks if (piece := self._piece(block)).factors]

    def copies(self, name: str) -> int:
        """How many orders a set has: one for each combination of the units it lies over."""
        return math.prod(self._sizes[base] for base in self.sets[name].over)

    @property
    def log_order(self) -> float:
        """log of the number of permutations."""
        return sum(self.log_orders.values())

    @property
    def log_orders(self) -> dict[str, float]:
        """log of the number of permutations of each set."""
        return {name: self.copies(name) * math.lgamma(units.size + 1) for name, units in self.sets.items()}

    def uniform(self, batch: tuple[int, ...], generator: torch.Generator | None = None) -> Permutations:
        """Uniform elements."""
        return {name: self.uniform_of(name, batch, generator) for name in self.sets}

    def uniform_of(self, name: str, batch: tuple[int, ...], generator: torch.Generator | None = None) -> Tensor:
        """Uniform permutations of one set, (*batch, copies, size)."""
        shape = (*batch, self.copies(name), self.sets[name].size)
        return torch.rand(shape, generator=generator, device=self.device).argsort(-1)

    def index(self, permutations: Permutations) -> Tensor:
        """(*batch, p) where each coordinate of g w comes from; sets that are not named stay."""
        batch = next(iter(permutations.values())).shape[:-2]
        out = torch.arange(self.size, device=self.device).expand(*batch, self.size).clone()
        for piece in self._pieces:
            source = piece.positions
            for factor in piece.factors:
                if factor.units in permutations:
                    image = permutations[factor.units][..., factor.copy, factor.unit]
                    source = source + factor.stride * (image - factor.unit)
            out[..., piece.positions] = source.expand(*batch, -1)
        return out

    def units(self, name: str, apart_from: Collection[str] = ()) -> Tensor | None:
        """(copies, size, d): the coordinates of each unit, such that (g w)[x[c, i]] = w[x[c, p[c, i]]] for its moves.

        Without those that belong to a unit of the sets `apart_from` too. None if some coordinates belong to two units
        of this set at once, as those of the weights from a set of units to itself.
        """
        units = self.sets[name]
        columns = [torch.empty(self.copies(name), units.size, 0, dtype=torch.int64)]
        for block in self._blocks:
            where = block.where(name)
            if len(where) > 1:
                return None
            if where and not any(label.units in apart_from for label in block.labels):
                bases = block.bases(where[0], units)
                values = block.values.movedim((*bases, where[0]), tuple(range(len(bases) + 1)))
                columns.append(values.reshape(self.copies(name), units.size, -1))
        return torch.cat(columns, -1).to(self.device)

    def independent(self) -> list[str]:
        """Sets that share no coordinate with each other, of largest order: their moves do not interfere.

        By search among up to sixteen linear sets, greedily among more.
        """
        names = [name for name in self.sets if self.units(name) is not None]
        shared = {frozenset(u for u in (label.units for label in b.labels) if u in names) for b in self._blocks}
        rivals = {name: {other for pair in shared if name in pair for other in pair} - {name} for name in names}
        orders = self.log_orders
        names.sort(key=lambda name: -orders[name])
        if len(names) > 16:
            greedy: list[str] = []
            for name in names:
                if not rivals[name] & {*greedy}:
                    greedy.append(name)
            return greedy
        best: tuple[float, list[str]] = (0.0, [])
        stack: list[tuple[float, list[str], list[str]]] = [(0.0, [], names)]
        while stack:
            value, selection, candidates = stack.pop()
            best = max(best, (value, selection), key=lambda pair: pair[0])
            for k, name in enumerate(candidates):
                rest = [other for other in candidates[k + 1 :] if other not in rivals[name]]
                stack.append((value + orders[name], [*selection, name], rest))
        return best[1]

    def _piece(self, block: Block) -> _Piece:
        shape = block.values.shape
        grids = torch.meshgrid(*[torch.arange(n) for n in shape], indexing="ij")
        factors = []
        for d, label in enumerate(block.labels):
            if label.units not in self.sets:
                continue
            stride = int(block.values.select(d, 1).flatten()[0] - block.values.flatten()[0])
            copy = torch.zeros_like(grids[d])
            for base, at in zip(self.sets[label.units].over, block.bases(d, self.sets[label.units]), strict=True):
                copy = copy * self._sizes[base] + grids[at]
            flat = (x.flatten().to(self.device) for x in (grids[d], copy))
            factors.append(_Factor(label.units, stride, *flat))
        return _Piece(block.values.flatten().to(self.device), tuple(factors))


@dataclass(frozen=True, eq=False)
class FlatGaussian:
    """A Gaussian as vectors mean and std (p,) of its random tensors `names`, one after the other.

    orbit: how permutations move them.
    """

    names: tuple[str, ...]
    mean: Tensor
    std: Tensor
    orbit: OrbitMap

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """(n, p)."""
        noise = torch.randn((n, len(self.mean)), generator=generator, device=generator.device, dtype=self.mean.dtype)
        return self.mean + self.std * noise.to(self.mean.device)


def flat_gaussian(q: Gaussian, sym: Symmetry) -> FlatGaussian:
    """`q` as vectors, on its device; refused if a tensor that moves is fixed, since its images do not overlap."""
    names = [name for name in distinct(q.std) if bool((q.std[name] > 0).all())]
    movable = {name for group in sym.groups if group.size > 1 for name, _ in group.members}
    random = {*names} | {second for second, first in sym.tied.items() if first in names}
    for name in movable - random:
        if name in q.mean:
            raise CosetError(
                f"Tensor '{name}' is moved by the symmetry but has coordinates with standard deviation 0: equivalent "
                "modes of this posterior do not overlap at all."
            )
    shapes = {name: q.mean[name].shape for name in names}
    if not names:
        raise CosetError("No tensor of this posterior is random, so there is nothing to symmetrize.")
    mean, std = (torch.cat([x[name].flatten() for name in names]) for x in (q.mean, q.std))
    return FlatGaussian(tuple(names), mean, std, OrbitMap(sym, shapes, mean.device))
