"""The factors and signs of a canonical state: each condition of `scale_conditions` is met, one after another."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from coset.core.state import State
from coset.symmetries.group import Element, ScalingKind, blocks
from coset.symmetries.symmetry import Symmetry
from coset.weightspace.scale_conditions import (
    ScaleCondition,
    ScaledWeights,
    UnitPlace,
    exact_scalings,
    scale_conditions,
    scaled_weights,
)

VANISHING = 1e-5  # a sum of cubes, beside that of their sizes
SAFE = 1e-280  # a sum of squares in float64 above this, and below its inverse, has lost none of them
# (weights, each (*lead, *copies, n, d); power) -> how far to go along the direction, (*lead, *copies, n)
SolveCondition = Callable[[list[Tensor], float], Tensor]


def unit_norms(state: State, sym: Symmetry) -> Element:
    """The factors that make the weights of every condition a vector of norm one, for each unit: c^p = 1 / |w|.

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
    next weights decide that the unit has.
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
        self.conditions = scale_conditions(sym, kind, names)
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
            axes = self.sym.axes[slot.tensor]
            tensor = self.state[slot.tensor]
            lead = tensor.dim() - len(axes)
            views = blocks(tensor, axes, lead)
            for place in slot.places:
                values = views[place.block].values.double() + slot.offset
                for other, there in self.at[slot.tensor, place.block]:
                    values = values * self._factor(other, there, values.dim(), lead)
                units = [lead + d for d in place.dims]
                rest = [d for d in range(lead, values.dim()) if d not in units]
                values = values.permute([*range(lead), *units, *rest])
                yield values.reshape(*values.shape[: lead + len(units)], -1)

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
