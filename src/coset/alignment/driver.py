"""Coordinate ascent over groups (git re-basin, Ainsworth et al. 2023; rossi2023 Algorithm 1), any objective.

One group after the other takes its best permutation while the others stay, until nothing changes. Groups whose
neighbours did not move since their own turn are passed over.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from coset.alignment.blocks import Node, PlainNode, nodes
from coset.alignment.objective import Problem
from coset.symmetries.group import Element

logger = logging.getLogger(__name__)

# A gain must stand above the rounding of float32 products.
ROUNDING = 1e-7
LARGEST_SWEEPS = 200
# Bytes of score matrices that are kept between turns.
KEPT = 2**30

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Match:
    """An alignment of B to A.

    element
        act(element, B) is the aligned B
    objective
        what was maximised, at the element; identity_objective: without moving anything
    sweeps, seconds
        the work, all restarts together
    objectives
        the value that each restart reached: their spread says how rugged the problem is
    history
        what the best start had gained after each sweep, rising; for Sinkhorn the relaxed objective at each step
    """

    element: Element
    objective: float
    identity_objective: float
    sweeps: int
    seconds: float
    objectives: tuple[float, ...] = ()
    history: tuple[float, ...] = field(default=(), repr=False)


def maximise(
    problem: Problem,
    restarts: int = 1,
    generator: torch.Generator | None = None,
    greedy: bool = True,
    progress: Progress = lambda text: None,
) -> Match:
    """Climb from the identity, and from ``restarts - 1`` random elements; the best end counts.

    greedy: before the first sweep of the first start, match the groups one by one, those first whose tensors lead
    to fixed axes or to groups matched already.
    """
    start = time.perf_counter()
    generator = generator if generator is not None else torch.Generator().manual_seed(0)
    identity = problem.sym.identity()
    made = nodes(problem)
    ends: list[tuple[float, Element, list[float]]] = []
    sweeps = 0
    for attempt in range(max(1, restarts)):
        element = identity if attempt == 0 else problem.sym.random(generator)
        due = {node.name for node in made}
        if attempt == 0 and greedy:
            element, due = _greedy(problem, made, element, progress)
        element, history = _climb(problem, made, element, due, generator, progress)
        sweeps += len(history)
        ends.append((problem.objective(element), element, history))
    objective, element, history = max(ends, key=lambda end: end[0])
    at_identity = problem.objective(identity)
    if objective < at_identity:
        objective, element = at_identity, identity
    return Match(
        element,
        objective,
        at_identity,
        sweeps,
        time.perf_counter() - start,
        tuple(end[0] for end in ends),
        tuple(history),
    )


def _climb(
    problem: Problem, made: list[Node], element: Element, due: set[str], generator: torch.Generator, progress: Progress
) -> tuple[Element, list[float]]:
    """Sweeps in random order over the groups that are due, until none is; the gain up to each."""
    due = set(due)
    value = 0.0
    history: list[float] = []
    while due and len(history) < LARGEST_SWEEPS:
        moved = 0
        for k in torch.randperm(len(made), generator=generator, device=generator.device).tolist():
            node = made[k]
            if node.name not in due:
                continue
            due.discard(node.name)
            move = node.propose(element, None)
            candidate = _after(move.delta, element)
            gain = move.gain
            if gain > 0 and not move.exact:
                gain = problem.objective(candidate, node.units) - problem.objective(element, node.units)
            if gain <= ROUNDING * abs(value):
                continue
            element, value, moved = candidate, value + gain, moved + 1
            due |= {other.name for other in made if other.neighbours & node.units} - {node.name}
            if not node.linear:
                due.add(node.name)
        _forget(made)
        history.append(value)
        progress(f"sweep {len(history)}: {moved} of {len(made)} groups moved, objective up by {value:.6g}")
    if due:
        logger.warning("alignment was stopped after %d sweeps, while groups still moved", LARGEST_SWEEPS)
    return element, history


def _greedy(problem: Problem, made: list[Node], element: Element, progress: Progress) -> tuple[Element, set[str]]:
    """Match each group by the blocks that hold nothing else that is not matched yet; and those to look at again."""
    left = list(made)
    due: set[str] = set()
    trusted: set[str] = set()
    while left:
        node = max(left, key=lambda node: node.trusted_share(trusted))
        left.remove(node)
        trusts = [node.trusts(row, trusted) for row in node.rows]
        if not (all(trusts) and node.linear):
            due.add(node.name)
        if any(trusts) or node.units & problem.linear.keys():
            element = _after(node.propose(element, None if all(trusts) else trusted).delta, element)
            trusted |= node.units
        progress(f"first match of {node.name}: {len(made) - len(left)} of {len(made)} groups")
    return element, due


def _after(delta: Element, element: Element) -> Element:
    """delta @ element, at the cost of the sets that delta moves."""
    moved = set(delta.permutations)
    touched = {name for name, known in element.sets.items() if name in moved or moved & set(known.over)}
    part = Element(element.sets, {name: p for name, p in element.permutations.items() if name in touched})
    both = delta @ part
    return Element(element.sets, {**element.permutations, **both.permutations}, element.scales, element.units)


def _forget(made: list[Node]) -> None:
    """Keep score matrices up to a limit, the small ones first."""
    total = 0
    plain = [node for node in made if isinstance(node, PlainNode)]
    for node in sorted(plain, key=lambda node: node.known.size):
        total += node.known.size**2 * 4
        if total > KEPT:
            node.forget()
