"""Balanced factors: a gauge for maps inside heads, in which networks that differ by such maps differ by rotations.

Where a vector is written by A and read by B, every invertible M changes A to M A and B to M^-T B. With P = A A^T and
R = B B^T the symmetric M with M P M = M^-1 R M^-1 makes both sides alike. It is the square root of the geometric mean

    S = P^-1/2 (P^1/2 R P^1/2)^1/2 P^-1/2,    M = S^1/2,

and unique, so that M' of another network of the orbit is Q M N^-1 with Q orthogonal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from coset.alignment.coordinate_ascent import Match, maximise
from coset.alignment.matrix_blocks import with_permutations
from coset.alignment.method import AlignmentTask, Cost
from coset.core.checkpoint import LazyState
from coset.core.state import State
from coset.solutions.dirac import Dirac
from coset.solutions.solution import Solution
from coset.symmetries.group import Element, MatrixAxis, MatrixGroup, blocks
from coset.symmetries.matrix_action import places, rows
from coset.symmetries.symmetry import Symmetry

# Matrices this near to one change nothing that float32 tells.
BALANCED, MOST_ROUNDS = 1e-9, 100
# Least squares end where they gain less than this share.
SETTLED = 1e-6
# A direction that has less than this much of all weights has none, up to the rounding of float32.
SMALLEST = 1e-9


def balance(state: State, sym: Symmetry) -> Element:
    """The element that balances what writes and what reads units that any matrix may act on.

    Where such units meet one another, one after the other is balanced until all are: the network of least norm in its
    orbit, which is unique up to rotations (Kempf and Ness 1979).

    Args:
        state: A network.
        sym: Its symmetry; units of `sym.matrices` of the kind "linear" are balanced.
    """
    groups = [g for g in sym.matrices if g.kind == "linear" and len({member.dual for member in g.members}) == 2]
    names = dict.fromkeys(member.tensor for group in groups for member in group.members)
    image: State = {name: state[name].double() for name in names if name in state}
    element = sym.identity()
    for _ in range(MOST_ROUNDS):
        largest = 0.0
        for group in groups:
            m = _balancing(*(_second_moment(image, sym, group, dual) for dual in (False, True)))
            largest = max(largest, float((m - torch.eye(group.size, dtype=m.dtype, device=m.device)).abs().max()))
            step = sym.element(matrices={group.name: m if group.over else m[0]})
            element, image = step @ element, sym.act(step, image)
        if largest < BALANCED:
            break
    return element


def _second_moment(state: State, sym: Symmetry, group: MatrixGroup, dual: bool) -> Tensor:
    """[copies, n, n] sum of x x^T over the tensors on one side."""
    total = torch.zeros(group.copies, group.size, group.size, dtype=torch.float64)
    for member, tensor in _places_of(group, state, sym):
        if member.dual == dual:
            for block, d in places(blocks(tensor, sym.axes[member.tensor]), group.name, member):
                x = rows(block, d, group.over).double()
                total = total.to(x.device) + x.mT @ x
    return total


def _places_of(group: MatrixGroup, state: State, sym: Symmetry) -> list[tuple[MatrixAxis, Tensor]]:
    """The axes that matrices act on with their tensors, tied ones once."""
    once: dict[tuple[str, int, int], tuple[MatrixAxis, Tensor]] = {}
    for member in group.members:
        if member.tensor in state:
            place = (sym.tied.get(member.tensor, member.tensor), member.axis, member.occurrence)
            once.setdefault(place, (member, state[member.tensor]))
    return list(once.values())


def _balancing(writing: Tensor, reading: Tensor) -> Tensor:
    """M of each copy; the identity where vectors, or what reads them, do not span all directions: there is no least."""
    sizes = [x.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None] for x in (writing, reading)]
    eye = torch.eye(writing.shape[-1], dtype=writing.dtype, device=writing.device)
    finite = torch.stack([(size > 0) & size.isfinite() for size in sizes]).all(0)
    p, r = (torch.where(finite, x / size, eye) for x, size in zip((writing, reading), sizes, strict=True))
    least = torch.minimum(*(torch.linalg.eigvalsh(x)[..., :1, None] for x in (p, r)))
    usable = finite & (least > SMALLEST)
    p, r = (torch.where(usable, x, eye) for x in (p, r))
    root, inverse = _powers(p, 0.5), _powers(p, -0.5)
    balanced = _powers(inverse @ _powers(root @ r @ root, 0.5) @ inverse, 0.5)
    return torch.where(usable, balanced * (sizes[1] / sizes[0]) ** 0.25, eye)


def _powers(matrix: Tensor, power: float) -> Tensor:
    """A power of symmetric matrices that are positive."""
    values, vectors = torch.linalg.eigh((matrix + matrix.mT) / 2)
    raised: Tensor = vectors * values.clamp(min=torch.finfo(values.dtype).tiny).pow(power).unsqueeze(-2) @ vectors.mT
    return raised


def nearest(a: State, b: State, sym: Symmetry, element: Element) -> Element:
    """The element with other maps inside heads, for which |a - g b| is least nearby, by Gauss and Newton.

    Balancing follows the noise of both networks; this undoes it. For M = exp(X) M the residuals of vectors A - M B and
    of what reads them C - M^-T D are linear in small X, with the normal equations of a Sylvester equation,

        X (B B^T) + (D D^T) X = (A - B) B^T - D (C - D)^T.

    Args:
        a: The network that stays.
        b: The one that is moved.
        sym: Their symmetry.
        element: Where to begin.
    """
    groups = [group for group in sym.matrices if group.kind == "linear"]
    names = [name for name in dict.fromkeys(m.tensor for group in groups for m in group.members) if name in b]
    target = {name: a[name].double() for name in names}
    image = sym.act(element, {name: b[name].double() for name in names})
    for _ in range(MOST_ROUNDS):
        gain = 0.0
        for group in groups:
            own = [name for name in names if any(m.tensor == name for m in group.members)]
            x = _least_squares(target, image, sym, group)
            step = sym.element(matrices={group.name: torch.matrix_exp(x if group.over else x[0])})
            candidate = {**image, **sym.act(step, {name: image[name] for name in own})}
            before, after = (_apart(target, state, own) for state in (image, candidate))
            if after < before:
                gain = max(gain, (before - after) / before)
                element, image = step @ element, candidate
        if gain < SETTLED:
            break
    return element


def _apart(a: State, b: State, names: Sequence[str]) -> float:
    return sum(float((a[name] - b[name]).square().sum()) for name in names)


def _least_squares(a: State, b: State, sym: Symmetry, group: MatrixGroup) -> Tensor:
    """[copies, n, n] the X of the normal equations; the smallest where several are."""
    shape = (group.copies, group.size, group.size)
    writing, reading, right = (torch.zeros(shape, dtype=torch.float64) for _ in range(3))
    for member, tensor in _places_of(group, b, sym):
        axes = sym.axes[member.tensor]
        pairs = [places(blocks(state[member.tensor], axes), group.name, member) for state in (a, b)]
        for (one, d), (other, _) in zip(*pairs, strict=True):
            x, y = rows(one, d, group.over), rows(other, d, group.over)
            writing, reading, right = (z.to(tensor.device) for z in (writing, reading, right))
            if member.dual:
                reading, right = reading + y.mT @ y, right - y.mT @ (x - y)
            else:
                writing, right = writing + y.mT @ y, right + (x - y).mT @ y
    p, u = torch.linalg.eigh(writing)
    r, v = torch.linalg.eigh(reading)
    sums = r.unsqueeze(-1) + p.unsqueeze(-2)
    inside = torch.where(sums > SMALLEST * sums.amax((-2, -1), keepdim=True), v.mT @ right @ u / sums, 0.0)
    solution: Tensor = v @ inside @ u.mT
    return solution


def can_balance(sym: Symmetry, solutions: Sequence[Solution | LazyState]) -> bool:
    """Whether there is something to balance, in states that are in memory."""
    linear = any(group.kind == "linear" for group in sym.matrices)
    return linear and all(isinstance(one, Dirac) for one in solutions)


def match_balanced(cost: Cost, task: AlignmentTask) -> Match:
    """Match two networks in balanced gauges, and say it of the networks as they are.

    Only rotations are left to match in balanced networks; their inner product is what ascent raises, and `history`
    tells of it. Checkpoints on disk are matched as they are.

    Args:
        cost: What is maximised.
        task: The two networks.
    """
    sym = cost.symmetry(task)
    if not can_balance(sym, [task.first, task.second]):
        return maximise(cost.objective(task), task.restarts, task.generator, task.greedy, task.progress)
    a, b = task.means
    before, after = balance(a, sym), balance(b, sym)
    balanced = replace(task, first=Dirac(sym.act(before, a)), second=Dirac(sym.act(after, b)))
    back, inner = before.inverse(), cost.objective(task)

    def original(element: Element) -> Element:
        return with_permutations(nearest(a, b, sym, back @ element @ after))

    result = maximise(
        cost.objective(balanced),
        task.restarts,
        task.generator,
        task.greedy,
        task.progress,
        lambda element: inner.value(original(element)),
    )
    identity = inner.value(sym.identity())
    return replace(result, element=original(result.element), identity_objective=identity)
