"""The symmetry group of a model: index sets, groups, elements and their action on states."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from coset.core.errors import SymmetryError
from coset.core.show import Shown, Table


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
        coordinates = [entry.coordinate for entry in self.entries if entry.name == name]
        return torch.stack(coordinates).amax(0) if coordinates else None


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


@dataclass(frozen=True)
class IndexSet:
    """A set of units that some axes of the state index.

    over
        index sets this one is fibred over: a separate copy for each of their values
    movable
        whether the units can be permuted
    """

    name: str
    size: int
    over: tuple[str, ...] = ()
    movable: bool = True


@dataclass(frozen=True, repr=False)
class Group(Shown):
    """Permutations of the units of one index set, one for each of ``copies`` fibres.

    Args:
        name: Of the index set: the first module that produces the units.
        size: How many units there are.
        members: The (tensor, axis) pairs on which the units stand.
        copies: How many independent orders there are: one for each combination of the units in `over`.
        over: Other groups, for each of whose units these have an order of their own, as those of attention heads do.
        kind: "permutation", the only one.

    Example:
        >>> group = sym.groups[0]
        >>> group.name, group.size, group.members[0]
        ('layers.0', 16, ('layers.0.weight', 0))
    """

    name: str
    size: int
    members: tuple[tuple[str, int], ...]
    copies: int = 1
    over: tuple[str, ...] = ()
    kind: Literal["permutation"] = "permutation"

    @property
    def log_order(self) -> float:
        """log of the number of permutations, `copies * log(size!)`."""
        return self.copies * math.lgamma(self.size + 1)

    def _shown(self) -> Table:
        apart = f", apart in each of {self.copies} of {', '.join(self.over)}" if self.over else ""
        return Table(f"Group {self.name}: {self.size} units in any order{apart}", [*self.members])


ScalingKind = Literal["scaling", "sign"]


@dataclass(frozen=True)
class ScaledAxis:
    """How a scaling acts on one axis: t -> (t + offset) c^power - offset.

    axis None is the whole tensor; ``occurrence`` counts where the units stand on the axis more than once.
    """

    tensor: str
    axis: int | None
    power: float
    offset: float = 0.0
    occurrence: int = 0


@dataclass(frozen=True, repr=False)
class Scaling(Shown):
    """A free factor for each unit of an index set: positive, or a sign.

    Args:
        name: Unique in its symmetry.
        units: The group whose units have the factors; "" for one factor of whole tensors.
        size: How many units there are.
        members: How it acts on each axis that it reaches.
        copies: How many sets of factors there are: one for each combination of the units in `over`.
        over: The groups that the units lie over.
        kind: "scaling" or "sign".
        exact: False where the epsilon of a norm breaks the invariance in the last digits.
        note: The op that does so.
        evaluation_only: True where it moves running statistics, or the function in training mode: it is gone once
            statistics are computed anew.
    """

    name: str
    units: str
    size: int
    members: tuple[ScaledAxis, ...]
    copies: int = 1
    over: tuple[str, ...] = ()
    kind: ScalingKind = "scaling"
    exact: bool = True
    note: str = ""
    evaluation_only: bool = False

    @property
    def in_both_modes(self) -> bool:
        """Whether it is exact in evaluation and in training, as are those that coset moves networks by."""
        return self.exact and not self.evaluation_only

    @property
    def precision(self) -> str:
        """How well it holds, and where, in a few words."""
        if not self.exact:
            return f"approximate: {self.note} adds a small constant"
        return "exact in evaluation only" if self.evaluation_only else "exact"

    def _shown(self) -> Table:
        what = "a sign" if self.kind == "sign" else "a positive factor"
        each = f"for each of {self.size} units of {self.units}" if self.units else "for whole tensors"
        apart = f", apart in each of {self.copies} of {', '.join(self.over)}" if self.over else ""
        rough = "" if self.in_both_modes else f"; {self.precision}"
        rows = [(m.tensor, "all axes" if m.axis is None else m.axis, f"power {m.power:g}") for m in self.members]
        return Table(f"Scaling {self.name}: {what} {each}{apart}{rough}", rows)


MatrixKind = Literal["linear", "orthogonal", "centred", "phase"]
MATRICES: dict[MatrixKind, str] = {
    "linear": "any invertible matrix",
    "orthogonal": "an orthogonal matrix",
    "centred": "an orthogonal matrix that fixes the vector of ones",
    "phase": "a rotation of each pair",
}


@dataclass(frozen=True)
class MatrixAxis:
    """Where matrices act on one axis: M, or its inverse transpose if ``dual``.

    ``occurrence`` counts where the units stand on the axis more than once; pairs are made with those of ``partner``.
    """

    tensor: str
    axis: int
    occurrence: int = 0
    dual: bool = False
    partner: int | None = None


@dataclass(frozen=True, repr=False)
class MatrixGroup(Shown):
    """Matrices that the units of one index set may be multiplied by, one for each of ``copies`` fibres.

    Args:
        name: Of the index set.
        kind: "linear": any invertible matrix, GL(n). "orthogonal": O(n). "centred": the orthogonal matrices that fix
            the vector of ones, O(n-1). "phase": a rotation of each pair of units, as rotary positions allow.
        size: How many units there are; of pairs, how many pairs.
        members: The axes that it acts on.
        copies: How many independent matrices there are: one for each combination of the units in `over`.
        over: The groups that the units lie over.
        gains: Tensors that must be one along the units, which `coset.fold` makes so.

    Example:
        >>> [(group.name, group.kind, group.dimension) for group in sym.matrices]
        []
    """

    name: str
    kind: MatrixKind
    size: int
    members: tuple[MatrixAxis, ...]
    copies: int = 1
    over: tuple[str, ...] = ()
    gains: tuple[str, ...] = ()

    @property
    def dimension(self) -> int:
        """How many numbers a matrix is free in, over all copies."""
        n = self.size
        each = {"linear": n * n, "orthogonal": n * (n - 1) // 2, "centred": (n - 1) * (n - 2) // 2, "phase": n}
        return self.copies * each[self.kind]

    @property
    def order(self) -> int:
        """Of the matrices: pairs are turned by 2 x 2."""
        return 2 if self.kind == "phase" else self.size

    def _shown(self) -> Table:
        apart = f", apart in each of {self.copies} of {', '.join(self.over)}" if self.over else ""
        once = f", once {', '.join(self.gains)} is one" if self.gains else ""
        rows = [(m.tensor, m.axis, "inverse transpose" if m.dual else "") for m in self.members]
        return Table(f"MatrixGroup {self.name}: {MATRICES[self.kind]} of {self.size} units{apart}{once}", rows)


@dataclass(frozen=True, repr=False)
class FixedAxis(Shown):
    """An axis, or a part of one, that cannot move, and the op that says so.

    Args:
        tensor: The tensor of the state.
        axis: Its axis.
        size: How many positions are fixed.
        op: The op that fixes them.
        reason: Why, in a few words.
    """

    tensor: str
    axis: int
    size: int
    op: str
    reason: str

    def _shown(self) -> Table:
        return Table(
            f"FixedAxis {self.tensor}:{self.axis} ({self.size}): {self.reason}{f' ({self.op})' if self.op else ''}"
        )


@dataclass(frozen=True, repr=False)
class Element(Shown):
    """A group element: unit i of the result is unit p[i] of the argument, times its factor; then matrices act.

    `Symmetry.identity`, `random` and `element` make them, and so does alignment.

    Args:
        sets: The index sets of the symmetry by name.
        permutations: Group name -> (*batch, size), or (*batch, copies, size) for units that lie over others; an absent
            one is the identity.
        scales: Scaling name -> factors of the same shape; absent ones are one.
        units: Scaling name -> the group whose units take its factors.
        matrices: Matrix group name -> (*batch, n, n), or (*batch, copies, n, n) for units that lie over others; pairs
            have (..., n, 2, 2). Absent ones are the identity.
        powers: Scaling name -> the power of its factors on vectors of its units, where matrices act on all of these.

    Example:
        >>> g = sym.random(torch.Generator().manual_seed(0))
        >>> torch.equal((g @ g.inverse())["layers.0"], torch.arange(16))
        True
    """

    sets: Mapping[str, IndexSet] = field(repr=False)
    permutations: Mapping[str, Tensor]
    scales: Mapping[str, Tensor] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict, repr=False)
    matrices: Mapping[str, Tensor] = field(default_factory=dict)
    powers: Mapping[str, float] = field(default_factory=dict, repr=False)

    def __getitem__(self, name: str) -> Tensor:
        """The permutation of a group, also where it is the identity.

        Args:
            name: The group.
        """
        if name not in self.sets:
            raise SymmetryError(f"there is no group {name!r}")
        p = self.permutations.get(name)
        return self._identity(name) if p is None else p

    def _shown(self) -> Table:
        rows: list[tuple[object, ...]] = []
        for name, p in self.permutations.items():
            moves = int((p != self._identity(name).to(p.device)).sum())
            rows.append((name, f"moves {moves:,} of {p.numel():,} units", _first(p.flatten().tolist())))
        for name, c in self.scales.items():
            rows.append((name, f"{int((c != 1).sum()):,} factors that are not one", _first(c.flatten().tolist())))
        for name, m in self.matrices.items():
            rows.append((name, f"{math.prod(m.shape[:-2]):,} matrices of {m.shape[-1]} x {m.shape[-1]}"))
        many = f"{self.batch[0]:,} elements" if self.batch else "one element"
        return Table(f"Element: {many}{'' if rows else ', the identity'}", rows)

    @property
    def batch(self) -> tuple[int, ...]:
        """(n,) for n elements in one, which act on as many states; () for one element."""
        for name, p in self.permutations.items():
            return tuple(p.shape[: -2 if self.sets[name].over else -1])
        for name, c in self.scales.items():
            units = self.units[name]
            fibred = units in self.sets and self.sets[units].over
            return tuple(c.shape[: -2 if fibred else -1])
        for name, m in self.matrices.items():
            return tuple(m.shape[: m.dim() - self._rank(name)])
        return ()

    def _rank(self, name: str) -> int:
        """How many dimensions matrices have besides those of a batch."""
        return 2 + bool(self.sets[name].over) + (not self.sets[name].movable)

    def _identity(self, name: str) -> Tensor:
        index_set = self.sets[name]
        device = next((p.device for p in self.permutations.values()), torch.device("cpu"))
        row = torch.arange(index_set.size, device=device)
        return row.expand(self._copies(name), index_set.size) if index_set.over else row

    def _copies(self, name: str) -> int:
        return math.prod(self.sets[base].size for base in self.sets[name].over)

    def _flat(self, name: str) -> Tensor:
        """(*batch, copies, size)."""
        p = self[name]
        return p if self.sets[name].over else p.unsqueeze(-2)

    def source_copy(self, name: str) -> Tensor:
        """(*batch, copies) which fibre of the argument each fibre of the result comes from.

        Args:
            name: A group of units that lie over others.
        """
        over = self.sets[name].over
        sizes = [self.sets[base].size for base in over]
        grid = torch.cartesian_prod(*[torch.arange(n) for n in sizes]).reshape(-1, len(sizes))
        source = torch.zeros(grid.shape[0], dtype=torch.long, device=self[name].device)
        for k, base in enumerate(over):
            copy = torch.zeros(grid.shape[0], dtype=torch.long)
            for outer in self.sets[base].over:
                copy = copy * self.sets[outer].size + grid[:, over.index(outer)]
            p = self._flat(base)
            source = source * sizes[k] + p[..., copy.to(p.device), grid[:, k].to(p.device)].to(source.device)
        return source

    def _pull(self, name: str, x: Tensor) -> Tensor:
        """x of shape (*batch, copies, size) read at the source of each unit."""
        p = self._flat(name)
        if self.sets[name].over:
            copy = self.source_copy(name).to(x.device)
            batch = _joint(copy.shape[:-1], x.shape[:-2])
            x = x.expand(*batch, *x.shape[-2:])
            x = x.gather(-2, copy.expand(*batch, copy.shape[-1]).unsqueeze(-1).expand(x.shape))
        batch = _joint(p.shape[:-2], x.shape[:-2])
        return x.expand(*batch, *x.shape[-2:]).gather(-1, p.expand(*batch, *p.shape[-2:]).to(x.device))

    def _shaped(self, units: str, x: Tensor) -> Tensor:
        return x if units in self.sets and self.sets[units].over else x.squeeze(-2)

    def _scale(self, name: str) -> tuple[str, Tensor]:
        units = self.units[name]
        x = self.scales[name]
        return units, x if units in self.sets and self.sets[units].over else x.unsqueeze(-2)

    def __matmul__(self, other: Element) -> Element:
        """This one after another: `act(g @ h, s) == act(g, act(h, s))`.

        Args:
            other: The one that acts first.
        """
        own = [n for n in self.sets if n in self.permutations or n in other.permutations]
        touched = [n for n in self.sets if n in own or any(b in own for b in self.sets[n].over)]
        movable = [n for n in touched if self.sets[n].movable]
        permutations = {n: self._shaped(n, self._pull(n, other._flat(n))) for n in movable}
        scales: dict[str, Tensor] = {}
        for name in {**self.scales, **other.scales}:
            parts: list[Tensor] = []
            units = self.units.get(name, other.units.get(name, ""))
            if name in self.scales:
                parts.append(self._scale(name)[1])
            if name in other.scales:
                theirs = other._scale(name)[1]
                parts.append(self._pull(units, theirs) if units in self.sets else theirs)
            scales[name] = self._shaped(units, math.prod(parts[1:], start=parts[0]))
        matrices = dict(self.matrices)
        for name, m in other.matrices.items():
            image = self._conjugated(name, m)
            matrices[name] = matrices[name].to(image) @ image if name in matrices else image
        units_of, powers = {**self.units, **other.units}, {**self.powers, **other.powers}
        return Element(self.sets, permutations, scales, units_of, matrices, powers)

    def _conjugated(self, name: str, m: Tensor) -> Tensor:
        """g m g^-1 for the permutations and factors g of this element: what m becomes on the other side of them."""
        index_set = self.sets[name]
        still = not {name, *index_set.over} & self.permutations.keys()
        if still and name not in self.units.values():
            return m
        trailing = 2 if index_set.movable else 3
        m = m if index_set.over else m.unsqueeze(-trailing - 1)
        if any(base in self.permutations for base in index_set.over):
            numbers, copy = m.flatten(-trailing), self.source_copy(name).to(m.device)
            batch = _joint(copy.shape[:-1], numbers.shape[:-2])
            copy = copy.expand(*batch, copy.shape[-1]).unsqueeze(-1)
            numbers = numbers.expand(*batch, *numbers.shape[-2:])
            m = torch.unflatten(numbers.gather(-2, copy.expand(numbers.shape)), -1, m.shape[-trailing:])
        if name in self.permutations:
            p = self._flat(name).to(m.device)
            batch = _joint(p.shape[:-1], m.shape[:-2])
            m, p = m.expand(*batch, *m.shape[-2:]), p.expand(*batch, p.shape[-1])
            m = m.gather(-2, p.unsqueeze(-1).expand(m.shape)).gather(-1, p.unsqueeze(-2).expand(m.shape))
        for scaling in self._scalings_of(name) if index_set.movable else ():
            c = self._scale(scaling)[1].to(m) ** self.powers[scaling]
            m = c.unsqueeze(-1) * m / c.unsqueeze(-2)
        return m if index_set.over else m.squeeze(-trailing - 1)

    def _scalings_of(self, name: str) -> list[str]:
        """The scalings whose factors the units have."""
        scalings = [scaling for scaling in self.scales if self.units[scaling] == name]
        for scaling in scalings:
            if scaling not in self.powers:
                raise SymmetryError(
                    f"the factors {scaling!r} and the matrices of {name!r} act on other axes: "
                    "their product is no element"
                )
        return scalings

    def inverse(self) -> Element:
        """The element that undoes this one."""
        permutations: dict[str, Tensor] = {}
        for name in self.sets:
            touched = name in self.permutations or any(b in self.permutations for b in self.sets[name].over)
            if touched and self.sets[name].movable:
                rows = self._push(name, torch.arange(self.sets[name].size))
                permutations[name] = self._shaped(name, rows)
        scales: dict[str, Tensor] = {}
        for name in self.scales:
            units, x = self._scale(name)
            scales[name] = self._shaped(units, self._push(units, 1 / x) if units in self.sets else 1 / x)
        undone = Element(self.sets, permutations, scales, self.units, {}, self.powers)
        matrices = {
            name: undone._conjugated(name, torch.linalg.inv(m.double()).to(m)) for name, m in self.matrices.items()
        }
        return replace(undone, matrices=matrices)

    def _push(self, name: str, x: Tensor) -> Tensor:
        """Write x of shape (..., copies, size) to the source of each unit: the inverse of ``_pull``."""
        p = self._flat(name)
        batch = _joint(p.shape[:-2], x.shape[:-2])
        p = p.expand(*batch, *p.shape[-2:])
        x = x.to(p.device).expand(p.shape)
        rows = torch.empty_like(x, memory_format=torch.contiguous_format).scatter_(-1, p, x)
        if not self.sets[name].over:
            return rows
        copy = self.source_copy(name).to(p.device)
        batch = _joint(batch, copy.shape[:-1])
        rows = rows.expand(*batch, *rows.shape[-2:])
        at = copy.expand(*batch, copy.shape[-1]).unsqueeze(-1).expand(rows.shape)
        return torch.empty_like(rows, memory_format=torch.contiguous_format).scatter_(-2, at, rows)

    def to(self, device: torch.device | str) -> Element:
        """The same element on another device.

        Args:
            device: Where to.
        """
        return Element(
            self.sets,
            {name: p.to(device) for name, p in self.permutations.items()},
            {name: c.to(device) for name, c in self.scales.items()},
            self.units,
            {name: m.to(device) for name, m in self.matrices.items()},
            self.powers,
        )


def _first(values: Sequence[float]) -> str:
    """The first numbers of a list."""
    return ", ".join([f"{x:.4g}" for x in values[:6]] + ["..."] * (len(values) > 6))


def _joint(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    return tuple(torch.broadcast_shapes(a, b))  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Label:
    """What a dimension of a block indexes: a set of units (empty: a fixed order), on an axis of the tensor.

    ``occurrence`` counts the units' places on the axis.
    """

    units: str
    axis: int
    size: int
    occurrence: int = 0


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
        places = self.where(base)
        return next((e for e in places if self.labels[e].axis == self.labels[d].axis), places[0])

    def bases(self, d: int, index_set: IndexSet) -> list[int]:
        """The labels of all bases of the units at label d."""
        return [self.base(d, base) for base in index_set.over]

    def rest(self, d: int, index_set: IndexSet) -> list[int]:
        """The labels that index neither the units at label d nor what they lie over."""
        own = [*self.bases(d, index_set), d]
        return [e for e in range(len(self.labels)) if e not in own]


def blocks(tensor: Tensor, axes: Sequence[Axis], lead: int = 0) -> list[Block]:
    """The blocks of a tensor whose dimensions after the first `lead` have these axes."""
    rows: list[tuple[Tensor, tuple[Label, ...]]] = [(tensor, ())]
    for d, axis in enumerate(axes):
        rows = [
            (part, (*labels, *more))
            for values, labels in rows
            for part, more in _apart(values, lead + len(labels), axis, d, Counter())
        ]
    return [Block(values, labels) for values, labels in rows]


@functools.lru_cache(maxsize=4096)
def labels(axes: tuple[Axis, ...]) -> tuple[tuple[Label, ...], ...]:
    """The labels of each block of a tensor with these axes."""
    empty = torch.empty([axis.size for axis in axes], device="meta")
    return tuple(block.labels for block in blocks(empty, axes))


def _apart(
    values: Tensor, dim: int, axis: Axis, number: int, places: Counter[str]
) -> list[tuple[Tensor, tuple[Label, ...]]]:
    """Views of `values` whose dimension `dim` is replaced by one for each factor of `axis`."""
    if isinstance(axis, Units):
        places[axis.name] += 1
        return [(values, (Label(axis.name, number, axis.size, places[axis.name] - 1),))]
    if isinstance(axis, Fixed):
        return [(values, (Label("", number, axis.size),))]
    pieces: list[tuple[Tensor, tuple[Label, ...]]] = []
    if isinstance(axis, Concat):
        start = 0
        for part in axis.parts:
            pieces += _apart(values.narrow(dim, start, part.size), dim, part, number, places)
            start += part.size
        return pieces
    if isinstance(axis, Interleave):
        lanes = torch.unflatten(values, dim, (-1, len(axis.parts)))
        for k, part in enumerate(axis.parts):
            pieces += _apart(lanes.select(dim + 1, k), dim, part, number, places)
        return pieces
    rows: list[tuple[Tensor, tuple[Label, ...]]] = [
        (torch.unflatten(values, dim, [part.size for part in axis.parts]), ())
    ]
    for part in axis.parts:
        before = Counter(places)
        inner = [
            (_apart(outer, dim + len(done), part, number, counted := Counter(before)), done, counted)
            for outer, done in rows
        ]
        rows = [(view, (*done, *more)) for views, done, _ in inner for view, more in views]
        places.update(inner[0][2] - before)
    return rows
