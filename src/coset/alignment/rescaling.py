"""Alignment of positive factors too: balanced networks, and the factors of B's units that bring it nearest to A."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coset.alignment.coordinate_ascent import Match
from coset.alignment.method import AlignmentTask, AlignMethod
from coset.alignment.objective import InnerProduct, Objective
from coset.alignment.precision import wide
from coset.core.state import State
from coset.symmetries.group import Block, Element, ScaledAxis, Scaling, blocks, layout
from coset.symmetries.symmetry import Symmetry


def match_with_factors(method: AlignMethod, task: AlignmentTask) -> Match:
    """Align as they are, and balanced; give each the nearest factors; the nearer one counts.

    The objective is <a, g b>, whatever the method.
    """
    a, b, sym = wide(task.a), wide(task.b), task.sym
    to_a, to_b = balance(a.mean, sym), balance(b.mean, sym)
    plain = method.match(dataclasses.replace(task, first=a, second=b))
    balanced = method.match(dataclasses.replace(task, first=sym.act(to_a, a), second=sym.act(to_b, b)))
    candidates: list[tuple[float, Match]] = []
    for match, element in ((plain, plain.element), (balanced, to_a.inverse() @ balanced.element @ to_b)):
        element = nearest_factors(a.mean, sym.act(element, b).mean, sym) @ element
        distance = _distance(a.mean, sym.act(element, b).mean, sym)
        candidates.append((distance, dataclasses.replace(match, element=element)))
    _, best = min(candidates, key=lambda candidate: candidate[0])
    inner = Objective(sym, [InnerProduct(a.mean, b.mean)])
    return dataclasses.replace(
        best,
        objective=inner.value(best.element),
        identity_objective=inner.value(sym.identity()),
        seconds=plain.seconds + balanced.seconds,
    )


def _distance(a: State, b: State, sym: Symmetry) -> float:
    parameters = [name for name, x in a.items() if x.is_floating_point() and name not in sym.buffers]
    return sum(float((a[name].double() - b[name].to(a[name]).double()).square().sum()) for name in parameters)


BALANCE_ROUNDS = 50
BALANCED = 1e-5  # of the logarithm of a factor


@dataclass(frozen=True)
class ScaledPart:
    """What one scaling multiplies by c^power: parts of a tensor, each with the dimensions that index c."""

    views: list[tuple[Tensor, list[int]]]
    power: float

    def squares(self) -> Tensor:
        """(*copies, n): the squared norm of each unit's part."""
        return self.products(self)

    def products(self, other: ScaledPart) -> Tensor:
        """(*copies, n): the inner product of each unit's part with that of the same part of another state."""
        total: Tensor | None = None
        for (values, index), (others, _) in zip(self.views, other.views, strict=True):
            rest = [d for d in range(values.dim()) if d not in index]
            sums = (values * others).sum(rest) if rest else values * others
            sums = sums.permute([sorted(index).index(d) for d in index]) if index else sums.reshape(1)
            total = sums if total is None else total + sums
        assert total is not None
        return total

    def multiply(self, factor: Tensor) -> None:
        for values, index in self.views:
            shape = [1] * values.dim()
            for d in index:
                shape[d] = values.shape[d]
            order = sorted(range(len(index)), key=lambda k: index[k])
            values.mul_((factor**self.power).permute(order if index else [0]).reshape(shape))


def _rescale(name: str, members: Sequence[ScaledPart], step: Tensor, logs: dict[str, Tensor]) -> float:
    """Multiply the members of a scaling by e^step, and add it to its logarithm; the largest step."""
    for member in members:
        member.multiply(step.exp())
    logs[name] = logs[name] + step if name in logs else step
    return float(step.abs().max())


def balance(state: State, sym: Symmetry) -> Element:
    """The factors r that make every exact positive scaling of act(r, state) balanced.

    For each unit, sum over members of power * log(norm) = 0: the least sum of squares of the log norms among all
    rescalings, so that networks which differ by a rescaling have one balanced form. Where scalings share tensors,
    rounds over all of them settle it.
    """
    parts = scaled_parts(state, sym)
    logs: dict[str, Tensor] = {}
    for _ in range(BALANCE_ROUNDS if parts else 0):
        largest = 0.0
        for name, members in parts.items():
            largest = max(largest, _rescale(name, members, _log_factor(members), logs))
        if largest < BALANCED:
            break
    return as_element(logs, sym)


def as_element(logs: Mapping[str, Tensor], sym: Symmetry) -> Element:
    """The element with these logarithms of factors, (*copies, n) for each scaling; on the CPU, as permutations are."""
    over = {scaling.name: scaling.over for scaling in sym.scalings}
    logs = {name: x.cpu() for name, x in logs.items()}
    return sym.element(scales={name: (x.flatten(0, -2) if over[name] else x).exp() for name, x in logs.items()})


