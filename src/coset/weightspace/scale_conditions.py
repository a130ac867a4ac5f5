"""Which weights fix the factor of each unit, and in which order.

A network with k scalings has k free factors a unit. They are fixed one after another, each by a condition on weights
that no other free factor moves, so that one pass solves all conditions exactly, whatever the weights. A joint condition
on all that enters a unit of a residual stream has no such solution: with y = c^-2 it reads y = a + G y, where G holds
the squared weights from the stream to itself, and has a positive solution only if the spectral radius of G is below 1.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from coset.core.errors import SymmetryError
from coset.symmetries.group import Axis, Block, Scaling, ScalingKind, blocks, layout
from coset.symmetries.symmetry import Symmetry

Vector = tuple[float, ...]  # one number for each scaling of a set of units


@dataclass(frozen=True)
class UnitPlace:
    """Where units stand in block `block` of a tensor: `dims` are the dimensions of the block that index them."""

    tensor: str
    block: int
    dims: tuple[int, ...]


@dataclass(frozen=True)
class ScaledWeights:
    """One axis of a tensor on which scalings act, t -> (t + offset) c^power - offset, with a power for each scaling.

    units
        the set of units ("": the whole tensor has one factor)
    entries
        how many entries of the tensor one unit has
    """

    units: str
    tensor: str
    offset: float
    powers: Mapping[str, float]
    places: tuple[UnitPlace, ...]
    entries: int

    def power(self, direction: Mapping[str, float]) -> float:
        return sum(self.powers.get(name, 0.0) * x for name, x in direction.items())


@dataclass(frozen=True)
class ScaleCondition:
    """The weights in `slots` fix the factor along `direction`: they take c^power where scaling s takes c^direction[s].

    Later conditions move along directions that leave these weights as they are.
    """

    units: str
    slots: tuple[ScaledWeights, ...]
    direction: Mapping[str, float]
    power: float


def own_tensors(sym: Symmetry, names: Collection[str]) -> tuple[str, ...]:
    """The tensors of `names` that the symmetry knows, in its order, each tied one once."""
    owners: dict[str, str] = {}
    for name in sym.axes:
        if name in names:
            owners.setdefault(sym.tied.get(name, name), name)
    return tuple(owners.values())


def scaled_weights(sym: Symmetry, kind: ScalingKind, names: Collection[str]) -> list[ScaledWeights]:
    """All axes on which exact scalings of one kind act, of these tensors in their order."""
    powers: dict[tuple[str, int | None, int, str], dict[str, float]] = {}
    offsets: dict[str, float] = {}
    for scaling in exact_scalings(sym, kind):
        for member in scaling.members:
            key = (member.tensor, member.axis, member.occurrence, scaling.units)
            powers.setdefault(key, {})[scaling.name] = member.power
            offsets[member.tensor] = member.offset
    weights: list[ScaledWeights] = []
    for name in own_tensors(sym, names):
        for key, value in powers.items():
            if key[0] == name:
                places = _places(sym, *key)
                entries = sum(_rest(sym.axes[name], place) for place in places)
                weights.append(ScaledWeights(key[3], name, offsets[name], value, places, entries))
    return weights


def exact_scalings(sym: Symmetry, kind: ScalingKind) -> list[Scaling]:
    """The scalings of one kind that leave the function as it is to the last digit."""
    return [scaling for scaling in sym.scalings if scaling.exact and scaling.kind == kind]


def scale_conditions(sym: Symmetry, kind: ScalingKind, names: Collection[str]) -> list[ScaleCondition]:
    """One condition for each scaling, in the order in which they are to be met.

    A slot can serve if no free factor but those on it moves its weights. Of these the first serves, in the order of the
    state, but variances (of batch norm), which are never zero, before all, and other buffers last. All slots of
    its units that can serve and take the same power join it, without those with one weight a unit, such as
    biases, if there are others. Signs keep these too, after the others.
    """
    every = scaled_weights(sym, kind, names)

    def rank(slot: ScaledWeights) -> int:
        return 0 if slot.offset else 2 if slot.tensor in sym.buffers else 1

    ranked = sorted(every, key=rank)
    at: dict[tuple[str, int], list[ScaledWeights]] = {}
    for slot in every:
        for place in slot.places:
            at.setdefault((slot.tensor, place.block), []).append(slot)
    free: dict[str, list[dict[str, float]]] = {}
    for scaling in exact_scalings(sym, kind):
        free.setdefault(scaling.units, []).append({scaling.name: 1.0})

    def moves(slot: ScaledWeights) -> Vector:
        powers = (slot.power(direction) for direction in free[slot.units])
        return tuple(round(x) % 2 if kind == "sign" else _clean(x) for x in powers)

    def serves(slot: ScaledWeights) -> bool:
        others = (o for place in slot.places for o in at[slot.tensor, place.block] if o is not slot)
        return any(moves(slot)) and not any(any(moves(other)) for other in others)

    conditions: list[ScaleCondition] = []
    while first := next((slot for slot in ranked if serves(slot)), None):
        powers = moves(first)
        alike = [slot for slot in ranked if slot.units == first.units and rank(slot) == rank(first)]
        joint = [slot for slot in alike if moves(slot) == powers and serves(slot)]
        wide = [slot for slot in joint if slot.entries > 1]
        thin = [slot for slot in joint if slot.entries == 1]
        joint = wide + thin if kind == "sign" else wide or thin
        pivot = max(range(len(powers)), key=lambda k: abs(powers[k]))
        direction = free[first.units].pop(pivot)
        power, rest = powers[pivot], powers[:pivot] + powers[pivot + 1 :]
        free[first.units] = [
            _reduced(other, direction, x / power, kind) for other, x in zip(free[first.units], rest, strict=True)
        ]
        conditions.append(ScaleCondition(first.units, tuple(joint), direction, power))
    unfixed = sorted({name for directions in free.values() for direction in directions for name in direction})
    if unfixed:
        listed = ", ".join(repr(name) for name in unfixed[:4])
        raise SymmetryError(
            f"the scalings {listed} act on the same weights, so no condition fixes one of them alone; canonical form "
            "needs a symmetry without them"
        )
    return conditions


def _reduced(
    other: Mapping[str, float], direction: Mapping[str, float], ratio: float, kind: ScalingKind
) -> dict[str, float]:
    """other - ratio direction, so that it no longer moves the weights that fix `direction`."""
    powers = {name: other.get(name, 0.0) - ratio * direction.get(name, 0.0) for name in {**other, **direction}}
    cleaned = {name: round(x) % 2 if kind == "sign" else _clean(x) for name, x in powers.items()}
    return {name: float(x) for name, x in cleaned.items() if x}


def _clean(x: float) -> float:
    return 0.0 if abs(x) < 1e-9 else x


def _rest(axes: tuple[Axis, ...], place: UnitPlace) -> int:
    """How many entries of the block one unit has."""
    own = _blocks(axes)[place.block].labels
    return math.prod(label.size for d, label in enumerate(own) if d not in place.dims)


def _places(sym: Symmetry, tensor: str, axis: int | None, occurrence: int, units: str) -> tuple[UnitPlace, ...]:
    """The blocks that this occurrence of the units reaches."""
    axes = sym.axes[tensor]
    if axis is None:
        return tuple(UnitPlace(tensor, k, ()) for k in range(len(_blocks(axes))))
    # Blocks are counted with the last axis fastest.
    numbers = itertools.product(*(range(len(_segments(one))) for one in axes))
    places: list[UnitPlace] = []
    for k, (block, number) in enumerate(zip(_blocks(axes), numbers, strict=True)):
        reached = _reached(axes[axis], units, number[axis])
        if occurrence in reached:
            here = [d for d in block.where(units) if block.labels[d].axis == axis]
            at = here[reached.index(occurrence)]
            places.append(UnitPlace(tensor, k, (*block.bases(at, sym.sets[units]), at)))
    return tuple(places)


@functools.lru_cache(maxsize=4096)
def _blocks(axes: tuple[Axis, ...]) -> tuple[Block, ...]:
    """The blocks of a tensor with these axes, without values."""
    return tuple(blocks(torch.empty([axis.size for axis in axes], device="meta"), axes))


@functools.lru_cache(maxsize=4096)
def _segments(axis: Axis) -> tuple[Tensor, ...]:
    """The positions of each block of an axis."""
    return tuple(block.values for block in blocks(torch.arange(axis.size), (axis,)))


def _reached(axis: Axis, units: str, segment: int) -> list[int]:
    """Which occurrences of the units lie on a block of the axis."""
    entries = [entry for entry in layout(axis).entries if entry.name == units]
    positions = _segments(axis)[segment]
    return [k for k, entry in enumerate(entries) if bool((entry.coordinate[positions] >= 0).all())]
