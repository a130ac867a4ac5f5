"""`align`, `align_many` and `merge`: from solutions and a symmetry to elements and averages."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from coset.alignment.balance import balance
from coset.alignment.costs import COSTS, natural
from coset.alignment.driver import Match, Progress, maximise
from coset.alignment.many import ManyMatch, joint, star
from coset.alignment.methods import Activations
from coset.alignment.population import PopulationMatch, align_population
from coset.alignment.problem import Problem
from coset.alignment.sinkhorn import Sinkhorn
from coset.checks import State, check, refuse_names
from coset.data import Data
from coset.errors import CosetError
from coset.solutions import Solution, as_solution
from coset.symmetries import Symmetry

Method = str | Activations | Sinkhorn
METHODS = ("auto", *COSTS, "activations", "sinkhorn")


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
        "weights", "wasserstein", "kl" (see `coset.alignment.costs`), "activations" or "sinkhorn", or an `Activations`
        or `Sinkhorn` with settings. "auto" is wasserstein for two Gaussians and weights otherwise. The last two need
        ``model`` and ``data``.
    restarts, greedy
        where coordinate ascent starts: see `maximise`
    scale
        also match the positive factors of units, such as ReLU's, in closed form (see `balance`)
    device
        where to compute; by default where a lies
    """
    first, second = _matching(as_solution(a), as_solution(b), sym)
    if scale:
        return _scaled(first, second, sym, method, model, data, restarts, generator, greedy, device, progress)
    where = torch.device(device) if device is not None else _device(first.mean)
    if method == "sinkhorn" or isinstance(method, Sinkhorn):
        settings = Sinkhorn() if isinstance(method, str) else method
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
        return align_population(solutions, _member(solutions, reference), sym)
    given = [as_solution(one) for one in solutions]
    if not given:
        raise CosetError("There are no solutions to align.")
    for one in given[1:]:
        _matching(given[0], one, sym)
    where = torch.device(device) if device is not None else _device(given[0].mean)

    def problem(p: Solution, q: Solution) -> Problem:
        return _problem(p, q, sym, method, model, data, where, lambda text: None)

    if reference is None:
        if not isinstance(method, str) or method not in ("auto", *COSTS):
            raise CosetError(
                f"Solutions are aligned jointly by {', '.join(COSTS)}; give a reference for other methods."
            )
        return joint(given, sym, problem, generator, progress)
    target = given[_index(reference, len(given))] if isinstance(reference, int) else as_solution(reference)

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
    return as_solution(reference).mean


def _matching(a: Solution, b: Solution, sym: Symmetry) -> tuple[Solution, Solution]:
    """Refuse solutions that do not fit together, or not to the symmetry."""
    check(b.mean, like=a.mean, where="the second solution")
    refuse_names(sym.missing(a.mean), [], "the first solution")
    for name, axes in sym.axes.items():
        expected = tuple(axis.size for axis in axes)
        if name in a.mean and tuple(a.mean[name].shape) != expected:
            raise CosetError(f"Tensor '{name}' has shape {tuple(a.mean[name].shape)}, the symmetry expects {expected}.")
    return a, b


def _device(state: State) -> torch.device:
    return next((x.device for x in state.values()), torch.device("cpu"))


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
        return Problem(sym, [], settings.scores(a.mean, b.mean, sym, model, data, device, progress), device)
    raise CosetError(f"There is no method {method!r}; choose from {', '.join(METHODS)}.")


def _scaled(a: Solution, b: Solution, sym: Symmetry, *settings: Any) -> Match:
    """Align balanced networks, then give the aligned b the scales of a: g = r_a^-1 P r_b."""
    to_a, to_b = balance(a.mean, sym), balance(b.mean, sym)
    method, model, data, restarts, generator, greedy, device, progress = settings
    found = align(
        a.push(sym, to_a), b.push(sym, to_b), sym, method, model, data, restarts, generator,
        greedy=greedy, device=device, progress=progress,
    )  # fmt: skip
    return dataclasses.replace(found, element=to_a.inverse() @ found.element @ to_b)