def scaled_parts(state: State, sym: Symmetry) -> dict[str, list[ScaledPart]]:
    """What each positive scaling multiplies that is exact in both modes, as views into one float64 copy.

    Offsets are added: a scaling takes t + offset to c (t + offset).
    """
    scalings = [s for s in sym.scalings if s.in_both_modes and s.kind == "scaling"]
    offsets = {member.tensor: member.offset for scaling in scalings for member in scaling.members}
    work = {name: state[name].double() + offset for name, offset in offsets.items()}
    return {scaling.name: [scaled_part(work, sym, scaling, m) for m in scaling.members] for scaling in scalings}


def _log_factor(members: list[ScaledPart]) -> Tensor:
    """log c = -sum_m power_m log norm_m / sum_m power_m^2, over the members in which the unit is not dead."""
    total, weight = torch.zeros(()), torch.zeros(())
    for member in members:
        squares = member.squares()
        alive = squares > 0
        logs = torch.where(alive, squares, 1.0).log() / 2
        total, weight = total.to(logs) + member.power * logs, weight.to(logs) + alive * member.power**2
    return -total / weight.clamp(min=1e-12)


def scaled_part(work: State, sym: Symmetry, scaling: Scaling, member: ScaledAxis) -> ScaledPart:
    """The blocks of a tensor that hold this occurrence of the units, as views into `work`."""
    axes, axis = sym.axes[member.tensor], member.axis
    if axis is None:
        return ScaledPart([(work[member.tensor], [])], member.power)
    entries = [entry for entry in layout(axes[axis]).entries if entry.name == scaling.units]
    inside = (entries[member.occurrence].coordinate >= 0).reshape([-1 if d == axis else 1 for d in range(len(axes))])
    mask = inside.expand([axis.size for axis in axes])
    pairs = zip(blocks(work[member.tensor], axes), blocks(mask, axes), strict=True)
    views = [_view(block, axis, sym, scaling) for block, reached in pairs if bool(reached.values.all())]
    return ScaledPart([view for view in views if view is not None], member.power)


def _view(block: Block, axis: int, sym: Symmetry, scaling: Scaling) -> tuple[Tensor, list[int]] | None:
    at = [d for d in block.where(scaling.units) if block.labels[d].axis == axis]
    return (block.values, [*block.bases(at[0], sym.sets[scaling.units]), at[0]]) if at else None


RESCALE_ROUNDS = 20
RESCALED = 1e-4  # of the logarithm of a factor
# Logarithms of factors tried at once; zero is among them, so that no step leads away.
TRIALS = torch.linspace(-1.5, 1.5, 61, dtype=torch.float64)
NEWTON_STEPS = 4


def nearest_factors(a: State, b: State, sym: Symmetry) -> Element:
    """Minimise |a - r b|^2 over the trained tensors by coordinate descent over scalings, all units of one at once.

    For one unit, with members m of powers p, the distance is sum_m A - 2 c^p X + c^2p B, with A = |a_m|^2,
    X = <a_m, b_m> and B = |b_m|^2: a function of one number, which never rises here.
    """
    theirs, ours = scaled_parts(b, sym), scaled_parts(a, sym)
    is_parameter = {s.name: [m.tensor not in sym.buffers for m in s.members] for s in sym.scalings}
    logs: dict[str, Tensor] = {}
    for _ in range(RESCALE_ROUNDS if theirs else 0):
        largest = 0.0
        for name, members in theirs.items():
            pairs = [
                p for p, counts in zip(zip(ours[name], members, strict=True), is_parameter[name], strict=True) if counts
            ]
            if not pairs:
                continue
            largest = max(largest, _rescale(name, members, _best_step(pairs), logs))
        if largest < RESCALED:
            break
    return as_element(logs, sym)


def _best_step(pairs: list[tuple[ScaledPart, ScaledPart]]) -> Tensor:
    """(*copies, n): log c of least distance: the best of a row of trials, refined where that helps."""
    terms = [(theirs.power, ours.products(theirs), theirs.squares()) for ours, theirs in pairs]

    def distance(t: Tensor) -> Tensor:
        return torch.stack([(2 * p * t).exp() * b - 2 * (p * t).exp() * x for p, x, b in terms]).sum(0)

    shape = terms[0][1].shape
    row = TRIALS.to(terms[0][1].device).reshape(-1, *[1] * len(shape)).expand(-1, *shape)
    best = row.gather(0, distance(row).argmin(0, keepdim=True))[0]
    for _ in range(NEWTON_STEPS):
        slopes = [2 * p * ((2 * p * best).exp() * b - (p * best).exp() * x) for p, x, b in terms]
        bends = [2 * p**2 * (2 * (2 * p * best).exp() * b - (p * best).exp() * x) for p, x, b in terms]
        slope, bend = torch.stack(slopes).sum(0), torch.stack(bends).sum(0)
        step = torch.where(bend > 0, -slope / bend, 0.0).clamp(-0.1, 0.1)
        best = torch.where(distance(best + step) < distance(best), best + step, best)
    return torch.where(distance(best) < distance(torch.zeros_like(best)), best, 0.0)
