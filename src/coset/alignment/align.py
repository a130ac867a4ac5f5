"""`align`, `align_many` and `merge`: from solutions and a symmetry to elements and averages."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from coset.alignment.activations import constrained, cross_statistics
from coset.alignment.driver import Match, Progress, maximise
from coset.alignment.many import ManyMatch, joint, star
from coset.alignment.objective import Pair, Problem
from coset.alignment.population import PopulationMatch, align_population
from coset.alignment.rescaling import as_in, balance, nearest_factors, wide
from coset.alignment.sinkhorn import Sinkhorn
from coset.core import state as states
from coset.core.device import resolve
from coset.core.errors import CosetError, DataError
from coset.core.state import State, check, refuse_names
from coset.data import Data, as_split
from coset.solutions.gaussian import Gaussian
from coset.solutions.load import with_order
from coset.solutions.solution import Solution
from coset.symmetries.symmetry import Symmetry


@dataclass(frozen=True)
class Activations:
    """Match units that are active together (tatro2020, Algorithm 1).

    kind
        activations before or after the nonlinearity
    measure
        correlation, or L2 distance
    bounded
        after the nonlinearity, but without moving apart before it: tatro2020 Eq. 31
    """

    kind: Literal["post", "pre"] = "post"
    measure: Literal["correlation", "l2"] = "correlation"
    bounded: bool = False
    batch_size: int = 500

    def __post_init__(self) -> None:
        for name, choices in (("kind", ("post", "pre")), ("measure", ("correlation", "l2"))):
            if getattr(self, name) not in choices:
                raise CosetError(
                    f"The {name} of Activations is {getattr(self, name)!r}; choose {' or '.join(choices)}."
                )

    def scores(
        self, a: State, b: State, sym: Symmetry, model: nn.Module, data: Data, device: torch.device, progress: Progress
    ) -> dict[str, Tensor]:
        """set -> scores of A's units against B's, for `Problem.linear`."""

        def statistics(kind: Literal["pre", "post"], measure: Literal["correlation", "l2"]) -> dict[str, Tensor]:
            progress(f"comparing activations ({kind}, {measure})")
            return cross_statistics(a, b, sym, model, data, kind, measure, batch_size=self.batch_size, device=device)

        if not bool(as_split(data).inputs.isfinite().all()):
            raise DataError("The inputs have NaN or infinite values, so activations cannot be compared.")
        found = statistics(self.kind, self.measure)
        if not self.bounded:
            return found
        before = statistics("pre", "l2")
        for name, scores in found.items():
            if scores.dim() == 2 and name in before:
                # The constrained optimum as scores of its own: ones at its pairs.
                p = constrained(scores, before[name])
                found[name] = torch.zeros_like(scores).scatter_(1, p.to(scores.device).unsqueeze(1), 1.0)
        return found


def weights(a: Solution, b: Solution) -> list[Pair]:
    return [Pair(a.mean, b.mean)]


def wasserstein(a: Solution, b: Solution) -> list[Pair]:
    p, q = _gaussians("wasserstein", a, b)
    return [Pair(p.mean, q.mean), Pair(p.std, q.std)]


def kl(a: Solution, b: Solution) -> list[Pair]:
    """<m_a / s_a^2, g m_b> - <1 / (2 s_a^2), g (s_b^2 + m_b^2)>, over the tensors that are random."""
    p, q = (wide(one) for one in _gaussians("kl", a, b))
    assert isinstance(p, Gaussian) and isinstance(q, Gaussian)
    random = [name for name in p.std if bool((p.std[name] > 0).any()) or bool((q.std[name] > 0).any())]
    for name in random:
        if not bool((p.std[name] > 0).all()):
            raise CosetError(f"The KL divergence is infinite: the first solution has no deviation in '{name}'.")
    precision = {name: p.std[name].pow(-2) for name in random}
    return [
        Pair({name: precision[name] * p.mean[name] for name in random}, {name: q.mean[name] for name in random}),
        Pair(
            {name: -0.5 * precision[name] for name in random},
            {name: q.std[name].square() + q.mean[name].square() for name in random},
        ),
    ]


COSTS: dict[str, Callable[[Solution, Solution], list[Pair]]] = {
    "weights": weights,
    "wasserstein": wasserstein,
    "kl": kl,
}


def natural(a: Solution, b: Solution) -> str:
    """The cost of `method="auto"`: Wasserstein for two Gaussians, weights otherwise."""
    return "wasserstein" if isinstance(a, Gaussian) and isinstance(b, Gaussian) else "weights"


def _gaussians(cost: str, a: Solution, b: Solution) -> tuple[Gaussian, Gaussian]:
    if not (isinstance(a, Gaussian) and isinstance(b, Gaussian)):
        raise CosetError(f'The method "{cost}" compares Gaussians, not {type(a).__name__} and {type(b).__name__}.')
    return a, b


Method = str | Activations | Sinkhorn
METHODS = ("auto", *COSTS, "activations", "sinkhorn")
# Objectives that are the same whichever of two solutions is moved, as the sum over pairs needs.
JOINT = ("auto", "weights", "wasserstein")


def align(
    a: Solution | State,
    b: Solution | State,
    sym: Symmetry,
    method: Method = "auto",
    model: nn.Module | None = None,
    data: Data | None = None,
    restarts: int = 1,
    generator: torch.Generator | None = None,
    *,
    greedy: bool = True,
    scale: bool = False,
    device: str | torch.device | None = None,
    progress: Progress = lambda text: None,
) -> Match:
    """The element that brings b as near to a as it can: ``sym.act(match.element, b)`` is the aligned b.

    method
        "weights", "wasserstein", "kl" (see `coset.alignment.align`), "activations" or "sinkhorn", or an `Activations`
        or `Sinkhorn` with settings. "auto" is wasserstein for two Gaussians and weights otherwise. The last two need
        ``model`` and ``data``.
    restarts, greedy
        where coordinate ascent starts: see `maximise`
    scale
        also match the positive factors of units, such as ReLU's (see `balance` and `nearest_factors`); the result is
        never further from a than without, and its objective is <a, g b>
    device
        where to compute; by default where a lies
    """
    first, second = _matching(with_order(a), with_order(b), sym)
    if restarts < 1:
        raise CosetError(f"There are {restarts} starts to climb from; give at least 1.")
    if scale:
        return _scaled(first, second, sym, method, model, data, restarts, generator, greedy, device, progress)
    where = resolve(device, first.mean)
    if method == "sinkhorn" or isinstance(method, Sinkhorn):
        settings = Sinkhorn() if isinstance(method, str) else method
        if model is not None:
            first, second = as_in(model, first), as_in(model, second)
        return settings.run(first, second, sym, model, data, generator, where, progress)
    problem = _problem(first, second, sym, method, model, data, where, progress)
    return maximise(problem, restarts, generator, greedy, progress)


def align_many(
    solutions: Sequence[Solution | State] | State,
    sym: Symmetry,
    reference: Solution | State | int | None = None,
    method: Method = "auto",
    model: nn.Module | None = None,
    data: Data | None = None,
    generator: torch.Generator | None = None,
    *,
    device: str | torch.device | None = None,
    progress: Progress = lambda text: None,
) -> ManyMatch | PopulationMatch:
    """One element a solution, to a common frame, so that cycles close exactly.

    With a reference (a solution, or the number of one) each is aligned to it. Without one, all are aligned jointly:
    each to the barycenter of the others, until the sum over all pairs stops rising; the first stays where it is.
    A population, a State with one leading dimension, is aligned to its reference (by default its first member) by
    weights, in batches.
    """
    if isinstance(solutions, Mapping):
        if method not in ("auto", "weights"):
            raise CosetError(f"A population is aligned by weights, not by {method!r}.")
        if not solutions:
            raise CosetError("There are no solutions to align.")
        where, member = resolve(device, solutions), _member(solutions, reference)
        check(member, like={name: x[0] for name, x in solutions.items()}, where="the reference")
        return align_population(states.to(solutions, where), states.to(member, where), sym)
    given = [with_order(one) for one in solutions]
    if not given:
        raise CosetError("There are no solutions to align.")
    for one in given[1:]:
        _matching(given[0], one, sym)
    where = resolve(device, given[0].mean)

    def problem(p: Solution, q: Solution) -> Problem:
        return _problem(p, q, sym, method, model, data, where, lambda text: None)

    if reference is None:
        if method not in JOINT:
            raise CosetError(
                f"Solutions are aligned jointly by {', '.join(JOINT)}; give a reference for other methods."
            )
        return joint(given, sym, problem, generator, progress)
    target = given[_index(reference, len(given))] if isinstance(reference, int) else with_order(reference)

    def match(p: Solution, q: Solution) -> Match:
        return align(p, q, sym, method, model, data, 1, generator, device=where)

    return star(given, sym, target, match, progress)


def _index(number: int, n: int) -> int:
    if not -n <= number < n:
        raise CosetError(f"There is no solution {number} among {n} to refer to.")
    return number


def _member(population: State, reference: Solution | State | int | None) -> State:
    if reference is None or isinstance(reference, int):
        k = _index(reference or 0, len(next(iter(population.values()))))
        return {name: x[k] for name, x in population.items()}
    mean = with_order(reference).mean
    return {name: x.to(population[name].dtype) if name in population else x for name, x in mean.items()}


def _matching(a: Solution, b: Solution, sym: Symmetry) -> tuple[Solution, Solution]:
    """Refuse solutions that do not fit together, or not to the symmetry."""
    check(b.mean, like=a.mean, where="the second solution")
    refuse_names(sym.missing(a.mean), [], "the first solution")
    for name, axes in sym.axes.items():
        expected = tuple(axis.size for axis in axes)
        if name in a.mean and tuple(a.mean[name].shape) != expected:
            raise CosetError(f"Tensor '{name}' has shape {tuple(a.mean[name].shape)}, the symmetry expects {expected}.")
    return a, b


def _problem(
    a: Solution,
    b: Solution,
    sym: Symmetry,
    method: Method,
    model: nn.Module | None,
    data: Data | None,
    device: torch.device,
    progress: Progress,
) -> Problem:
    name = natural(a, b) if method == "auto" else method
    if isinstance(name, str) and name in COSTS:
        return Problem(sym, COSTS[name](a, b), device=device)
    if name == "activations" or isinstance(name, Activations):
        settings = Activations() if isinstance(name, str) else name
        if model is None or data is None:
            raise CosetError('The method "activations" runs the model on data: give model and data.')
        first, second = as_in(model, a).mean, as_in(model, b).mean
        return Problem(sym, [], settings.scores(first, second, sym, model, data, device, progress), device)
    raise CosetError(f"There is no method {method!r}; choose from {', '.join(METHODS)}.")


def _scaled(a: Solution, b: Solution, sym: Symmetry, *settings: Any) -> Match:
    """Align as they are, and balanced; give each the nearest factors; the nearer one counts."""
    method, model, data, restarts, generator, greedy, device, progress = settings
    a, b = wide(a), wide(b)

    def match(p: Solution, q: Solution) -> Match:
        return align(
            p, q, sym, method, model, data, restarts, generator, greedy=greedy, device=device, progress=progress
        )

    to_a, to_b = balance(a.mean, sym), balance(b.mean, sym)
    plain, balanced = match(a, b), match(sym.act(to_a, a), sym.act(to_b, b))
    found: list[tuple[float, Match]] = []
    for one, element in ((plain, plain.element), (balanced, to_a.inverse() @ balanced.element @ to_b)):
        moved = sym.act(element, b)
        element = nearest_factors(a.mean, moved.mean, sym) @ element
        found.append((_distance(a.mean, sym.act(element, b).mean, sym), dataclasses.replace(one, element=element)))
    best = min(found, key=lambda pair: pair[0])[1]
    inner = Problem(sym, COSTS["weights"](a, b))
    return dataclasses.replace(
        best,
        objective=inner.objective(best.element),
        identity_objective=inner.objective(sym.identity()),
        seconds=plain.seconds + balanced.seconds,
    )


def _distance(a: State, b: State, sym: Symmetry) -> float:
    trained = [name for name, x in a.items() if x.is_floating_point() and name not in sym.buffers]
    return sum(float((a[name] - b[name].to(a[name])).square().sum(dtype=torch.float64)) for name in trained)
