"""A tensor as dense blocks whose every dimension indexes one set of units, or a fixed order.

Concatenated and interleaved axes are cut apart, products are unfolded; all are views, nothing is copied.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coset.symmetries.axes import Axis, Concat, Fixed, Interleave, Units
from coset.symmetries.group import IndexSet


@dataclass(frozen=True)
class Label:
    """What a dimension of a block indexes: a set of units (empty: a fixed order), on an axis of the tensor."""

    units: str
    axis: int
    size: int


@dataclass(frozen=True)
class Block:
    """values: a dimension for each label, after `lead` others."""

    values: Tensor
    labels: tuple[Label, ...]

    def where(self, units: str) -> list[int]:
        """The labels that name these units."""
        return [d for d, label in enumerate(self.labels) if label.units == units]

    def base(self, d: int, base: str) -> int:
        """The label of the base that units at label d lie over: on the same axis, else on another."""
        found = self.where(base)
        return next((e for e in found if self.labels[e].axis == self.labels[d].axis), found[0])

    def bases(self, d: int, known: IndexSet) -> list[int]:
        return [self.base(d, base) for base in known.over]


def blocks(tensor: Tensor, axes: Sequence[Axis], lead: int = 0) -> list[Block]:
    """The blocks of a tensor whose dimensions after the first `lead` have these axes."""
    rows: list[tuple[Tensor, tuple[Label, ...]]] = [(tensor, ())]
    for d, axis in enumerate(axes):
        rows = [
            (part, (*labels, *more))
            for values, labels in rows
            for part, more in _apart(values, lead + len(labels), axis, d)
        ]
    return [Block(values, labels) for values, labels in rows]


@functools.lru_cache(maxsize=4096)
def labels(axes: tuple[Axis, ...]) -> tuple[tuple[Label, ...], ...]:
    """The labels of each block of a tensor with these axes."""
    empty = torch.empty([axis.size for axis in axes], device="meta")
    return tuple(block.labels for block in blocks(empty, axes))


def _apart(values: Tensor, dim: int, axis: Axis, number: int) -> list[tuple[Tensor, tuple[Label, ...]]]:
    """Views of `values` whose dimension `dim` is replaced by one for each factor of `axis`."""
    if isinstance(axis, Units):
        return [(values, (Label(axis.name, number, axis.size),))]
    if isinstance(axis, Fixed):
        return [(values, (Label("", number, axis.size),))]
    found: list[tuple[Tensor, tuple[Label, ...]]] = []
    if isinstance(axis, Concat):
        start = 0
        for part in axis.parts:
            found += _apart(values.narrow(dim, start, part.size), dim, part, number)
            start += part.size
        return found
    if isinstance(axis, Interleave):
        lanes = torch.unflatten(values, dim, (-1, len(axis.parts)))
        for k, part in enumerate(axis.parts):
            found += _apart(lanes.select(dim + 1, k), dim, part, number)
        return found
    rows: list[tuple[Tensor, tuple[Label, ...]]] = [
        (torch.unflatten(values, dim, [part.size for part in axis.parts]), ())
    ]
    for part in axis.parts:
        rows = [
            (inner, (*done, *more))
            for outer, done in rows
            for inner, more in _apart(outer, dim + len(done), part, number)
        ]
    return rows
