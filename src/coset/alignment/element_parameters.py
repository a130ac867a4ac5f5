"""A group element as parameters that a gradient moves: scores of permutations, matrices by retraction.

Of a loss with gradients G of M and H of M^-T the derivative along the curve exp(-s X) M is <X, G M^T - M^-T H^T>, so

    orthogonal   X is the skew part; M <- R M with R near exp(-X), brought back to the group by Newton and Schulz
    centred      besides, X 1 = 0
    phase        2 x 2 skew: one angle a pair
    linear       any X; M <- (1 - X) M, and M^-T follows by Newton's iteration for inverses

Nothing is differentiated through a projection, and each direction of X turns by the same angle (Muon, Jordan et al.
2024). Permutations are doubly stochastic matrices whose temperature falls (Peña et al. 2023).

Units of one number are one stack of tensors, so that all heads take one launch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coset.alignment import relaxed
from coset.alignment.matrix_blocks import best_matrices
from coset.assignment.sinkhorn import balanced_from
from coset.core.state import State, is_coordinate
from coset.symmetries.group import Element, MatrixGroup
from coset.symmetries.symmetry import Symmetry

BETA1, BETA2, EPSILON = 0.9, 0.99, 1e-12
SWEEPS = 8  # of rows and columns at each step, which begins where the last one ended
POLAR = 5  # steps of Newton and Schulz to a polar factor, with the coefficients of Jordan et al. 2024
COEFFICIENTS = (3.4445, -4.7750, 2.0315)


@dataclass(frozen=True)
class StackRows:
    """Where a group lies in a stack: the rows from `first` on, `copies` of them."""

    name: str
    first: int
    copies: int
    over: bool

    def of(self, stack: Tensor) -> Tensor:
        """Its rows, without their dimension where it lies over nothing."""
        own = stack[self.first : self.first + self.copies]
        return own if self.over else own.squeeze(0)


class PermutationStack:
    """Scores [rows, n, n] of the permutations of all groups of n units, what Adam remembers, and dual potentials."""

    def __init__(self, places: Sequence[StackRows], scores: Tensor) -> None:
        self.places, self.scores = places, scores.requires_grad_()
        self.mean, self.square = torch.zeros_like(scores), torch.zeros_like(scores)
        self.columns = torch.zeros_like(scores[..., 0])

    @property
    def state(self) -> list[Tensor]:
        """All that a step changes."""
        return [self.scores, self.mean, self.square, self.columns]

    def plans(self, temperature: Tensor) -> dict[str, Tensor]:
        """group -> P, differentiable in the scores."""
        plan, columns = balanced_from(self.scores, self.columns, temperature, SWEEPS)
        with torch.no_grad():
            self.columns.copy_(columns)
        return {place.name: place.of(plan) for place in self.places}

    @torch.no_grad()
    def step(self, gradient: Tensor, rate: Tensor, number: Tensor) -> None:
        """One of Adam, the `number`-th."""
        self.mean.lerp_(gradient, 1 - BETA1)
        self.square.lerp_(gradient.square(), 1 - BETA2)
        scale = (self.square / (1 - BETA2**number)).sqrt() + EPSILON
        self.scores.sub_(rate * (self.mean / (1 - BETA1**number)) / scale)


class MatrixStack:
    """Matrices [rows, n, n] of all groups of one kind and size, their inverse transposes, and the mean gradient."""

    def __init__(self, groups: Sequence[MatrixGroup], device: torch.device) -> None:
        self.kind, self.places = groups[0].kind, list[StackRows]()
        rows = 0
        for group in groups:
            copies = group.copies * (group.size if group.kind == "phase" else 1)
            self.places.append(StackRows(group.name, rows, copies, True))
            rows += copies
        self.one = torch.eye(groups[0].order, device=device)
        self.matrix = self.one.repeat(rows, 1, 1).requires_grad_()
        self.dual = self.one.repeat(rows, 1, 1).requires_grad_() if self.kind == "linear" else self.matrix
        self.mean = torch.zeros_like(self.matrix)

    @property
    def trained(self) -> list[Tensor]:
        """What gradients are taken in."""
        return [self.matrix, self.dual] if self.kind == "linear" else [self.matrix]

    @property
    def state(self) -> list[Tensor]:
        """All that a step changes."""
        return [*self.trained, self.mean]

    def turns(self) -> dict[str, relaxed.MatrixPair]:
        """group -> the matrices."""
        return {place.name: relaxed.MatrixPair(place.of(self.matrix), place.of(self.dual)) for place in self.places}

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], rate: Tensor) -> None:
        """Turn by the angle `rate` in the directions of the mean gradient."""
        m, d = self.matrix, self.dual
        slope = gradients[0] @ m.mT
        if self.kind == "linear":
            slope = slope - d @ gradients[1].mT
        self.mean.lerp_(self._tangent(slope), 1 - BETA1)
        step = rate * self._tangent(polar_factor(self.mean))
        if self.kind == "linear":
            d.copy_(d + step.mT @ (d + step.mT @ d))
            m.sub_(step @ m)
            d.copy_(2 * d - d @ (m.mT @ d))
        else:
            turned = m - step @ (m - step @ m / 2)
            for _ in range(2):
                turned = 1.5 * turned - 0.5 * turned @ (turned.mT @ turned)
            m.copy_(turned)

    def _tangent(self, x: Tensor) -> Tensor:
        if self.kind == "linear":
            return x
        x = (x - x.mT) / 2
        if self.kind == "centred":
            x = x - x.mean(-1, keepdim=True)
            x = x - x.mean(-2, keepdim=True)
        return x


def polar_factor(x: Tensor) -> Tensor:
    """Roughly U V^T of U S V^T, by matrix products; [..., n, n]."""
    first, third, fifth = COEFFICIENTS
    x = x / (x.flatten(-2).norm(dim=-1)[..., None, None] + EPSILON)
    for _ in range(POLAR):
        square = x @ x.mT
        x = first * x + (third * square + fifth * square @ square) @ x
    return x


class ElementParameters:
    """An element near the identity, to be learned.

    Args:
        sym: The part of the group that is learned.
        scores: group -> [n, n] or [copies, n, n] scores of its permutations, in which those of the start are largest.
        device: Where.
    """

    def __init__(self, sym: Symmetry, scores: Mapping[str, Tensor], device: torch.device) -> None:
        self.sym = sym
        self.permutations = [
            _stacked({name: x for name, x in scores.items() if x.shape[-1] == size})
            for size in dict.fromkeys(x.shape[-1] for x in scores.values())
        ]
        kinds = dict.fromkeys((group.kind, group.order) for group in sym.matrices)
        self.matrices = [
            MatrixStack([group for group in sym.matrices if (group.kind, group.order) == one], device) for one in kinds
        ]

    @property
    def state(self) -> list[Tensor]:
        """All that a step changes."""
        return [*(x for stack in self.permutations for x in stack.state), *(x for s in self.matrices for x in s.state)]

    @property
    def trained(self) -> list[Tensor]:
        """What gradients are taken in."""
        return [*(stack.scores for stack in self.permutations), *(x for s in self.matrices for x in s.trained)]

    def image(self, state: State, temperature: Tensor) -> dict[str, Tensor]:
        """The relaxed image of a state, differentiable; but for buffers, since torch's batch norm has no gradient."""
        plans = {name: plan for stack in self.permutations for name, plan in stack.plans(temperature).items()}
        turns = {name: turn for stack in self.matrices for name, turn in stack.turns().items()}
        image = relaxed.act(self.sym, plans, state, turns)
        return {name: x.detach() if name in self.sym.buffers else x for name, x in image.items()}

    def step(self, gradients: Sequence[Tensor], rate: Tensor, turn_rate: Tensor, number: Tensor) -> None:
        """Against gradients in what is `trained`."""
        rest = iter(gradients)
        for stack in self.permutations:
            stack.step(next(rest), rate, number)
        for turning in self.matrices:
            turning.step([next(rest) for _ in turning.trained], turn_rate)

    @torch.no_grad()
    def element(self) -> Element:
        """The nearest element: permutations of the largest scores, and matrices of the group to the last digit."""
        scores = {place.name: place.of(stack.scores) for stack in self.permutations for place in stack.places}
        kinds = {group.name: group for group in self.sym.matrices}
        matrices: dict[str, Tensor] = {}
        for stack in self.matrices:
            for place in stack.places:
                group, m = kinds[place.name], place.of(stack.matrix).double().cpu()
                if group.kind == "phase":
                    m = m.reshape(group.copies, group.size, 2, 2)
                m = m if group.over else m.squeeze(0)
                matrices[place.name] = m if group.kind == "linear" else best_matrices(group.kind, m)[1]
        return self.sym.element(relaxed.rounded(self.sym, scores).permutations, matrices=matrices)


