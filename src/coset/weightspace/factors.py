"""The factors and signs of a canonical form: unit norms, and odd sums that are positive."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from coset.checks import State
from coset.symmetries import Element, Symmetry
from coset.symmetries.views import blocks
from coset.weightspace.gauge import Condition, Kind, Place, Slot, exact, gauge, slots

VANISHING = 1e-5  # a sum of cubes, beside that of their sizes
# (weights, each (*lead, *copies, n, d); power) -> how far to go along the direction, (*lead, *copies, n)
Step = Callable[[list[Tensor], float], Tensor]


def unit_norms(state: State, sym: Symmetry) -> Element:
    """The factors that make the weights of every condition a vector of norm one, for each unit: c^p = 1 / |w|.

    A unit whose weights are zero keeps its factor. `state` may be a population.
    """

    def step(weights: list[Tensor], power: float) -> Tensor:
        squares = torch.stack([w.square().sum(-1) for w in weights]).sum(0)
        return -torch.where(squares > 0, squares, 1.0).log() / (2 * power)

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


class _Pass:
    """Meet the conditions of one kind one after another: `exponents` are log factors, or the parities of signs."""

    def __init__(self, state: State, sym: Symmetry, kind: Kind) -> None:
        names = [name for name, x in state.items() if x.is_floating_point()]
        self.state, self.sym, self.kind = state, sym, kind
        self.conditions = gauge(sym, kind, names)
        self.at: dict[tuple[str, int], list[tuple[Slot, Place]]] = {}
        for slot in slots(sym, kind, names):
            for place in slot.places:
                self.at.setdefault((slot.tensor, place.block), []).append((slot, place))
        self.exponents: dict[str, Tensor] = {}

    def run(self, step: Step) -> dict[str, Tensor]:
        """scaling -> exponents, (*lead, n) or (*lead, copies, n)."""
        for condition in self.conditions:
            found = step(list(self._weights(condition)), condition.power)
            for name, x in condition.direction.items():
                self.exponents[name] = self.exponents.get(name, torch.zeros_like(found)) + x * found
        over = {scaling.name: len(scaling.over) for scaling in exact(self.sym, self.kind)}
        units = {scaling.name: scaling.units for scaling in exact(self.sym, self.kind)}
        return {
            name: (x.flatten(-1 - over[name], -2) if over[name] else x if units[name] else x.unsqueeze(-1))
            for name, x in self.exponents.items()
        }

    def _weights(self, condition: Condition) -> Iterator[Tensor]:
        """(*lead, *copies, n, d) in float64, as the factors found so far make them."""
        for slot in condition.slots:
            axes = self.sym.axes[slot.tensor]
            tensor = self.state[slot.tensor]
            lead = tensor.dim() - len(axes)
            views = blocks(tensor, axes, lead)
            for place in slot.places:
                values = views[place.block].values.double() + slot.offset
                for other, there in self.at[slot.tensor, place.block]:
                    values = values * self._factor(other, there, values.dim(), lead)
                kept = [lead + d for d in place.kept]
                rest = [d for d in range(lead, values.dim()) if d not in kept]
                values = values.permute([*range(lead), *kept, *rest])
                yield values.reshape(*values.shape[: lead + len(kept)], -1)

    def _factor(self, slot: Slot, place: Place, rank: int, lead: int) -> Tensor | float:
        """What the exponents found so far do to a block, as a tensor that broadcasts with it."""
        known = [power * self.exponents[name] for name, power in slot.powers.items() if name in self.exponents]
        if not known:
            return 1.0
        total = torch.stack(known).sum(0)
        factor = total.exp() if self.kind == "scaling" else 1 - 2 * total.remainder(2)
        # Dimensions of the exponents in the order of the block's.
        order = sorted(range(len(place.kept)), key=lambda k: place.kept[k])
        factor = factor.permute([*range(lead), *(lead + k for k in order)])
        for d in range(rank - lead):
            if d not in place.kept:
                factor = factor.unsqueeze(lead + d)
        return factor
