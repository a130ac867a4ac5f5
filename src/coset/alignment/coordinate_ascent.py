"""Coordinate ascent over groups (git re-basin, Ainsworth et al. 2023; rossi2023 Algorithm 1), any objective.

One group after the other takes its best permutation while the others stay, until nothing changes. Groups whose
neighbours did not move since their own turn are passed over. Each kind of node proposes a move, which is made if it
pays.
"""

from __future__ import annotations

import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from coset.alignment.objective import Objective, gram, moved_scores
from coset.alignment.sorted_match import match_by_sorted_weights
from coset.assignment import Duals, solve, solve_many
from coset.core.progress import Event, Progress
from coset.core.show import Shown, Table
from coset.symmetries.group import Block, Element, Label, blocks, labels

logger = logging.getLogger(__name__)

# A gain must stand above the rounding of float32 products.
ROUNDING = 1e-7
LARGEST_SWEEPS = 200
# Bytes of score matrices that stay in memory between turns.
SCORE_BYTES = 2**30
# Beyond this many scores at once, the copies of a set are not compared pair by pair with their inner units.
LARGEST_JOINT = 2**28
# A score matrix that was updated this many times is computed anew, so that rounding does not add up.
UPDATES = 32


@dataclass(frozen=True, repr=False)
class Match(Shown):
    """An alignment of b to a, as `coset.align` returns it.

    Args:
        element: `sym.act(element, b)` is the aligned b.
        objective: What was maximised, at the element.
        identity_objective: The same, without moving anything.
        sweeps: Passes over the groups, of all starts together; of Sinkhorn its steps.
        seconds: The time it took.
        objectives: The value that each start reached: their spread says how rugged the problem is.
        history: What the best start had gained after each sweep, rising; of Sinkhorn the relaxed objective at each
            step.

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
) -> Match:
    """Climb from the identity, and from ``restarts - 1`` random elements; the best end counts.

    greedy: before the first sweep of the first start, match the groups one by one, those first whose tensors lead
    to fixed axes or to groups matched already. Where that leaves a group without a sure match, one more start is
    made by `match_by_sorted_weights`.
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
        attempt(match_by_sorted_weights(objective), everywhere)
    value, element, history = max(attempts, key=lambda attempt: attempt.value)
    at_identity = objective.value(identity)
    if value < at_identity:
        value, element = at_identity, identity
    return Match(
        element,
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
                if gain <= ROUNDING * abs(value):
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


def after(delta: Element, element: Element) -> Element:
    """delta @ element, at the cost of the sets that delta moves."""
    touched = {
        name
        for name, group in element.sets.items()
        if name in delta.permutations or delta.permutations.keys() & set(group.over)
    }
    part = Element(element.sets, {name: p for name, p in element.permutations.items() if name in touched})
    both = delta @ part
    return Element(element.sets, {**element.permutations, **both.permutations}, element.scales, element.units)


@dataclass(frozen=True)
class Move:
    """An element to apply to the moved B, and what it adds to the objective, up to rounding if ``exact``."""

    delta: Element
    gain: float
    exact: bool


class Node(ABC):
    """Some units, with the tensors that say which permutation of them is best."""

    def __init__(self, objective: Objective, name: str) -> None:
        self.objective = objective
        self.name = name
        self.group = objective.sym.sets[name]
        self.units = {name}
        self.tensors = objective.tensors({name})
        rows = [row for tensor in self.tensors for row in labels(objective.sym.axes[tensor])]
        self.rows = [row for row in rows if any(label.units == name for label in row)]
        movable = {units for units, own in objective.sym.sets.items() if own.movable}
        self.neighbours = {label.units for row in self.rows for label in row if label.units in movable} - {name}
        # Units that meet themselves in one block enter quadratically.
        self.linear = all(sum(label.units == name for label in row) == 1 for row in self.rows)

    @abstractmethod
    def propose(self, element: Element, trusted: set[str] | None) -> Move:
        """The best move from here; only blocks whose other units are all ``trusted`` count, if that is given."""

    def trusts(self, row: tuple[Label, ...], trusted: set[str] | None) -> bool:
        if trusted is None:
            return True
        return all(not label.units or label.units in self.units or label.units in trusted for label in row)

    def compares(self, row: tuple[Label, ...]) -> bool:
        """Whether a unit has several entries in a block, as in weights, and not one, as in biases."""
        return any(label.units not in self.units and label.units not in self.group.over for label in row)

    def trusted_share(self, trusted: set[str]) -> float:
        """How much of what is known about these units lies in trusted blocks."""
        sizes = [math.prod(label.size for label in row) for row in self.rows]
        share = sum(size for size, row in zip(sizes, self.rows, strict=True) if self.trusts(row, trusted))
        return share / max(1, sum(sizes))

    def _delta(self, permutations: dict[str, Tensor]) -> Element:
        return Element(self.objective.sym.sets, permutations)


class PlainNode(Node):
    """Units that lie over no others. Scores are kept, and follow the neighbours' permutations.

    S[i, j] = sum over blocks of <a_i, b_j> with B's other units moved, its own not. When a neighbour w changes at the
    positions K only, S gains a[:, K] (b[:, p(K)] - b[:, p_old(K)])^T, which costs |K| / n_w of making it anew.
    """

    def __init__(self, objective: Objective, name: str) -> None:
        super().__init__(objective, name)
        self.scores: Tensor | None = None
        self.permutations: dict[str, Tensor] = {}  # of the neighbours, that the scores are for
        self.duals: Duals | None = None
        self.updates = 0

    def propose(self, element: Element, trusted: set[str] | None) -> Move:
        now = {units: element[units] for units in self.neighbours}
        if trusted is not None:
            scores = self._make(now, trusted)
            best = solve(scores)
        else:
            self._follow(now)
            assert self.scores is not None
            scores = self.scores
            best = solve(scores, warm=self.duals)
            self.duals = best.duals
        p = element[self.name]
        before = float(scores.gather(1, p.to(scores.device).unsqueeze(1)).double().sum())
        inverse = torch.empty_like(p).scatter_(0, p, torch.arange(len(p)))
        return Move(self._delta({self.name: inverse[best.permutation.cpu()]}), best.value - before, trusted is None)

    def forget(self) -> None:
        """Drop what is kept, to save memory; the next proposal makes it anew."""
        self.scores = None

    def _follow(self, now: dict[str, Tensor]) -> None:
        """Bring the scores up to date with the neighbours' permutations."""
        if self.scores is None or self.updates >= UPDATES:
            self.scores, self.updates = self._make(now, None), 0
        else:
            changed = {units for units, p in now.items() if not torch.equal(p, self.permutations[units])}
            for tensor in self.tensors if changed else ():
                self._update(tensor, now, changed)
            self.updates += bool(changed)
        self.permutations = now

    def _make(self, now: dict[str, Tensor], trusted: set[str] | None) -> Tensor:
        n, device = self.group.size, self.objective.device
        total: Tensor | None = self.objective.linear.get(self.name)
        total = None if total is None else total.to(device).clone()
        for tensor in self.tensors:
            for a, b in self._pairs(tensor):
                if (d := a.where(self.name)) and self.trusts(a.labels, trusted):
                    scores = gram(a.values, _gathered(b, now), (), d)[0]
                    total = scores if total is None else total.add_(scores)
        return total if total is not None else torch.zeros(n, n, device=device)

    def _update(self, tensor: str, now: dict[str, Tensor], changed: set[str]) -> None:
        if not any(label.units in changed for row in labels(self.objective.sym.axes[tensor]) for label in row):
            return
        assert self.scores is not None
        for a, b in self._pairs(tensor):
            d, axes = a.where(self.name), [e for e, label in enumerate(a.labels) if label.units in changed]
            if not d or not axes:
                continue
            left, new, old = a, now, self.permutations
            if len(axes) == 1:
                units, e = a.labels[axes[0]].units, axes[0]
                at = (now[units] != self.permutations[units]).nonzero().flatten()
                if 2 * len(at) < len(now[units]):
                    left = Block(a.values.index_select(e, at.to(a.values.device)), a.labels)
                    new, old = {**now, units: now[units][at]}, {**old, units: self.permutations[units][at]}
            # In 16 bits the difference would be rounded, and 8-bit floats have none.
            old_values, new_values = (_gathered(b, p) for p in (old, new))
            dtype = torch.float64 if b.values.dtype == torch.float64 else torch.float32
            self.scores.add_(gram(left.values, new_values.to(dtype) - old_values.to(dtype), (), d)[0])

    def _pairs(self, tensor: str) -> list[tuple[Block, Block]]:
        axes = self.objective.sym.axes[tensor]
        return [
            pair for a, b in self.objective.terms(tensor) for pair in zip(blocks(a, axes), blocks(b, axes), strict=True)
        ]


def _gathered(block: Block, permutations: dict[str, Tensor]) -> Tensor:
    """The block with its units moved; every set in `permutations` is over no other."""
    values = block.values
    for e, label in enumerate(block.labels):
        if label.units in permutations:
            values = values.index_select(e, permutations[label.units].to(values.device))
    return values


class FibredNode(Node):
    """Units with an order of their own in each copy, or that meet themselves: scores against the moved B."""

    def propose(self, element: Element, trusted: set[str] | None) -> Move:
        n, copies = self.group.size, self.objective.sym.copies(self.name)
        scores = torch.zeros(copies, n, n, device=self.objective.device)
        for tensor in self.tensors:
            for a, b in self.objective.blocks(tensor, element):
                for d in a.where(self.name) if self.trusts(a.labels, trusted) else ():
                    scores += gram(a.values, b.values, a.bases(d, self.group), [d])
        if self.name in self.objective.linear:
            scores += moved_scores(element, self.name, self.objective.linear[self.name].to(scores))
        best = solve_many(scores)
        gain = float(best.value.sum()) - float(scores.diagonal(dim1=1, dim2=2).double().sum())
        p = best.permutation.cpu()
        return Move(self._delta({self.name: p if self.group.over else p[0]}), gain, self.linear and trusted is None)


class JointNode(Node):
    """Units, such as heads, with all units that lie over them.

    For every pair of A's unit x and B's unit y, the best order of the inner units is solved; its value V[x, y] then
    decides which y goes to x (a wreath product, solved exactly where the inner sets do not meet in one block).
    """

    def __init__(self, objective: Objective, name: str) -> None:
        super().__init__(objective, name)
        fibres = [inner for inner in objective.sym.sets.values() if inner.movable and name in inner.over]
        self.fibres = {fibre.name: fibre for fibre in fibres}
        self.units |= self.fibres.keys()
        self.neighbours -= self.units
        together = [sum(label.units in self.units - {name} for label in row) for row in self.rows]
        self.linear = self.linear and all(count < 2 for count in together)

    def propose(self, element: Element, trusted: set[str] | None) -> Move:
        heads = self.group.size
        values = torch.zeros(heads, heads, dtype=torch.float64)
        scores: dict[str, Tensor] = {}
        for name, matrix in self.objective.linear.items():
            if name == self.name:
                values += moved_scores(element, name, matrix).double().cpu()
            elif name in self.fibres and self.fibres[name].over == (self.name,):
                scores[name] = _all_pairs(element, name, self.name, matrix).to(self.objective.device)[None]
        for tensor in self.tensors:
            for a, b in self.objective.blocks(tensor, element):
                if a.where(self.name) and self.trusts(a.labels, trusted):
                    self._read(a, b, values, scores)
        before = float(values.diagonal().sum())
        orders: dict[str, Tensor] = {}
        for name, pairs in scores.items():
            copies, n = pairs.shape[0], pairs.shape[-1]
            before += float(pairs.diagonal(dim1=1, dim2=2).diagonal(dim1=1, dim2=2).double().sum())
            inner = solve_many(pairs.reshape(-1, n, n))
            values += inner.value.reshape(copies, heads, heads).sum(0)
            orders[name] = inner.permutation.cpu().reshape(copies, heads, heads, n)
        top = solve(values)
        inside = {name: self._inside(self.fibres[name].over, order, top.permutation) for name, order in orders.items()}
        delta = self._delta({self.name: top.permutation, **inside})
        return Move(delta, top.value - before, self.linear and trusted is None)

    def _read(self, a: Block, b: Block, values: Tensor, scores: dict[str, Tensor]) -> None:
        """Add a block to the scores of its largest inner set, or to those of the units themselves."""
        inside = [e for e, label in enumerate(a.labels) if label.units in self.fibres]
        e = max(inside, key=lambda e: a.values.shape[e], default=None)
        heads = self.group.size
        if e is not None:
            fibre = self.fibres[a.labels[e].units]
            d = a.base(e, self.name)
            others = [a.base(e, base) for base in fibre.over if base != self.name]
            copies = math.prod(a.values.shape[x] for x in others)
            if copies * (heads * fibre.size) ** 2 <= LARGEST_JOINT:
                pairs = gram(a.values, b.values, others, [d, e])
                pairs = pairs.reshape(copies, heads, fibre.size, heads, fibre.size).transpose(2, 3)
                scores[fibre.name] = scores[fibre.name] + pairs if fibre.name in scores else pairs
                return
        for d in a.where(self.name):
            others = a.bases(d, self.group)
            values += gram(a.values, b.values, others, [d]).sum(0).double().cpu()

    def _inside(self, over: tuple[str, ...], order: Tensor, heads: Tensor) -> Tensor:
        """[copies, n]: the order of the inner units in each copy, the copies numbered as in `over`."""
        sizes = [self.objective.sym.sets[base].size for base in over]
        rest = [size for base, size in zip(over, sizes, strict=True) if base != self.name]
        orders = order[:, torch.arange(len(heads)), heads]
        grid = orders.reshape(*rest, len(heads), -1).movedim(len(rest), over.index(self.name))
        return grid.reshape(math.prod(sizes), -1)


def _all_pairs(element: Element, name: str, base: str, scores: Tensor) -> Tensor:
    """[copies, copies, n, n] scores with B's copies and units moved."""
    p, heads = element[name].to(scores.device), element[base].to(scores.device)
    columns = scores[:, heads]
    return columns.gather(-1, p[None, :, None, :].expand(columns.shape))


def nodes_of(objective: Objective) -> list[Node]:
    """One node for each set of units that can move."""
    sets = objective.sym.sets
    bases = {base for inner in sets.values() if inner.movable for base in inner.over}
    nodes: list[Node] = []
    for group in objective.sym.groups:
        if sets[group.name].over:
            nodes.append(FibredNode(objective, group.name))
        elif group.name in bases:
            nodes.append(JointNode(objective, group.name))
        else:
            plain = PlainNode(objective, group.name)
            simple = plain.linear and not any(sets[units].over for units in plain.neighbours)
            nodes.append(plain if simple else FibredNode(objective, group.name))
    return [node for node in nodes if node.tensors or node.units & objective.linear.keys()]
