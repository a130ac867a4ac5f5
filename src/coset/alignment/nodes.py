"""The moves of coordinate ascent: some units, the tensors that say which permutation of them is best, and that move."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from coset.alignment.objective import Objective, gram, moved_scores
from coset.assignment import Duals, solve, solve_many
from coset.symmetries.group import Block, Element, Label, blocks, labels

# Beyond this many scores at once, the copies of a set are not compared pair by pair with their inner units.
LARGEST_JOINT = 2**28
# A score matrix that was updated this many times is computed anew, so that rounding does not add up.
UPDATES = 32


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
                    total = scores if total is None else total + scores
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
                    scores = scores + gram(a.values, b.values, a.bases(d, self.group), [d])
        if self.name in self.objective.linear:
            scores = scores + moved_scores(element, self.name, self.objective.linear[self.name].to(scores))
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
