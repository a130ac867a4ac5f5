"""From canonical states to coordinates [..., D] and back: directions first, each unit's together, then the rest."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from coset.core.errors import StateError
from coset.core.show import Shown, Table
from coset.core.state import State, leading_shape, refuse_unequal_ties
from coset.symmetries.group import blocks, names as sets_on
from coset.symmetries.symmetry import Symmetry
from coset.weightspace.canonical_scales import ScaledWeights, own_tensors, scale_conditions

# How far from one the norm of a direction may be: more than any rounding, less than a state that is not canonical.
OFF_SPHERE = 1e-2


@dataclass(frozen=True)
class Directions:
    """A block of coordinates: `count` unit vectors in R^size, the weights into the units of `name`."""

    name: str
    count: int
    size: int


@dataclass(frozen=True, eq=False, repr=False)
class Chart(Shown):
    """Where each coordinate lies in the tensors `shapes`, flattened and joined in this order.

    Coordinates are taken by `index_select`, whose gradient adds; that of indexing with a tensor sorts first.

    directions, polar
        the blocks of unit vectors; those of `polar` are whole tensors, whose log norms are the last coordinates
    index
        the place of each coordinate but these log norms
    offset
        what is added to the value there
    pinned
        the places that are no coordinates: where one weight of norm one fixes a factor
    pinned_offset
        what is added to the value there
    tied
        second names of tensors -> the one in `shapes`
    """

    shapes: Mapping[str, tuple[int, ...]]
    directions: tuple[Directions, ...]
    polar: tuple[Directions, ...]
    index: Tensor
    offset: Tensor
    pinned: Tensor
    pinned_offset: Tensor
    tied: Mapping[str, str]

    def _shown(self) -> Table:
        count = len(self.index) + len(self.polar)
        rows = [(name, "x".join(map(str, shape)) or "one number") for name, shape in self.shapes.items()]
        return Table(f"Chart of {count:,} coordinates in {len(self.shapes)} tensors", rows)

    def coordinates(self, state: State) -> Tensor:
        """[D], or [n, D] of a population, in the widest dtype; StateError if the state is not canonical."""
        values = self._flat(state)
        refuse_unequal_ties(state, self.tied)
        self._refuse_pins(values)
        x = values.index_select(-1, self.index.to(values.device))
        x = x + self.offset.to(x)
        start, logs = 0, []
        for block in (*self.directions, *self.polar):
            stop = start + block.count * block.size
            norms = torch.linalg.vector_norm(torch.unflatten(x[..., start:stop], -1, (block.count, block.size)), dim=-1)
            if block in self.polar:
                if bool((norms == 0).any()):
                    raise StateError(f"Tensor '{block.name}' is zero, so it has no direction.")
                logs.append(norms.log())
                x = torch.cat([x[..., :start], x[..., start:stop] / norms, x[..., stop:]], -1)
            elif bool(((norms - 1).abs() > OFF_SPHERE).any()):
                raise StateError(
                    f"The weights into a unit of '{block.name}' have norm {_farthest(norms):.3g} instead of 1: give a "
                    "canonical state, in which no unit is without weights."
                )
            start = stop
        return torch.cat([x, *logs], -1)

    def state(self, x: Tensor, like: State) -> dict[str, Tensor]:
        """The state or population with coordinates x: the inverse of `coordinates`.

        Dtypes, signs of single weights, and tensors that are no coordinates are those of `like`, whose units are in the
        order of x.
        """
        lead = leading_shape(like, self.shapes, "the manifold")
        if lead and lead != x.shape[:-1]:
            raise StateError(
                f"Points of shape {tuple(x.shape)} are no population of {lead[0]} networks, as `like` is: give one of "
                "them."
            )
        count = len(self.polar)
        logs = x[..., x.shape[-1] - count :]
        x = x[..., : x.shape[-1] - count]
        start = sum(block.count * block.size for block in self.directions)
        for k, block in enumerate(self.polar):
            stop = start + block.size
            x = torch.cat([x[..., :start], x[..., start:stop] * logs[..., k : k + 1].exp(), x[..., stop:]], -1)
            start = stop
        pins, offset = self.pins(like).to(x), self.pinned_offset.to(x)
        tensors = self._tensors(x - self.offset.to(x), (pins + offset).sign() - offset, like)
        return {name: tensors[name] if name in tensors else _carried(x, y, not lead) for name, y in like.items()}

    def units_have_more(self, state: State, sym: Symmetry) -> bool:
        """Whether units that can move have something in the state that is no coordinate: a sign, or whole numbers."""

        def movable(name: str) -> bool:
            return any(sym.sets[units].movable for axis in sym.axes.get(name, ()) for units in sets_on(axis))

        return any(movable(name) for name in state if name not in self.shapes and name not in self.tied) or (
            len(self.pinned) > 0 and any(map(movable, self.shapes))
        )

    def pins(self, state: State) -> Tensor:
        """[..., k] the values that are no coordinates: single weights that fix a factor, in canonical states 1 or -1.

        So is a variance plus what is added to it.
        """
        return self._flat(state).index_select(-1, self.pinned.to(self._device(state)))

    def velocity(self, change: State) -> Tensor:
        """[..., D] the derivative of the coordinates of a state that moves at the rate `change`, if none are polar."""
        assert not self.polar
        return self._flat(change).index_select(-1, self.index.to(self._device(change)))

    def change(self, v: Tensor, like: State) -> dict[str, Tensor]:
        """How fast the tensors of a state change whose coordinates move at the rate v [..., D]: `velocity` undone.

        Of those that the symmetry does not know none does; dtypes are those of `like`.
        """
        assert not self.polar
        tensors = self._tensors(v, v.new_zeros(len(self.pinned)), like)
        still = {name: y.new_zeros(*v.shape[:-1], *y.shape) for name, y in like.items() if name not in tensors}
        return tensors | still

    def _tensors(self, values: Tensor, pins: Tensor, like: State) -> dict[str, Tensor]:
        """Those with the values [..., D] where coordinates are, and pins [..., k] elsewhere, under all their names."""
        entries = torch.cat([values, pins.expand(*values.shape[:-1], -1)], -1)
        entries = entries.index_select(-1, self._order.to(values.device))
        parts = torch.split(entries, [math.prod(s) for s in self.shapes.values()], -1)
        tensors = {
            name: part.reshape((*values.shape[:-1], *shape)).to(like[name].dtype)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }
        return tensors | {second: tensors[first] for second, first in self.tied.items()}

    def to(self, device: torch.device) -> Chart:
        """The chart with its tables on a device, so that nothing is copied there at each look."""
        return replace(
            self,
            index=self.index.to(device),
            offset=self.offset.to(device),
            pinned=self.pinned.to(device),
            pinned_offset=self.pinned_offset.to(device),
        )

    def flat(self) -> Chart:
        """The chart of the same tensors without directions or conditions: every entry is a coordinate as it is."""
        count = sum(math.prod(shape) for shape in self.shapes.values())
        nothing = torch.zeros(0, dtype=torch.long)
        return replace(
            self,
            directions=(),
            polar=(),
            index=torch.arange(count),
            offset=torch.zeros(count, dtype=torch.float64),
            pinned=nothing,
            pinned_offset=nothing.double(),
        )

    def _refuse_pins(self, values: Tensor) -> None:
        """Refuse a state, flattened and joined, in which a single weight that fixes a factor is not 1 or -1."""
        if not len(self.pinned):
            return
        pins = values.index_select(-1, self.pinned.to(values.device))
        pins = (pins + self.pinned_offset.to(pins)).flatten()
        away = (pins.abs() - 1).abs()
        if not bool((away > OFF_SPHERE).any()):
            return
        worst = int(away.argmax())
        place = int(self.pinned[worst % len(self.pinned)])
        ends = itertools.accumulate(math.prod(shape) for shape in self.shapes.values())
        name = next(name for name, end in zip(self.shapes, ends, strict=True) if place < end)
        raise StateError(
            f"What fixes the factor of a unit in '{name}' is {float(pins[worst]):.3g} instead of 1 or -1: give a "
            "canonical state, in which no unit is without weights."
        )

    @cached_property
    def _order(self) -> Tensor:
        return torch.cat([self.index, self.pinned]).argsort()

    def _flat(self, state: State) -> Tensor:
        lead = leading_shape(state, self.shapes, "the manifold")
        return torch.cat([state[name].reshape(*lead, -1) for name in self.shapes], -1)

    def _device(self, state: State) -> torch.device:
        return next(state[name].device for name in self.shapes)


def canonical_chart(sym: Symmetry, names: Sequence[str], polar: bool) -> Chart:
    """The chart of canonical states with the floating tensors `names`."""
    tensors = own_tensors(sym, names)
    shapes = {name: tuple(axis.size for axis in sym.axes[name]) for name in tensors}
    places: dict[str, Tensor] = {}
    start = 0
    for name, shape in shapes.items():
        places[name] = torch.arange(start, start + math.prod(shape)).reshape(shape)
        start += math.prod(shape)
    offset, is_used = torch.zeros(start, dtype=torch.float64), torch.zeros(start, dtype=torch.bool)
    directions: list[Directions] = []
    index: list[Tensor] = []
    pinned: list[Tensor] = []
    for condition in scale_conditions(sym, "scaling", tensors):
        rows = torch.cat([_rows(places[slot.tensor], sym, slot) for slot in condition.slots], 1)
        is_used[rows] = True
        for slot in condition.slots:
            offset[_rows(places[slot.tensor], sym, slot)] = slot.offset
        if rows.shape[1] == 1:
            pinned.append(rows.flatten())
            continue
        directions.append(Directions(condition.units or condition.slots[0].tensor, *rows.shape))
        index.append(rows.flatten())
    free = [name for name in tensors if _is_weight(name, shapes[name], sym) and not is_used[places[name]].any()]
    whole = free if polar else []
    for name in whole:
        is_used[places[name]] = True
        index.append(places[name].flatten())
    index.append(torch.arange(start)[~is_used])
    order = torch.cat(index)
    pins = torch.cat([torch.zeros(0, dtype=torch.long), *pinned])
    owners = {sym.tied.get(name, name): name for name in tensors}
    tied = {name: owners[sym.tied.get(name, name)] for name in sym.axes if sym.tied.get(name, name) in owners}
    return Chart(
        shapes=shapes,
        directions=tuple(directions),
        polar=tuple(Directions(name, 1, math.prod(shapes[name])) for name in whole),
        index=order,
        offset=offset[order],
        pinned=pins,
        pinned_offset=offset[pins],
        tied={second: first for second, first in tied.items() if second != first},
    )


def _carried(x: Tensor, y: Tensor, single: bool) -> Tensor:
    """A tensor without coordinates, of a single state or of one for each point: one for each point."""
    return y.expand((*x.shape[:-1], *y.shape)).clone() if single else y.clone()


def _rows(places: Tensor, sym: Symmetry, slot: ScaledWeights) -> Tensor:
    """[units, entries]: the places of the weights of each unit."""
    views = blocks(places, sym.axes[slot.tensor])
    rows = []
    for place in slot.places:
        values = views[place.block].values
        rest = [d for d in range(values.dim()) if d not in place.dims]
        units = math.prod(values.shape[d] for d in place.dims)
        rows.append(values.permute([*place.dims, *rest]).reshape(units, -1))
    return torch.cat(rows, 1)


def _is_weight(name: str, shape: tuple[int, ...], sym: Symmetry) -> bool:
    return name not in sym.buffers and len(shape) > 1 and math.prod(shape) > 1


def _farthest(norms: Tensor) -> float:
    flat = norms.flatten()
    return float(flat[(flat - 1).abs().argmax()])
