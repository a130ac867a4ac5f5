"""The factors and signs of a canonical state: which weights fix them, in which order, and what they come out as.

A network with k scalings has k free factors a unit. They are fixed one after another, each by a condition on weights
that no other free factor moves, so that one pass solves all conditions exactly, whatever the weights. A joint condition
on all that enters a unit of a residual stream has no such solution: with y = c^-2 it reads y = a + G y, where G holds
the squared weights from the stream to itself, and has a positive solution only if the spectral radius of G is below 1.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from coset.core.errors import StateError, SymmetryError
from coset.core.state import State
from coset.symmetries.group import Axis, Block, Element, Scaling, ScalingKind, blocks, layout
from coset.symmetries.symmetry import Symmetry
from coset.weightspace.joint_gauge import independent_signs, least_logs

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
    """The scalings of one kind that leave the function as it is to the last digit, in both modes."""
    return [scaling for scaling in sym.scalings if scaling.in_both_modes and scaling.kind == kind]


@dataclass(frozen=True)
class FreeDirection:
    """Factors that no condition fixes alone, as all weights that they move are moved by others too."""

    units: str
    direction: Mapping[str, float]


def scale_conditions(sym: Symmetry, kind: ScalingKind, names: Collection[str]) -> list[ScaleCondition]:
    """One condition for each scaling, in the order in which they are to be met; SymmetryError where some have none."""
    conditions, free = conditions_and_rest(sym, kind, names)
    if free:
        listed = ", ".join(repr(name) for name in sorted({name for one in free for name in one.direction})[:4])
        raise SymmetryError(
            f"the scalings {listed} act on the same weights, so no condition fixes one of them alone, and canonical "
            "networks are on no product of spheres; a manifold needs a symmetry without them"
        )
    return conditions


def conditions_and_rest(
    sym: Symmetry, kind: ScalingKind, names: Collection[str]
) -> tuple[list[ScaleCondition], list[FreeDirection]]:
    """One condition for each scaling, in the order in which they are to be met, and what they leave free.

    A slot can serve if no free factor but those on it moves its weights. Of these the first serves, in the order of the
    state, but variances with an offset, which are never zero, before all, and other buffers last. All slots of
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
    return conditions, [FreeDirection(units, one) for units, directions in free.items() for one in directions]


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


VANISHING = 1e-5  # a sum of cubes, beside that of their sizes
SAFE = 1e-280  # a sum of squares in float64 above this, and below its inverse, has lost none of them
# (weights, each (*lead, *copies, n, d); power) -> how far to go along the direction, (*lead, *copies, n)
SolveCondition = Callable[[list[Tensor], float], Tensor]


def unit_norms(state: State, sym: Symmetry) -> Element:
    """The factors that make the weights of every condition a vector of norm one, for each unit: c^p = 1 / |w|.

    Factors that come together only are settled by `least_logs`.

    A unit keeps its factor if its weights are zero, or so small or large that the factor, its inverse, or a weight they
    multiply, does not fit the dtype. In 16 bits it does so too if the norm is one to rounding. `state` may be a
    population.
    """
    rounding = _rounding(state, sym)

    def step(weights: list[Tensor], power: float) -> Tensor:
        logs = _log_norm(weights)
        return -torch.where(logs.abs() > rounding, logs, 0.0) / power

    logs = _Pass(state, sym, "scaling").run(step)
    return sym.element(scales={name: x.exp() for name, x in logs.items()})


def signs(state: State, sym: Symmetry) -> Element:
    """The signs that make the sum of the cubes of a condition's weights positive, for each unit.

    The sum is odd, does not depend on the order of the weights, and is ruled by the large ones. Where it vanishes the
    next weights decide that the unit has. Signs that come together only are settled by `independent_signs`.
    """

    def step(weights: list[Tensor], power: float) -> Tensor:
        decided = torch.zeros_like(weights[0][..., 0])
        for w in weights:
            cubes = w.pow(3).sum(-1)
            clear = cubes.abs() > VANISHING * w.abs().pow(3).sum(-1)
            decided = torch.where((decided == 0) & clear, cubes.sign(), decided)
        return (decided < 0).double()

    parities = _Pass(state, sym, "sign").run(step)
    return sym.element(scales={name: 1 - 2 * x.remainder(2) for name, x in parities.items()})


