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
from coset.core.state import State, refuse_names, refuse_untied
from coset.symmetries.group import blocks
from coset.symmetries.symmetry import Symmetry
from coset.weightspace.gauge import Slot, gauge, present


def leading(state: State, shapes: Mapping[str, tuple[int, ...]], who: str) -> tuple[int, ...]:
    """() of a state, (n,) of a population, whose tensors have these shapes; StateError says what `who` expects."""
    refuse_names([name for name in shapes if name not in state], [], "the state")
    leads: dict[tuple[int, ...], str] = {}
    for name, shape in shapes.items():
        found = tuple(state[name].shape)
        extra = len(found) - len(shape)
        if extra not in (0, 1) or found[extra:] != shape:
            raise StateError(f"Tensor '{name}' has shape {found}, {who} expects {shape}.")
        leads.setdefault(found[:extra], name)
    if len(leads) > 1 and () in leads:
        other = next(name for lead, name in leads.items() if lead)
        raise StateError(f"Tensor '{other}' has a leading dimension, that of a population, which '{leads[()]}' lacks.")
    if len(leads) > 1:
        listed = ", ".join(f"{lead[0]} in '{name}'" for lead, name in leads.items())
        raise StateError(f"A population has one size in all tensors, but here it is: {listed}.")
    return next(iter(leads), ())


def refuse_unreal(name: str, x: Tensor) -> None:
    """Refuse what has no norm to be divided by."""
    if x.is_complex():
        raise StateError(f"Tensor '{name}' is {x.dtype}, and canonical forms are those of real weights.")
    if not x.is_floating_point():
        raise StateError(f"Tensor '{name}' holds whole numbers, which have no norm to be divided by: give weights.")


def refuse_torn(state: State, tied: Mapping[str, str]) -> None:
    """Refuse a state in which two names of one tensor, second -> first, hold different values: one would be lost."""
    kept: dict[str, str] = {}
    for name in state:
        first = kept.setdefault(tied.get(name, name), name)
        if first != name:
            refuse_untied(first, name, state[first], state[name], "the state")


# How far from one the norm of a direction may be: more than any rounding, less than a state that is not canonical.
OFF_SPHERE = 1e-2


@dataclass(frozen=True)
class Directions:
    """A block of coordinates: `count` unit vectors in R^size, the weights into the units of `name`."""

    name: str
    count: int
    size: int


@dataclass(frozen=True, eq=False)
class Chart:
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

    def coordinates(self, state: State) -> Tensor:
        """[D], or [n, D] of a population, in the widest dtype; StateError if the state is not canonical."""
        values = self._joined(state)
        refuse_torn(state, self.tied)
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

        Dtypes, signs of single weights, and tensors that the symmetry does not know are those of `like`, which need not
        be canonical.
        """
        lead = leading(like, self.shapes, "the manifold")
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

    def pins(self, state: State) -> Tensor:
        """[..., k] the values that are no coordinates: single weights that fix a factor, in canonical states 1 or -1.

        So is a variance plus what is added to it.
        """
        return self._joined(state).index_select(-1, self.pinned.to(self._device(state)))

    def velocity(self, change: State) -> Tensor:
        """[..., D] the derivative of the coordinates of a state that moves at the rate `change`, if none are polar."""
        assert not self.polar
        return self._joined(change).index_select(-1, self.index.to(self._device(change)))

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
        joined = torch.cat([values, pins.expand(*values.shape[:-1], -1)], -1)
        joined = joined.index_select(-1, self._order.to(values.device))
        parts = torch.split(joined, [math.prod(s) for s in self.shapes.values()], -1)
        tensors = {
            name: part.reshape(*values.shape[:-1], *shape).to(like[name].dtype)
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

    def _joined(self, state: State) -> Tensor:
        lead = leading(state, self.shapes, "the manifold")
        return torch.cat([state[name].reshape(*lead, -1) for name in self.shapes], -1)

    def _device(self, state: State) -> torch.device:
        return next(state[name].device for name in self.shapes)


def chart(sym: Symmetry, names: Sequence[str], polar: bool) -> Chart:
    """The chart of canonical states with the floating tensors `names`."""
    known = present(sym, names)
    shapes = {name: tuple(axis.size for axis in sym.axes[name]) for name in known}
    places: dict[str, Tensor] = {}
    start = 0
    for name, shape in shapes.items():
        places[name] = torch.arange(start, start + math.prod(shape)).reshape(shape)
        start += math.prod(shape)
    offset, taken = torch.zeros(start, dtype=torch.float64), torch.zeros(start, dtype=torch.bool)
    directions: list[Directions] = []
    index: list[Tensor] = []
    pinned: list[Tensor] = []
    for condition in gauge(sym, "scaling", known):
        rows = torch.cat([_rows(places[slot.tensor], sym, slot) for slot in condition.slots], 1)
        taken[rows] = True
        for slot in condition.slots:
            offset[_rows(places[slot.tensor], sym, slot)] = slot.offset
        if rows.shape[1] == 1:
            pinned.append(rows.flatten())
            continue
        directions.append(Directions(condition.units or condition.slots[0].tensor, *rows.shape))
        index.append(rows.flatten())
    whole = [name for name in known if polar and _is_weight(name, shapes[name], sym) and not taken[places[name]].any()]
    for name in whole:
        taken[places[name]] = True
        index.append(places[name].flatten())
    index.append(torch.arange(start)[~taken])
    joined = torch.cat(index)
    pins = torch.cat([torch.zeros(0, dtype=torch.long), *pinned])
    owners = {sym.tied.get(name, name): name for name in known}
    tied = {name: owners[sym.tied.get(name, name)] for name in sym.axes if sym.tied.get(name, name) in owners}
    return Chart(
        shapes,
        tuple(directions),
        tuple(Directions(name, 1, math.prod(shapes[name])) for name in whole),
        joined,
        offset[joined],
        pins,
        offset[pins],
        {second: first for second, first in tied.items() if second != first},
    )


def _carried(x: Tensor, y: Tensor, single: bool) -> Tensor:
    """A tensor without coordinates, of a single state or of one for each point: one for each point."""
    return y.expand((*x.shape[:-1], *y.shape)).clone() if single else y.clone()


def _rows(places: Tensor, sym: Symmetry, slot: Slot) -> Tensor:
    """[units, entries]: the places of the weights of each unit."""
    views = blocks(places, sym.axes[slot.tensor])
    rows = []
    for place in slot.places:
        values = views[place.block].values
        rest = [d for d in range(values.dim()) if d not in place.kept]
        units = math.prod(values.shape[d] for d in place.kept)
        rows.append(values.permute([*place.kept, *rest]).reshape(units, -1))
    return torch.cat(rows, 1)


def _is_weight(name: str, shape: tuple[int, ...], sym: Symmetry) -> bool:
    return name not in sym.buffers and len(shape) > 1 and math.prod(shape) > 1


def _farthest(norms: Tensor) -> float:
    flat = norms.flatten()
    return float(flat[(flat - 1).abs().argmax()])
