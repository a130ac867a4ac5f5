"""Axes of state tensors in their final, immutable form, and the positions they describe."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Units:
    """The positions of a named index set."""

    name: str
    size: int


@dataclass(frozen=True)
class Fixed:
    """Positions whose order matters."""

    size: int


@dataclass(frozen=True)
class Product:
    """Row-major pairs, first factor outermost."""

    parts: tuple[Axis, ...]

    @property
    def size(self) -> int:
        return math.prod([part.size for part in self.parts])


@dataclass(frozen=True)
class Concat:
    """One block after the other."""

    parts: tuple[Axis, ...]

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)


@dataclass(frozen=True)
class Interleave:
    """Position j * K + k is position j of part k."""

    parts: tuple[Axis, ...]

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)


Axis = Units | Fixed | Product | Concat | Interleave
COMPOSITES: dict[str, type[Product | Concat | Interleave]] = {
    "product": Product,
    "concat": Concat,
    "interleave": Interleave,
}


@dataclass(frozen=True)
class Entry:
    """One occurrence of an index set on an axis of n positions.

    coordinate
        (n,) the unit at each position, -1 where the occurrence does not apply
    stride
        how far the position moves when the unit's number grows by one
    """

    name: str
    coordinate: Tensor
    stride: int


@dataclass(frozen=True)
class Layout:
    """Position = offset + sum over entries of stride * coordinate."""

    offset: Tensor
    entries: tuple[Entry, ...]

    def to(self, device: torch.device) -> Layout:
        entries = tuple(Entry(e.name, e.coordinate.to(device), e.stride) for e in self.entries)
        return Layout(self.offset.to(device), entries)

    def coordinate(self, name: str) -> Tensor | None:
        """(n,) the unit of an index set at each position, if the axis has it everywhere at most once."""
        found = [entry.coordinate for entry in self.entries if entry.name == name]
        return torch.stack(found).amax(0) if found else None


def names(axis: Axis) -> set[str]:
    """The index sets that occur on an axis."""
    if isinstance(axis, Units):
        return {axis.name}
    return set() if isinstance(axis, Fixed) else {name for part in axis.parts for name in names(part)}


@functools.lru_cache(maxsize=4096)
def layout(axis: Axis) -> Layout:
    """Resolve an axis to its positions."""
    n = axis.size
    if isinstance(axis, Units):
        return Layout(torch.zeros(n, dtype=torch.long), (Entry(axis.name, torch.arange(n), 1),))
    if isinstance(axis, Fixed):
        return Layout(torch.arange(n), ())
    offset = torch.zeros(n, dtype=torch.long)
    entries: list[Entry] = []
    start = 0
    for k, part in enumerate(axis.parts):
        inner = layout(part)
        if isinstance(axis, Product):
            after = math.prod(later.size for later in axis.parts[k + 1 :])
            repeats = n // (part.size * after)

            def place(x: Tensor, after: int = after, repeats: int = repeats) -> Tensor:
                return x.repeat_interleave(after).repeat(repeats)

            offset += place(inner.offset) * after
            entries += [Entry(e.name, place(e.coordinate), e.stride * after) for e in inner.entries]
            continue
        if isinstance(axis, Concat):
            where = torch.arange(start, start + part.size)
            shift, factor = start, 1
        else:
            where = torch.arange(k, n, len(axis.parts))
            shift, factor = k, len(axis.parts)
        offset[where] = inner.offset * factor + shift
        for entry in inner.entries:
            coordinate = torch.full((n,), -1, dtype=torch.long)
            coordinate[where] = entry.coordinate
            entries.append(Entry(entry.name, coordinate, entry.stride * factor))
        start += part.size
    return Layout(offset, tuple(entries))