def _log_norm(weights: list[Tensor]) -> Tensor:
    """log |w| of all weights together, zero for w = 0."""
    squares = torch.stack([w.square().sum(-1) for w in weights]).sum(0)
    if bool(((squares > SAFE) & (squares < 1 / SAFE)).all()):
        return squares.log() / 2
    largest = torch.stack([w.abs().amax(-1) for w in weights]).amax(0)
    unit = torch.where(largest > 0, largest, 1.0)
    squares = torch.stack([(w / unit.unsqueeze(-1)).square().sum(-1) for w in weights]).sum(0)
    return torch.where(largest > 0, unit.log() + squares.log() / 2, 0.0)


def _rounding(state: State, sym: Symmetry) -> float:
    """How far from zero the log norm of canonical weights may be: rounded ones are off by eps / 2 at most."""
    few = [x.dtype for name, x in state.items() if name in sym.axes and x.is_floating_point() and x.element_size() < 4]
    return max((torch.finfo(dtype).eps for dtype in few), default=0.0)


def _log_range(x: Tensor, lead: int) -> Tensor:
    """(*lead) how large the log of a factor may be, so that it, its inverse and what they multiply are in range."""
    kind = torch.finfo(x.dtype)
    wide = x if x.element_size() >= 4 else x.float()
    rows = wide.reshape(*x.shape[:lead], math.prod(x.shape[lead:]))
    limit = rows.new_full(rows.shape[:-1], min(math.log(kind.max), -math.log(kind.tiny)), dtype=torch.float64)
    if not rows.shape[-1]:
        return limit
    low, high = rows.aminmax(dim=-1)
    return limit - torch.maximum(high, -low).double().clamp(min=1.0).log()


