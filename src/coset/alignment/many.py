"""Many solutions at once, cycle-consistently: each gets one element, and i goes to j by g_j^-1 g_i."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coset.alignment.driver import Match, Progress, maximise
from coset.alignment.objective import Problem
from coset.alignment.rescaling import wide
from coset.core.errors import CosetError
from coset.core.state import State, is_coordinate
from coset.solutions.dirac import Dirac
from coset.solutions.gaussian import Gaussian
from coset.solutions.solution import Solution
from coset.symmetries.group import Element
from coset.symmetries.symmetry import Symmetry

LARGEST_ROUNDS = 50
SETTLED = 1e-9


@dataclass(frozen=True)
class ManyMatch:
    """One element a solution, to a common frame.

    objective
        star: the sum of all matches to the reference; joint: the sum over all pairs of solutions
    history
        the objective after each round over all solutions, rising
    """

    elements: tuple[Element, ...]
    objective: float
    identity_objective: float
    seconds: float
    history: tuple[float, ...] = ()

    def between(self, i: int, j: int) -> Element:
        """The element that takes solution i to solution j; going round any cycle is the identity."""
        return self.elements[j].inverse() @ self.elements[i]


def star(
    solutions: Sequence[Solution],
    sym: Symmetry,
    reference: Solution,
    match: Callable[[Solution, Solution], Match],
    progress: Progress,
) -> ManyMatch:
    """Align each solution to the reference."""
    start = time.perf_counter()
    found: list[Match] = []
    for number, solution in enumerate(solutions):
        progress(f"aligning {number + 1} of {len(solutions)}")
        found.append(match(reference, solution))
    return ManyMatch(
        tuple(one.element for one in found),
        sum(one.objective for one in found),
        sum(one.identity_objective for one in found),
        time.perf_counter() - start,
    )


def joint(
    solutions: Sequence[Solution],
    sym: Symmetry,
    problem: Callable[[Solution, Solution], Problem],
    generator: torch.Generator | None,
    progress: Progress,
) -> ManyMatch:
    """Align each solution to the barycenter of the others, in turn, until the sum over pairs stops rising.

    sum_{i<j} <g_i s_i, g_j s_j> is linear in each g_i, with the gradient sum_{j != i} g_j s_j: exact coordinate
    ascent. The first is left where it is, so that the frame does not wander.
    """
    start = time.perf_counter()
    generator = generator if generator is not None else torch.Generator().manual_seed(0)
    moved = [wide(one) for one in solutions]
    elements = [sym.identity()] * len(solutions)
    at_identity = _pairwise(moved, problem, sym)
    for i in range(1, len(moved)):
        progress(f"first match of {i + 1} of {len(moved)}")
        found = maximise(problem(barycenter(moved[:i]), moved[i]), 1, generator)
        elements[i], moved[i] = found.element, sym.act(found.element, moved[i])
    history = [_pairwise(moved, problem, sym)]
    while len(history) < LARGEST_ROUNDS:
        for i in _order(len(moved), generator):
            others = barycenter([solution for j, solution in enumerate(moved) if j != i])
            found = maximise(problem(others, moved[i]), 1, generator, greedy=False)
            elements[i], moved[i] = found.element @ elements[i], sym.act(found.element, moved[i])
        history.append(_pairwise(moved, problem, sym))
        progress(f"round {len(history) - 1}: objective {history[-1]:.6g}")
        if history[-1] - history[-2] <= SETTLED * abs(history[-1]):
            break
    return ManyMatch(tuple(elements), history[-1], at_identity, time.perf_counter() - start, tuple(history))


def _order(n: int, generator: torch.Generator) -> list[int]:
    order: list[int] = torch.randperm(n - 1, generator=generator, device=generator.device).add(1).tolist()
    return order


def _pairwise(moved: Sequence[Solution], problem: Callable[[Solution, Solution], Problem], sym: Symmetry) -> float:
    """sum over pairs i < j, from n^2 |mean|^2 = sum_i |s_i|^2 + 2 sum_{i<j}."""
    n, identity = len(moved), sym.identity()
    whole = barycenter(moved)
    together = n * n * problem(whole, whole).objective(identity)
    return 0.5 * (together - sum(problem(one, one).objective(identity) for one in moved))


def barycenter(solutions: Sequence[Solution], weights: Sequence[float] | None = None) -> Solution:
    """The W2 barycenter: the mean of points; of diagonal Gaussians the mean of means and of deviations.

    The noise of regressions is a deviation too.
    """
    noise = _mean_noise(solutions, weights)
    if all(isinstance(one, Gaussian) for one in solutions):
        gaussians = [one for one in solutions if isinstance(one, Gaussian)]
        mean, std = (_mean([getattr(one, part) for one in gaussians], weights) for part in ("mean", "std"))
        return Gaussian(mean, std, noise)
    if not all(isinstance(one, Dirac) for one in solutions):
        kinds = ", ".join(sorted({type(one).__name__ for one in solutions}))
        raise CosetError(f"A barycenter needs solutions of one kind, points or diagonal Gaussians, not {kinds}.")
    return Dirac(_mean([one.mean for one in solutions], weights), noise)


def _mean_noise(solutions: Sequence[Solution], weights: Sequence[float] | None) -> float | None:
    w = [1.0] * len(solutions) if weights is None else list(weights)
    known = [(weight, one.noise) for weight, one in zip(w, solutions, strict=True) if one.noise is not None]
    if not known:
        return None
    if len(known) < len(solutions):
        raise CosetError("Some of these solutions have noise and some have none: give it to all or to none.")
    return sum(weight * noise for weight, noise in known) / sum(w)


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
