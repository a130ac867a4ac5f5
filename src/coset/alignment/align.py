"""`align` and `align_many`: from solutions and a symmetry to elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Protocol, overload, runtime_checkable

import torch
from torch import nn

from coset.alignment.coordinate_ascent import Match
from coset.alignment.many import ManyMatch, joint, star
from coset.alignment.method import AlignmentTask, AlignMethod, Cost, mean_of
from coset.alignment.methods import METHODS
from coset.alignment.population import PopulationMatch, align_population
from coset.alignment.rescaling import match_with_factors
from coset.core import state as states
from coset.core.checkpoint import LazyState, check_finite
from coset.core.errors import CosetError
from coset.core.functional import resolve
from coset.core.progress import Progress
from coset.core.state import State, StateLike, check, refuse_layout, refuse_names
from coset.data import Data
from coset.solutions.as_solution import with_order
from coset.solutions.solution import Solution
from coset.symmetries.symmetry import Symmetry


def align(
    a: StateLike,
    b: StateLike,
    sym: Symmetry,
    method: str | AlignMethod = "auto",
    model: nn.Module | None = None,
    data: Data | None = None,
    restarts: int = 1,
    generator: torch.Generator | None = None,
    *,
    greedy: bool = True,
    scale: bool = False,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
) -> Match:
    """The element that brings b as near to a as it can: `sym.act(match.element, b)` is the aligned b.

    Maximises <a, g b>, or another objective, by coordinate ascent over the groups with exact assignments (Ainsworth et
    al. 2023; rossi2023 Algorithm 1). By weights, checkpoints of `coset.open_state` are read one tensor at a time, so
    that networks which do not fit in memory can be aligned; all other methods load them.

    Args:
        a: What b is brought to: a solution, a state, a module, or a checkpoint of `coset.open_state`.
        b: What is moved, of the same names and shapes.
        sym: The symmetry of their model.
        method: "weights", "wasserstein" or "kl" (of two Gaussians), "activations", "learned" or "sinkhorn" (these need
            model and data), or an `AlignMethod` with settings, such as `coset.Learned(steps=50)`. "auto" is wasserstein
            for two Gaussians and weights otherwise.
        model: The network, for methods that run it.
        data: What they run it on.
        restarts: Starts; those after the first begin at random elements, and the best end counts. Where groups meet
            only one another or themselves, one more begins at a match by sorted weights.
        generator: Order of the groups, and random starts; by default of seed 0.
        greedy: Match the groups one by one before the first start, those first of which most is known.
        scale: Also match the positive factors of units, such as ReLU's. The result is never further from a than
            without, and its objective is <a, g b>.
        device: Where to compute; by default where a lies.
        progress: Told of each `Event`: groups of the first match, sweeps, steps.

    Returns:
        The element, and what it gained.

    Raises:
        CosetError: If the two or the symmetry do not fit together, or the method lacks something.

    Example:
        >>> match = coset.align(a, b, sym)
        >>> bool(coset.wasserstein(a, sym.act(match.element, b)) < coset.wasserstein(a, b))
        True
    """
    if restarts < 1:
        raise CosetError(f"There are {restarts} starts to climb from; give at least 1.")
    task = _task(_operand(a), _operand(b), sym, device)
    task = replace(
        task, model=model, data=data, restarts=restarts, generator=generator, greedy=greedy, progress=progress
    )
    aligner = as_method(method)
    return match_with_factors(aligner, task) if scale else aligner.match(task)


@runtime_checkable
class HasStates(Protocol):
    """A `coset.Population`, as far as this room knows it."""

    @property
    def states(self) -> State:
        """Its networks, with a leading dimension."""


@overload
def align_many(
    solutions: State | HasStates,
    sym: Symmetry,
    reference: StateLike | int | None = None,
    method: str | AlignMethod = "auto",
    model: nn.Module | None = None,
    data: Data | None = None,
    generator: torch.Generator | None = None,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
) -> PopulationMatch: ...


@overload
def align_many(
    solutions: Sequence[StateLike],
    sym: Symmetry,
    reference: StateLike | int | None = None,
    method: str | AlignMethod = "auto",
    model: nn.Module | None = None,
    data: Data | None = None,
    generator: torch.Generator | None = None,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
) -> ManyMatch: ...


def align_many(
    solutions: Sequence[StateLike] | State | HasStates,
    sym: Symmetry,
    reference: StateLike | int | None = None,
    method: str | AlignMethod = "auto",
    model: nn.Module | None = None,
    data: Data | None = None,
    generator: torch.Generator | None = None,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
) -> ManyMatch | PopulationMatch:
    """One element a solution, to a common frame, so that cycles close exactly.

    With a reference each is aligned to it. Without one, all are aligned jointly: each to the barycenter of the others,
    until the sum over all pairs stops rising; the first stays where it is.

    Args:
        solutions: Solutions, states or modules; or a `Population`, or a state with one leading dimension, whose members
            are aligned in batches.
        sym: The symmetry of their model.
        reference: One that all are aligned to, or the number of one of them; of a population the first, if not given.
        method: As in `align`. Joint alignment needs an objective that is the same both ways, as of "weights" and
            "wasserstein"; a population is aligned by weights.
        model: The network, for methods that run it.
        data: What they run it on.
        generator: Order of the groups and of the solutions; by default of seed 0.
        device: Where to compute; by default where the first lies.
        progress: Told of each `Event`: solutions, and rounds over all of them.

    Returns:
        A `ManyMatch`; of a population a `PopulationMatch`.

    Raises:
        CosetError: If there are none, they do not fit together, or the method cannot do it.

    Example:
        >>> match = coset.align_many([a, b], sym, reference=0)
        >>> len(match.elements), match.objective > match.identity_objective
        (2, True)
    """
    if isinstance(solutions, HasStates):
        solutions = solutions.states
    if isinstance(solutions, Mapping):
        return _align_population(solutions, sym, reference, method, device)
    if not len(solutions):
        raise CosetError("There are no solutions to align.")
    aligner = as_method(method)
    if reference is None:
        every = [with_order(one) for one in solutions]
        tasks = [_task(every[0], one, sym, device) for one in every]
        if not (isinstance(aligner, Cost) and aligner.symmetric):
            raise CosetError(
                f"Solutions are aligned jointly by {', '.join(_joint_methods())}; give a reference for other methods."
            )
        task = replace(tasks[0], model=model, data=data, generator=generator, progress=progress)
        return joint(every, aligner, task)
    operands = [_operand(one) for one in solutions]
    target = operands[_index(reference, len(operands))] if isinstance(reference, int) else _operand(reference)
    tasks = [_task(target, one, sym, device) for one in operands]
    settings = replace(tasks[0], model=model, data=data, generator=generator)
    return star([replace(settings, second=task.second) for task in tasks], aligner, progress)


def as_method(method: str | AlignMethod) -> AlignMethod:
    """The method of a name with its default settings, and one with settings as it is."""
    if isinstance(method, AlignMethod):
        return method
    if not isinstance(method, str) or method not in METHODS:
        raise CosetError(f"There is no method {method!r}; choose from {', '.join(METHODS)}.")
    file, name = METHODS[method].place.split(":")
    instance: AlignMethod = getattr(import_module(f"coset.alignment.{file}"), name)()
    return instance


def _joint_methods() -> list[str]:
    methods = {name: as_method(name) for name in METHODS}
    return [name for name, method in methods.items() if isinstance(method, Cost) and method.symmetric]


def _operand(x: StateLike) -> Solution | LazyState:
    """A solution whose units have an order; a checkpoint on disk stays there."""
    return x if isinstance(x, LazyState) else with_order(x)


def _task(
    first: Solution | LazyState, second: Solution | LazyState, sym: Symmetry, device: str | torch.device | None
) -> AlignmentTask:
    """Two solutions to align; refused if they do not fit together, or not to the symmetry."""
    a, b = mean_of(first), mean_of(second)
    if isinstance(a, LazyState) or isinstance(b, LazyState):
        _check_one_by_one(a, b, sym)
    else:
        check(b, like=a, where="the second solution")
    refuse_names(sym.missing(a), [], _place(a, "the first solution"))
    for name, axes in sym.axes.items():
        expected = tuple(axis.size for axis in axes)
        if name in a and (shape := _shape(a, name)) != expected:
            raise CosetError(f"Tensor '{name}' has shape {shape}, the symmetry expects {expected}.")
    return AlignmentTask(first, second, sym, device=resolve(device, {} if isinstance(a, LazyState) else a))


def _check_one_by_one(a: State, b: State, sym: Symmetry) -> None:
    """What `check` looks for, with no more than two tensors in memory; of tied names one is enough."""
    first, second = _place(a, "the first solution"), _place(b, "the second solution")
    owners = [{sym.tied.get(name, name) for name in state} for state in (a, b)]
    missing = [name for name in a if sym.tied.get(name, name) not in owners[1]]
    refuse_names(missing, [name for name in b if sym.tied.get(name, name) not in owners[0]], second)
    for name in a:
        x = a[name]
        check_finite({name: x}, [name], first)
        if name in b:
            y = b[name]
            refuse_layout(name, y, x, second)
            check_finite({name: y}, [name], second)
    check_finite(b, [name for name in b if name not in a], second)


def _place(state: State, otherwise: str) -> str:
    """What messages call a state: the file that it is read from, if it is."""
    return str(state.path) if isinstance(state, LazyState) and state.path is not None else otherwise


def _shape(state: State, name: str) -> tuple[int, ...]:
    return tuple(state.shape(name) if isinstance(state, LazyState) else state[name].shape)


def _index(number: int, n: int) -> int:
    if not -n <= number < n:
        raise CosetError(f"There is no solution {number} among {n} to refer to.")
    return number


def _align_population(
    population: State,
    sym: Symmetry,
    reference: StateLike | int | None,
    method: str | AlignMethod,
    device: str | torch.device | None,
) -> PopulationMatch:
    name = method if isinstance(method, str) else method.name
    if name not in ("auto", "weights"):
        raise CosetError(f"A population is aligned by weights, not by {method!r}.")
    if not population:
        raise CosetError("There are no solutions to align.")
    member = _member(population, reference)
    check(member, like={name: x[0] for name, x in population.items()}, where="the reference")
    where = resolve(device, population)
    return align_population(states.to(population, where), states.to(member, where), sym)


def _member(population: State, reference: StateLike | int | None) -> State:
    if reference is None or isinstance(reference, int):
        k = _index(reference or 0, len(next(iter(population.values()))))
        return {name: x[k] for name, x in population.items()}
    mean = with_order(reference).mean
    return {name: x.to(population[name].dtype) if name in population else x for name, x in mean.items()}