class _Pass:
    """Meet the conditions of one kind one after another: `exponents` are log factors, or the parities of signs."""

    def __init__(self, state: State, sym: Symmetry, kind: ScalingKind) -> None:
        names = [name for name, x in state.items() if x.is_floating_point()]
        self.state, self.sym, self.kind = state, sym, kind
        self.conditions, self.free = conditions_and_rest(sym, kind, names)
        self.at: dict[tuple[str, int], list[tuple[ScaledWeights, UnitPlace]]] = {}
        self.slots = scaled_weights(sym, kind, names)
        for slot in self.slots:
            for place in slot.places:
                self.at.setdefault((slot.tensor, place.block), []).append((slot, place))
        self.exponents: dict[str, Tensor] = {}
        self.limits: dict[str, Tensor] = {}

    def run(self, step: SolveCondition) -> dict[str, Tensor]:
        """scaling -> exponents, (*lead, n) or (*lead, copies, n)."""
        self._meet(step, guarded=False)
        if self.kind == "scaling" and self.slots:
            fits = torch.stack([self._fits(slot).all() for slot in self.slots]).all()
            if not bool(fits):
                self._meet(step, guarded=True)
        over = {scaling.name: len(scaling.over) for scaling in exact_scalings(self.sym, self.kind)}
        units = {scaling.name: scaling.units for scaling in exact_scalings(self.sym, self.kind)}
        return {
            name: (x.flatten(-1 - over[name], -2) if over[name] else x if units[name] else x.unsqueeze(-1))
            for name, x in self.exponents.items()
        }

    def _meet(self, step: SolveCondition, guarded: bool) -> None:
        """Find the exponents; guarded, units keep the factors of a condition that some of their weights cannot take."""
        self.exponents = {}
        for condition in self.conditions:
            length = step(list(self._weights(condition)), condition.power)
            before = {name: self.exponents.get(name, torch.zeros_like(length)) for name in condition.direction}
            self.exponents |= {name: x + condition.direction[name] * length for name, x in before.items()}
            if guarded:
                own = [slot for slot in self.slots if slot.powers.keys() & condition.direction.keys()]
                fits = torch.stack([self._fits(slot) for slot in own]).all(0)
                self.exponents |= {name: torch.where(fits, self.exponents[name], x) for name, x in before.items()}
        for component in self._components():
            before = dict(self.exponents)
            self._settle(component)
            own = [slot for slot in self.slots if any(slot.power(free.direction) for free in component)]
            if guarded and not all(bool(self._fits(slot).all()) for slot in own):
                self.exponents = before

    def _components(self) -> list[list[FreeDirection]]:
        """The free directions, those together that move weights in common."""
        left, components = list(self.free), []
        while left:
            component, reached = [left.pop(0)], 0
            while reached < len(component):
                blocks = self._blocks_of(component[reached])
                reached += 1
                near = [free for free in left if blocks & self._blocks_of(free)]
                component += near
                left = [free for free in left if free not in near]
            components.append(component)
        return components

    def _blocks_of(self, free: FreeDirection) -> set[tuple[str, int]]:
        slots = [slot for slot in self.slots if slot.units == free.units and self._moves(slot, free)]
        return {(slot.tensor, place.block) for slot in slots for place in slot.places}

    def _moves(self, slot: ScaledWeights, free: FreeDirection) -> float:
        power = slot.power(free.direction) if slot.units == free.units else 0.0
        return float(round(power) % 2) if self.kind == "sign" else _clean(power)

    def _settle(self, component: list[FreeDirection]) -> None:
        """Find the exponents along directions that move each other's weights, all at once."""
        starts = list(itertools.accumulate((math.prod(self._shape(free.units)) for free in component), initial=0))
        places = sorted({place for free in component for place in self._blocks_of(free)})
        parts = [self._equations(tensor, block, component, starts) for tensor, block in places]
        matrix, statistics = torch.cat([rows for rows, _ in parts]), torch.cat([cells for _, cells in parts], -1)
        solve = least_logs if self.kind == "scaling" else independent_signs
        each = torch.stack([solve(matrix, one) for one in statistics.cpu().reshape(-1, len(matrix))])
        exponents = each.reshape(*statistics.shape[:-1], -1).to(statistics.device)
        for free, start, stop in zip(component, starts, starts[1:], strict=False):
            x = exponents[..., start:stop].reshape((*exponents.shape[:-1], *self._shape(free.units)))
            for name, coefficient in free.direction.items():
                self.exponents[name] = self.exponents.get(name, torch.zeros_like(x)) + coefficient * x

    def _equations(
        self, tensor: str, block: int, component: list[FreeDirection], starts: list[int]
    ) -> tuple[Tensor, Tensor]:
        """[cells, k] the powers with which the cells of a block take k factors, and what (*lead, cells) they hold.

        A cell is all entries that take the same of these factors.
        """
        members = [
            (place, power, start)
            for slot, place in self.at[tensor, block]
            for free, start in zip(component, starts, strict=False)
            if (power := self._moves(slot, free))
        ]
        values, lead = self._block(tensor, block)
        dims = sorted({d for place, _, _ in members for d in place.dims})
        sizes = {d: values.shape[lead + d] for d in dims}
        rest = [d for d in range(lead, values.dim()) if d - lead not in dims]
        cells = values.permute([*range(lead), *(lead + d for d in dims), *rest])
        cells = cells.reshape(*values.shape[:lead], math.prod(sizes.values()), -1)
        ranges = [torch.arange(n) for n in sizes.values()]
        grid = dict(zip(dims, torch.meshgrid(*ranges, indexing="ij"), strict=True)) if dims else {}
        powers = torch.zeros(cells.shape[-2], starts[-1], dtype=torch.float64)
        for place, power, start in members:
            unit = torch.zeros(list(sizes.values()), dtype=torch.long)
            for d in place.dims:
                unit = unit * sizes[d] + grid[d]
            powers[torch.arange(len(powers)), start + unit.flatten()] += power
        return powers, self._statistic(cells)

    def _statistic(self, values: Tensor) -> Tensor:
        """(*lead, cells) of (*lead, cells, d): the log norm, or the sum of cubes; -inf, or 0, where it says nothing."""
        if self.kind == "scaling":
            return torch.where(values.abs().amax(-1) > 0, _log_norm([values]), -math.inf)
        cubes = values.pow(3).sum(-1)
        return torch.where(cubes.abs() > VANISHING * values.abs().pow(3).sum(-1), cubes, 0.0)

    def _shape(self, units: str) -> tuple[int, ...]:
        if not units:
            return ()
        return (*(self.sym.sets[base].size for base in self.sym.sets[units].over), self.sym.sets[units].size)

    def _fits(self, slot: ScaledWeights) -> Tensor:
        """(*lead, *copies, n) whether the factors of a slot, and its tensor times them, are in range of the dtype."""
        total, limit = self._total(slot), self._limit(slot.tensor)
        assert total is not None
        return total.abs() <= limit.reshape((*limit.shape, *[1] * (total.dim() - limit.dim())))

    def _total(self, slot: ScaledWeights) -> Tensor | None:
        """What the exponents so far come to in a slot, (*lead, *copies, n)."""
        terms = [power * self.exponents[name] for name, power in slot.powers.items() if name in self.exponents]
        return torch.stack(terms).sum(0) if terms else None

    def _limit(self, name: str) -> Tensor:
        if name not in self.limits:
            tensor = self.state[name]
            self.limits[name] = _log_range(tensor, tensor.dim() - len(self.sym.axes[name]))
        return self.limits[name]

    def _weights(self, condition: ScaleCondition) -> Iterator[Tensor]:
        """(*lead, *copies, n, d) in float64, as the factors so far make them."""
        for slot in condition.slots:
            for place in slot.places:
                values, lead = self._block(slot.tensor, place.block)
                units = [lead + d for d in place.dims]
                rest = [d for d in range(lead, values.dim()) if d not in units]
                values = values.permute([*range(lead), *units, *rest])
                yield values.reshape(*values.shape[: lead + len(units)], -1)

    def _block(self, name: str, number: int) -> tuple[Tensor, int]:
        """A block of a tensor with the factors so far, in float64, and how many dimensions of a population lead it."""
        axes, tensor = self.sym.axes[name], self.state[name]
        lead = tensor.dim() - len(axes)
        slots = self.at[name, number]
        values = blocks(tensor, axes, lead)[number].values.double() + slots[0][0].offset
        for slot, place in slots:
            values = values * self._factor(slot, place, values.dim(), lead)
        return values, lead

    def _factor(self, slot: ScaledWeights, place: UnitPlace, rank: int, lead: int) -> Tensor | float:
        """What the exponents so far do to a block, as a tensor that broadcasts with it."""
        total = self._total(slot)
        if total is None:
            return 1.0
        factor = total.exp() if self.kind == "scaling" else 1 - 2 * total.remainder(2)
        # Dimensions of the exponents in the order of the block's.
        order = sorted(range(len(place.dims)), key=lambda k: place.dims[k])
        factor = factor.permute([*range(lead), *(lead + k for k in order)])
        for d in range(rank - lead):
            if d not in place.dims:
                factor = factor.unsqueeze(lead + d)
        return factor


def refuse_whole_numbers(name: str, x: Tensor) -> None:
    """Refuse what has no norm to be divided by."""
    if not x.is_floating_point() and not x.is_complex():
        raise StateError(f"Tensor '{name}' holds whole numbers, which have no norm to be divided by: give weights.")
