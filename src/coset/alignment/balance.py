"""One representative of all rescalings of a network, so that units are compared by what they do.

A ReLU unit with incoming weights w and outgoing v computes the same with c w and v / c. Balanced, the log norms of
all that a factor multiplies are as near to zero as it can make them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from coset.checks import State
from coset.symmetries import Element, ScaledAxis, Scaling, Symmetry
from coset.symmetries.axes import layout
from coset.symmetries.views import Block, blocks

ROUNDS = 50
SETTLED = 1e-5  # of the logarithm of a factor


@dataclass(frozen=True)
class Part:
    """What one scaling multiplies by c^power: parts of a tensor, each with the dimensions that index c."""

    views: list[tuple[Tensor, list[int]]]
    power: float

    def squares(self) -> Tensor:
        """(*copies, n): the squared norm of each unit's part."""
        return self.products(self)

    def products(self, other: Part) -> Tensor:
        """(*copies, n): the inner product of each unit's part with that of the same part of another state."""
        total: Tensor | None = None
        for (values, kept), (others, _) in zip(self.views, other.views, strict=True):
            rest = [d for d in range(values.dim()) if d not in kept]
            found = (values * others).sum(rest) if rest else values * others
            found = found.permute([sorted(kept).index(d) for d in kept])
            total = found if total is None else total + found
        assert total is not None
        return total

    def multiply(self, factor: Tensor) -> None:
        for values, kept in self.views:
            shape = [1] * values.dim()
            for d in kept:
                shape[d] = values.shape[d]
            order = sorted(range(len(kept)), key=lambda k: kept[k])
            values.mul_((factor**self.power).permute(order).reshape(shape))


def balance(state: State, sym: Symmetry) -> Element:
    """The factors r that make every exact positive scaling of act(r, state) balanced.

    For each unit, sum over members of power * log(norm) = 0: the least sum of squares of the log norms among all
    rescalings, so that networks which differ by a rescaling have one balanced form. Where scalings share tensors,
    rounds over all of them settle it.
    """
    parts = scaled_parts(state, sym)
    logs: dict[str, Tensor] = {}
    for _ in range(ROUNDS if parts else 0):
        largest = 0.0
        for name, members in parts.items():
            step = _log_factor(members)
            for member in members:
                member.multiply(step.exp())
            logs[name] = logs[name] + step if name in logs else step
            largest = max(largest, float(step.abs().max()))
        if largest < SETTLED:
            break
    return as_element(logs, sym)


def as_element(logs: Mapping[str, Tensor], sym: Symmetry) -> Element:
    """The element with these logarithms of factors, (*copies, n) for each scaling."""
    over = {scaling.name: scaling.over for scaling in sym.scalings}
    return sym.element(scales={name: (x.flatten(0, -2) if over[name] else x).exp() for name, x in logs.items()})


def scaled_parts(state: State, sym: Symmetry) -> dict[str, list[Part]]:
    """What each exact positive scaling of units multiplies, as views into one float64 copy of the state.

    Offsets are added: a scaling takes t + offset to c (t + offset).
    """
    scalings = [s for s in sym.scalings if s.exact and s.kind == "scaling" and s.units]
    offsets = {member.tensor: member.offset for scaling in scalings for member in scaling.members}
    work = {name: state[name].double() + offset for name, offset in offsets.items()}
    return {scaling.name: [part(work, sym, scaling, m) for m in scaling.members] for scaling in scalings}


def _log_factor(members: list[Part]) -> Tensor:
    """log c = -sum_m power_m log norm_m / sum_m power_m^2, over the members in which the unit is not dead."""
    total, weight = torch.zeros(()), torch.zeros(())
    for member in members:
        squares = member.squares()
        alive = squares > 0
        logs = torch.where(alive, squares, 1.0).log() / 2
        total, weight = total.to(logs) + member.power * logs, weight.to(logs) + alive * member.power**2
    return -total / weight.clamp(min=1e-12)


def part(work: State, sym: Symmetry, scaling: Scaling, member: ScaledAxis) -> Part:
    """The blocks of a tensor that hold this occurrence of the units, as views into `work`."""
    axes, axis = sym.axes[member.tensor], member.axis
    assert axis is not None
    entries = [entry for entry in layout(axes[axis]).entries if entry.name == scaling.units]
    inside = (entries[member.occurrence].coordinate >= 0).reshape([-1 if d == axis else 1 for d in range(len(axes))])
    mask = inside.expand([axis.size for axis in axes])
    pairs = zip(blocks(work[member.tensor], axes), blocks(mask, axes), strict=True)
    views = [_view(block, axis, sym, scaling) for block, reached in pairs if bool(reached.values.all())]
    return Part([view for view in views if view is not None], member.power)


def _view(block: Block, axis: int, sym: Symmetry, scaling: Scaling) -> tuple[Tensor, list[int]] | None:
    at = [d for d in block.where(scaling.units) if block.labels[d].axis == axis]
    return (block.values, [*block.bases(at[0], sym.sets[scaling.units]), at[0]]) if at else None
