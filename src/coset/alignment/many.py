"""Many solutions at once, cycle-consistently: each gets one element, and i goes to j by g_j^-1 g_i."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coset.alignment.balance import balance, can_balance
from coset.alignment.coordinate_ascent import Match, maximise, moving_groups, spread
from coset.alignment.matrix_blocks import with_permutations
from coset.alignment.method import AlignmentTask, AlignMethod, Cost
from coset.alignment.precision import wide
from coset.core.errors import CosetError
from coset.core.progress import Event, Progress
from coset.core.show import Shown, Table
from coset.core.state import State, is_coordinate
from coset.solutions.dirac import Dirac
from coset.solutions.gaussian import Gaussian
from coset.solutions.solution import Solution
from coset.symmetries.group import Element

LARGEST_ROUNDS = 50
SETTLED = 1e-9


@dataclass(frozen=True, repr=False)
class ManyMatch(Shown):
    """One element a solution, to a common frame, as `coset.align_many` returns it.

    Args:
        elements: `sym.act(elements[i], solutions[i])` is the aligned solution i.
        objective: With a reference the sum of all matches to it; without, the sum over all pairs of solutions.
        identity_objective: The same, without moving anything.
        seconds: The time it took.
        history: The objective after each round over all solutions, rising; empty with a reference.
        starts: For each solution the objectives that the starts of its (first) match reached.

    Example:
        >>> match = coset.align_many([a, b], sym)
        >>> match.objective >= match.identity_objective
        True
    """

    elements: tuple[Element, ...]
    objective: float
    identity_objective: float
    seconds: float
    history: tuple[float, ...] = ()
    starts: tuple[tuple[float, ...], ...] = ()

    def between(self, i: int, j: int) -> Element:
        """The element that takes solution i to solution j; going round any cycle is the identity.

        Args:
            i: The number of a solution.
            j: The number of another.
        """
        return self.elements[j].inverse() @ self.elements[i]

    def _shown(self) -> Table:
        rows: list[tuple[object, ...]] = [
            ("objective before", self.identity_objective),
            ("objective after", self.objective),
            ("seconds", round(self.seconds, 3)),
            *((f"solution {k}", f"{moving_groups(g)} groups move") for k, g in enumerate(self.elements)),
        ]
        rows += [(f"starts of {k}", spread(ends)) for k, ends in enumerate(self.starts) if len(ends) > 1]
        return Table(f"Match of {len(self.elements)} solutions", rows)


def star(tasks: Sequence[AlignmentTask], method: AlignMethod, progress: Progress | None) -> ManyMatch:
    """Align each solution to the reference, the first of each task."""
    start = time.perf_counter()
    matches: list[Match] = []
    for number, task in enumerate(tasks):
        if progress is not None:
            progress(Event(number, len(tasks), "network", f"aligning {number + 1} of {len(tasks)}"))
        matches.append(method.match(task))
    return ManyMatch(
        tuple(match.element for match in matches),
        sum(match.objective for match in matches),
        sum(match.identity_objective for match in matches),
        time.perf_counter() - start,
        starts=tuple(match.objectives for match in matches),
    )


def joint(solutions: Sequence[Solution], cost: Cost, task: AlignmentTask) -> ManyMatch:
    """Align each solution to the barycenter of the others, in turn, until the sum over pairs stops rising.

    sum_{i<j} <g_i s_i, g_j s_j> is linear in each g_i, with the gradient sum_{j != i} g_j s_j: exact coordinate
    ascent. The first is left where it is, so that the frame does not wander. Maps inside heads are matched between
    balanced networks, whose sum `history` tells of.
    """
    searched = cost.symmetry(task)
    if not can_balance(searched, solutions):
        return _joint(solutions, cost, task)
    gauges = [balance(one.mean, searched) for one in solutions]
    result = _joint([searched.act(g, one) for g, one in zip(gauges, solutions, strict=True)], cost, task)
    back = gauges[0].inverse()
    pairs = zip(result.elements, gauges, strict=True)
    elements = tuple(with_permutations(back @ element @ g) for element, g in pairs)
    images = [wide(searched.act(g, one)) for g, one in zip(elements, solutions, strict=True)]
    return replace(
        result,
        elements=elements,
        objective=_pairwise(images, cost, task),
        identity_objective=_pairwise([wide(one) for one in solutions], cost, task),
    )


def _joint(solutions: Sequence[Solution], cost: Cost, task: AlignmentTask) -> ManyMatch:
    start = time.perf_counter()
    sym = task.sym
    generator = task.generator if task.generator is not None else torch.Generator().manual_seed(0)
    images = [wide(one) for one in solutions]
    elements = [sym.identity()] * len(solutions)
    starts: list[tuple[float, ...]] = [()]
    at_identity = _pairwise(images, cost, task)

    def match(to: Solution, i: int, greedy: bool) -> Match:
        objective = cost.objective(replace(task, first=to, second=images[i]))
        return maximise(objective, 1, generator, greedy)

    for i in range(1, len(images)):
        task.tell(f"first match of {i + 1} of {len(images)}", i, len(images), "network")
        first = match(barycenter(images[:i]), i, greedy=True)
        elements[i] = first.element
        starts.append(first.objectives)
        images[i] = sym.act(elements[i], images[i])
    history = [_pairwise(images, cost, task)]
    while len(history) < LARGEST_ROUNDS:
        for i in _order(len(images), generator):
            element = match(barycenter([one for j, one in enumerate(images) if j != i]), i, greedy=False).element
            elements[i], images[i] = element @ elements[i], sym.act(element, images[i])
        history.append(_pairwise(images, cost, task))
        rounds = len(history) - 1
        task.tell(f"round {rounds}: objective {history[-1]:.6g}", rounds, None, "sweep")
        if history[-1] - history[-2] <= SETTLED * abs(history[-1]):
            break
    seconds = time.perf_counter() - start
    return ManyMatch(tuple(elements), history[-1], at_identity, seconds, tuple(history), tuple(starts))


def _order(n: int, generator: torch.Generator) -> list[int]:
    order: list[int] = torch.randperm(n - 1, generator=generator, device=generator.device).add(1).tolist()
    return order


def _pairwise(images: Sequence[Solution], cost: Cost, task: AlignmentTask) -> float:
    """sum over pairs i < j, from n^2 |mean|^2 = sum_i |s_i|^2 + 2 sum_{i<j}."""
    n, identity = len(images), task.sym.identity()

    def square(one: Solution) -> float:
        return cost.objective(replace(task, first=one, second=one)).value(identity)

    return 0.5 * (n * n * square(barycenter(images)) - sum(square(one) for one in images))


def barycenter(solutions: Sequence[Solution], weights: Sequence[float] | None = None) -> Solution:
    """The W2 barycenter: the mean of points; of diagonal Gaussians the mean of means and of deviations.

    The noise of regressions is a deviation too.
    """
    noise = _mean_noise(solutions, weights)
    if all(isinstance(one, Gaussian) for one in solutions):
        gaussians = [one for one in solutions if isinstance(one, Gaussian)]
        mean, std = _mean([one.mean for one in gaussians], weights), _mean([one.std for one in gaussians], weights)
        return Gaussian(mean, std, noise)
    if not all(isinstance(one, Dirac) for one in solutions):
        kinds = ", ".join(sorted({type(one).__name__ for one in solutions}))
        raise CosetError(f"A barycenter needs solutions of one kind, points or diagonal Gaussians, not {kinds}.")
    return Dirac(_mean([one.mean for one in solutions], weights), noise)


def _mean_noise(solutions: Sequence[Solution], weights: Sequence[float] | None) -> float | None:
    w = [1.0] * len(solutions) if weights is None else list(weights)
    noises = [(weight, one.noise) for weight, one in zip(w, solutions, strict=True) if one.noise is not None]
    if not noises:
        return None
    if len(noises) < len(solutions):
        raise CosetError("Some of these solutions have noise and some have none: give it to all or to none.")
    return sum(weight * noise for weight, noise in noises) / sum(w)


def _mean(states: Sequence[State], weights: Sequence[float] | None) -> dict[str, Tensor]:
    """The weighted mean in double precision, one tensor at a time, in the dtypes of the first."""
    w = [1.0] * len(states) if weights is None else list(weights)
    total = sum(w)

    def average(name: str, x: Tensor) -> Tensor:
        if not is_coordinate(x):
            return x.clone()
        dtype = torch.complex128 if x.is_complex() else torch.float64
        parts = [k / total * state[name].to(dtype) for k, state in zip(w, states, strict=True)]
        return sum(parts[1:], start=parts[0]).to(x.dtype)

    return {name: average(name, x) for name, x in states[0].items()}
