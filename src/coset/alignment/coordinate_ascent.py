"""Coordinate ascent over groups (git re-basin, Ainsworth et al. 2023; rossi2023 Algorithm 1), any objective.

One group after the other takes its best permutation while the others stay, until nothing changes. Groups whose
neighbours did not move since their own turn are passed over. Each kind of node proposes a move, which is made if it
pays.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from coset.alignment.matrix_blocks import with_permutations
from coset.alignment.nodes import MatrixNode, Node, PlainNode, after, nodes_of
from coset.alignment.objective import Objective
from coset.alignment.sorted_match import match_by_sorted_weights
from coset.core.progress import Event, Progress
from coset.core.show import Shown, Table
from coset.symmetries.group import Element

logger = logging.getLogger(__name__)

# A gain must stand above the rounding of float32 products; that of matrices is exact, and says when it is none.
ROUNDING = 1e-7
LARGEST_SWEEPS = 200
# Bytes of score matrices that stay in memory between turns.
SCORE_BYTES = 2**30


@dataclass(frozen=True, repr=False)
class Match(Shown):
    """An alignment of b to a, as `coset.align` returns it.

    Args:
        element: `sym.act(element, b)` is the aligned b.
        objective: What was maximised, at the element.
        identity_objective: The same, without moving anything.
        sweeps: Passes over the groups, of all starts together; of a learned match its steps.
        seconds: The time it took.
        objectives: The value that each start reached: their spread says how rugged the problem is.
        history: What the best start had gained after each sweep, rising; of a learned match the relaxed objective at
            each step.

    Example:
        >>> match = coset.align(a, b, sym)
        >>> match.objective > match.identity_objective
        True
    """

    element: Element
    objective: float
    identity_objective: float
    sweeps: int
    seconds: float
    objectives: tuple[float, ...] = ()
    history: tuple[float, ...] = ()

    def _shown(self) -> Table:
        rows: list[tuple[object, ...]] = [
            ("objective before", self.identity_objective),
            ("objective after", self.objective),
            ("groups that move", moving_groups(self.element)),
            ("sweeps", self.sweeps),
            ("seconds", round(self.seconds, 3)),
        ]
        if len(self.objectives) > 1:
            rows.append(("starts", spread(self.objectives)))
        return Table("Match", rows)


def spread(objectives: Sequence[float]) -> str:
    """How many starts there were, and between which objectives they ended."""
    return f"{len(objectives)}, {min(objectives):.6g} to {max(objectives):.6g}"


def moving_groups(element: Element) -> str:
    """How many of the groups with a permutation are not left in their order."""
    still = sum(bool((p == torch.arange(p.shape[-1], device=p.device)).all()) for p in element.permutations.values())
    return f"{len(element.permutations) - still} of {sum(s.movable for s in element.sets.values())}"


class _Attempt(NamedTuple):
    """Where a start ended."""

    value: float
    element: Element
    history: list[float]


def maximise(
    objective: Objective,
    restarts: int = 1,
    generator: torch.Generator | None = None,
    greedy: bool = True,
    progress: Progress | None = None,
    judge: Callable[[Element], float] | None = None,
) -> Match:
    """Climb from the identity, and from ``restarts - 1`` random elements; the best end counts.

    greedy: before the first sweep of the first start, match the groups one by one, those first whose tensors lead
    to fixed axes or to groups matched already. Where that leaves a group without a sure match, one more start is
    made by `match_by_sorted_weights`.
    judge: what the match says of the ends of starts, if that is not the objective.
    """
    start = time.perf_counter()
    generator = generator if generator is not None else torch.Generator().manual_seed(0)
    identity = objective.sym.identity()
    climb = _Climb(objective, nodes_of(objective), generator, progress)
    attempts: list[_Attempt] = []
    everywhere = {node.name for node in climb.nodes}

    def attempt(element: Element, due: set[str]) -> None:
        element, history = climb.sweep(element, due)
        attempts.append(_Attempt(objective.value(element), element, history))

    order = turns(climb.nodes) if greedy else []
    attempt(*climb.greedy(identity, order) if greedy else (identity, everywhere))
    for _ in range(restarts - 1):
        attempt(objective.sym.random(generator), everywhere)
    if not all(turn.sure for turn in order):
        if objective.matrices:
            # What permutations alone come to is a start, too, and matrices make it no worse.
            plain = replace(objective, sym=objective.sym.without_matrices())
            attempt(maximise(plain, 1, generator, greedy).element, everywhere)
        else:
            attempt(match_by_sorted_weights(objective), everywhere)
    value, element, history = max(attempts, key=lambda attempt: attempt.value)
    at_identity = objective.value(identity)
    if value < at_identity:
        value, element = at_identity, identity
    if judge is not None:
        attempts = [attempt._replace(value=judge(attempt.element)) for attempt in attempts]
        value = judge(element)
    return Match(
        with_permutations(element),
        value,
        at_identity,
        sum(len(attempt.history) for attempt in attempts),
        time.perf_counter() - start,
        objectives=tuple(attempt.value for attempt in attempts),
        history=tuple(history),
    )


class Turn(NamedTuple):
    """A group's turn in the first match, which depends on the structure alone.

    trusted: the groups matched before it.
    some, all: whether some, or all, of its blocks hold nothing else unmatched.
    sure: whether weights, of which a unit has many, are among those.
    """

    node: Node
    trusted: set[str]
    some: bool
    all: bool
    sure: bool


def turns(nodes: Sequence[Node]) -> list[Turn]:
    """The order of the first match: next comes the group of which most lies in blocks that lead to matched groups."""
    rest, trusted, order = list(nodes), set[str](), list[Turn]()
    while rest:
        node = max(rest, key=lambda node: node.trusted_share(trusted))
        rest.remove(node)
        trusts = [node.trusts(row, trusted) for row in node.rows]
        weights = [trust for row, trust in zip(node.rows, trusts, strict=True) if node.compares(row)]
        # Units that meet themselves are compared in an order that is not known yet.
        order.append(Turn(node, {*trusted}, any(trusts), all(trusts), node.linear and (any(weights) or not weights)))
        if any(trusts) or node.units & node.objective.linear.keys():
            trusted |= node.units
    return order


class _Climb:
    """Coordinate ascent from any element; score matrices stay from one start to the next."""

    def __init__(
        self, objective: Objective, nodes: list[Node], generator: torch.Generator, progress: Progress | None
    ) -> None:
        self.objective, self.nodes, self.generator, self.progress = objective, nodes, generator, progress

    def greedy(self, element: Element, order: Sequence[Turn]) -> tuple[Element, set[str]]:
        """Match each group by the blocks that hold nothing else unmatched; and the groups to look at again."""
        due: set[str] = set()
        for done, turn in enumerate(order, 1):
            node = turn.node
            if not (turn.all and node.linear):
                due.add(node.name)
            if turn.some or node.units & self.objective.linear.keys():
                element = after(node.propose(element, None if turn.all else turn.trusted).delta, element)
            self._tell(done, len(order), "group", f"first match of {node.name}: {done} of {len(order)} groups")
        return element, due

    def sweep(self, element: Element, due: set[str]) -> tuple[Element, list[float]]:
        """Sweeps in random order over the groups that are due, until none is; the gain up to each."""
        due = set(due)
        value = 0.0
        history: list[float] = []
        while due and len(history) < LARGEST_SWEEPS:
            moves = 0
            for k in torch.randperm(len(self.nodes), generator=self.generator, device=self.generator.device).tolist():
                node = self.nodes[k]
                if node.name not in due:
                    continue
                due.discard(node.name)
                candidate, gain = self._candidate(node, element)
                if gain <= (0.0 if isinstance(node, MatrixNode) else ROUNDING * abs(value)):
                    continue
                element, value, moves = candidate, value + gain, moves + 1
                due |= {other.name for other in self.nodes if other.neighbours & node.units} - {node.name}
                if not node.linear:
                    due.add(node.name)
            self._forget()
            history.append(value)
            text = f"sweep {len(history)}: {moves} of {len(self.nodes)} groups moved, objective up by {value:.6g}"
            self._tell(len(history), None, "sweep", text)
        if due:
            logger.warning("alignment was stopped after %d sweeps, while groups still moved", LARGEST_SWEEPS)
        return element, history

    def _candidate(self, node: Node, element: Element) -> tuple[Element, float]:
        """Where the best move of a node leads, and what it gains."""
        move = node.propose(element, None)
        candidate = after(move.delta, element)
        if move.gain > 0 and not move.exact:
            before = self.objective.value(element, node.units)
            return candidate, self.objective.value(candidate, node.units) - before
        return candidate, move.gain

    def _forget(self) -> None:
        """Keep score matrices up to a limit, the small ones first."""
        total = 0
        plain = [node for node in self.nodes if isinstance(node, PlainNode)]
        for node in sorted(plain, key=lambda node: node.group.size):
            total += node.group.size**2 * 4
            if total > SCORE_BYTES:
                node.forget()

    def _tell(self, done: int, total: int | None, unit: str, text: str) -> None:
        if self.progress is not None:
            self.progress(Event(done, total, unit, text))
