"""One step of coordinate ascent: the best permutation of some units while all others stay.

Each kind of node proposes a move; the driver makes it, if it pays.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from coset.alignment.objective import Problem, gram, moved_scores
from coset.assignment import Duals, solve, solve_many
from coset.symmetries.group import Block, Element, Label, blocks, labels

# Beyond this many scores at once, the copies of a set are not compared pair by pair with their inner units.
LARGEST_JOINT = 2**28
# A score matrix that was updated this many times is made anew, so that rounding does not add up.
UPDATES = 32


@dataclass(frozen=True)
class Move:
    """An element to apply to the moved B, and what it adds to the objective, up to rounding if ``exact``."""

    delta: Element
    gain: float
    exact: bool


class Node(ABC):
    """Some units, with the tensors that say which permutation of them is best."""

    def __init__(self, problem: Problem, name: str) -> None:
        self.problem = problem
        self.name = name
        self.known = problem.sym.sets[name]
        self.units = {name}
        self.tensors = problem.tensors({name})
        rows = [row for tensor in self.tensors for row in labels(problem.sym.axes[tensor])]
        self.rows = [row for row in rows if any(label.units == name for label in row)]
        movable = {units for units, known in problem.sym.sets.items() if known.movable}
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

    def trusted_share(self, trusted: set[str]) -> float:
        """How much of what is known about these units lies in trusted blocks."""
        sizes = [math.prod(label.size for label in row) for row in self.rows]
        known = [size for size, row in zip(sizes, self.rows, strict=True) if self.trusts(row, trusted)]
        return sum(known) / max(1, sum(sizes))

    def _delta(self, permutations: dict[str, Tensor]) -> Element:
        return Element(self.problem.sym.sets, permutations)


class PlainNode(Node):
    """Units that lie over no others. Scores are kept, and follow the neighbours' permutations.

    S[i, j] = sum over blocks of <a_i, b_j> with B's other units moved, its own not. When a neighbour w changes at the
    positions K only, S gains a[:, K] (b[:, p(K)] - b[:, p_old(K)])^T, which costs |K| / n_w of making it anew.
    """

    def __init__(self, problem: Problem, name: str) -> None:
        super().__init__(problem, name)
        self.scores: Tensor | None = None
        self.seen: dict[str, Tensor] = {}
        self.duals: Duals | None = None
        self.updates = 0
        self.places = {units: torch.arange(problem.sym.sets[units].size) for units in self.neighbours}

    def propose(self, element: Element, trusted: set[str] | None) -> Move:
        now = {units: element[units] for units in self.neighbours}
        if trusted is not None:
            scores = self._make(now, trusted)
            found = solve(scores)
        else:
            self._follow(now)
            assert self.scores is not None
            scores = self.scores
            found = solve(scores, warm=self.duals)
            self.duals = found.duals
        p = element[self.name]
        before = float(scores.gather(1, p.to(scores.device).unsqueeze(1)).double().sum())
        inverse = torch.empty_like(p).scatter_(0, p, torch.arange(len(p)))
        return Move(self._delta({self.name: inverse[found.permutation.cpu()]}), found.value - before, trusted is None)

    def forget(self) -> None:
        """Drop what is kept, to save memory; the next proposal makes it anew."""
        self.scores = None

    def _follow(self, now: dict[str, Tensor]) -> None:
        """Bring the scores up to date with the neighbours' permutations."""
        if self.scores is None or self.updates >= UPDATES:
            self.scores, self.updates = self._make(now, None), 0
        else:
            changed = {units for units, p in now.items() if not torch.equal(p, self.seen[units])}
            for tensor in self.tensors if changed else ():
                self._update(tensor, now, changed)
            self.updates += bool(changed)
        self.seen = now

    def _make(self, now: dict[str, Tensor], trusted: set[str] | None) -> Tensor:
        n, device = self.known.size, self.problem.device
        total: Tensor | None = self.problem.linear.get(self.name)
        total = None if total is None else total.to(device).clone()
        for tensor in self.tensors:
            for a, b in self._pairs(tensor):
                if (d := a.where(self.name)) and self.trusts(a.labels, trusted):
                    found = gram(a.values, _gathered(b, now), (), d)[0]
                    total = found if total is None else total.add_(found)
        return total if total is not None else torch.zeros(n, n, device=device)

    def _update(self, tensor: str, now: dict[str, Tensor], changed: set[str]) -> None:
        if not any(label.units in changed for row in labels(self.problem.sym.axes[tensor]) for label in row):
            return
        assert self.scores is not None
        for a, b in self._pairs(tensor):
            d, moved = a.where(self.name), [e for e, label in enumerate(a.labels) if label.units in changed]
            if not d or not moved:
                continue
            left, new, old = a, now, self.seen
            if len(moved) == 1:
                units, e = a.labels[moved[0]].units, moved[0]
                at = (now[units] != self.seen[units]).nonzero().flatten()
                if 2 * len(at) < len(now[units]):
                    left = Block(a.values.index_select(e, at.to(a.values.device)), a.labels)
                    new, old = {**now, units: now[units][at]}, {**old, units: self.seen[units][at]}
            # In 16 bits the difference would be rounded, and 8-bit floats have none.
            old_values, new_values = (_gathered(b, p) for p in (old, new))
            dtype = torch.float64 if b.values.dtype == torch.float64 else torch.float32
            self.scores.add_(gram(left.values, new_values.to(dtype) - old_values.to(dtype), (), d)[0])

    def _pairs(self, tensor: str) -> list[tuple[Block, Block]]:
        axes = self.problem.sym.axes[tensor]
        return [
            pair for a, b in self.problem.terms(tensor) for pair in zip(blocks(a, axes), blocks(b, axes), strict=True)
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
        n, copies = self.known.size, self.problem.sym.copies(self.name)
        scores = torch.zeros(copies, n, n, device=self.problem.device)
        for tensor in self.tensors:
            for a, b in self.problem.blocks(tensor, element):
                for d in a.where(self.name) if self.trusts(a.labels, trusted) else ():
                    scores += gram(a.values, b.values, a.bases(d, self.known), [d])
        if self.name in self.problem.linear:
            scores += moved_scores(element, self.name, self.problem.linear[self.name].to(scores))
        found = solve_many(scores)
        gain = float(found.value.sum()) - float(scores.diagonal(dim1=1, dim2=2).double().sum())
        p = found.permutation.cpu()
        return Move(self._delta({self.name: p if self.known.over else p[0]}), gain, self.linear and trusted is None)


class JointNode(Node):
    """Units, such as heads, with all units that lie over them.

    For every pair of A's unit x and B's unit y, the best order of the inner units is solved; its value V[x, y] then
    decides which y goes to x (a wreath product, solved exactly where the inner sets do not meet in one block).
    """

    def __init__(self, problem: Problem, name: str) -> None:
        super().__init__(problem, name)
        movable = [known for known in problem.sym.sets.values() if known.movable and name in known.over]
        self.fibres = {known.name: known for known in movable}
        self.units |= self.fibres.keys()
        self.neighbours -= self.units
        together = [sum(label.units in self.units - {name} for label in row) for row in self.rows]
        self.linear = self.linear and all(count < 2 for count in together)

    def propose(self, element: Element, trusted: set[str] | None) -> Move:
        heads = self.known.size
        values = torch.zeros(heads, heads, dtype=torch.float64)
        scores: dict[str, Tensor] = {}
        for name, matrix in self.problem.linear.items():
            if name == self.name:
                values += moved_scores(element, name, matrix).double().cpu()
            elif name in self.fibres and self.fibres[name].over == (self.name,):
                scores[name] = _all_pairs(element, name, self.name, matrix).to(self.problem.device)[None]
        for tensor in self.tensors:
            for a, b in self.problem.blocks(tensor, element):
                if a.where(self.name) and self.trusts(a.labels, trusted):
                    self._read(a, b, values, scores)
        before = float(values.diagonal().sum())
        orders: dict[str, Tensor] = {}
        for name, found in scores.items():
            copies, n = found.shape[0], found.shape[-1]
            before += float(found.diagonal(dim1=1, dim2=2).diagonal(dim1=1, dim2=2).double().sum())
            solved = solve_many(found.reshape(-1, n, n))
            values += solved.value.reshape(copies, heads, heads).sum(0)
            orders[name] = solved.permutation.cpu().reshape(copies, heads, heads, n)
        top = solve(values)
        chosen = {name: self._chosen(self.fibres[name].over, order, top.permutation) for name, order in orders.items()}
        delta = self._delta({self.name: top.permutation, **chosen})
        return Move(delta, top.value - before, self.linear and trusted is None)

    def _read(self, a: Block, b: Block, values: Tensor, scores: dict[str, Tensor]) -> None:
        """Add a block to the scores of its largest inner set, or to those of the units themselves."""
        inside = [e for e, label in enumerate(a.labels) if label.units in self.fibres]
        e = max(inside, key=lambda e: a.values.shape[e], default=None)
        heads = self.known.size
        if e is not None:
            fibre = self.fibres[a.labels[e].units]
            d = a.base(e, self.name)
            others = [a.base(e, base) for base in fibre.over if base != self.name]
            copies = math.prod(a.values.shape[x] for x in others)
            if copies * (heads * fibre.size) ** 2 <= LARGEST_JOINT:
                found = gram(a.values, b.values, others, [d, e])
                found = found.reshape(copies, heads, fibre.size, heads, fibre.size).transpose(2, 3)
                known = scores.get(fibre.name)
                scores[fibre.name] = found if known is None else known + found
                return
        for d in a.where(self.name):
            others = a.bases(d, self.known)
            values += gram(a.values, b.values, others, [d]).sum(0).double().cpu()

    def _chosen(self, over: tuple[str, ...], order: Tensor, heads: Tensor) -> Tensor:
        """[copies, n]: the order of the inner units in each copy, the copies numbered as in `over`."""
        sizes = [self.problem.sym.sets[base].size for base in over]
        rest = [size for base, size in zip(over, sizes, strict=True) if base != self.name]
        picked = order[:, torch.arange(len(heads)), heads]
        wide = picked.reshape(*rest, len(heads), -1).movedim(len(rest), over.index(self.name))
        return wide.reshape(math.prod(sizes), -1)


def _all_pairs(element: Element, name: str, base: str, scores: Tensor) -> Tensor:
    """[copies, copies, n, n] scores with B's copies and units moved."""
    p, heads = element[name].to(scores.device), element[base].to(scores.device)
    moved = scores[:, heads]
    return moved.gather(-1, p[None, :, None, :].expand(moved.shape))


def nodes(problem: Problem) -> list[Node]:
    """One node for each set of units that can move."""
    sets = problem.sym.sets
    bases = {base for known in sets.values() if known.movable for base in known.over}
    made: list[Node] = []
    for group in problem.sym.groups:
        known = sets[group.name]
        if known.over:
            made.append(FibredNode(problem, group.name))
        elif group.name in bases:
            made.append(JointNode(problem, group.name))
        else:
            plain = PlainNode(problem, group.name)
            simple = plain.linear and not any(sets[units].over for units in plain.neighbours)
            made.append(plain if simple else FibredNode(problem, group.name))
    return [node for node in made if node.tensors or node.units & problem.linear.keys()]