def _stacked(scores: Mapping[str, Tensor]) -> PermutationStack:
    places: list[StackRows] = []
    rows = 0
    for name, x in scores.items():
        copies = len(x) if x.dim() == 3 else 1
        places.append(StackRows(name, rows, copies, x.dim() == 3))
        rows += copies
    stack = torch.cat([x.detach() if x.dim() == 3 else x.detach().unsqueeze(0) for x in scores.values()])
    return PermutationStack(places, stack.contiguous())


def scores_at_identity(a: State, b: State, sym: Symmetry, margin: float) -> dict[str, Tensor]:
    """The gradients of <a, P(b)> in the permutations at P = 1, [n, n] or [copies, n, n], and `margin` for P = 1.

    Each is divided by its deviation, so that rate and temperature mean the same for all. Units that matrices mix have
    none.
    """
    identity, turning = sym.identity(), {group.name for group in sym.matrices}
    device = next(iter(b.values())).device
    with torch.enable_grad():
        plans = {
            group.name: relaxed.matrix_of(identity, group.name).to(device)
            for group in sym.groups
            if group.name not in turning
        }
        for plan in plans.values():
            plan.requires_grad_()
        names = [name for name in sym.axes if name in b and name not in sym.buffers and is_coordinate(b[name])]
        image = relaxed.act(sym, plans, {name: b[name] for name in names})
        value = sum(((a[name] * image[name]).sum() for name in names), torch.zeros((), device=device))
        value = value + sum(plan.sum() * 0 for plan in plans.values())
        gradients = torch.autograd.grad(value, list(plans.values()), materialize_grads=True) if plans else ()
    return {
        name: margin * plan.detach() + x / x.std(correction=0).clamp(min=torch.finfo(x.dtype).tiny)
        for (name, plan), x in zip(plans.items(), gradients, strict=True)
    }


def falling(first: float, last: float, done: float) -> float:
    """From `first` to `last`, by equal factors."""
    return first * math.exp(math.log(last / first) * done)


def cosine(done: float) -> float:
    """(1 + cos(pi done)) / 2, from 1 to 0."""
    return (1 + math.cos(math.pi * done)) / 2
