"""The moves of coordinate ascent: some units, the tensors that say which permutation of them is best, and that move."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from coset.alignment.matrix_blocks import best_matrices, cross, trace
from coset.alignment.objective import Objective, gram, moved_scores
from coset.assignment import Duals, solve, solve_many
from coset.symmetries.group import Block, Element, Label, MatrixGroup, blocks, labels

# Beyond this many scores at once, the copies of a set are not compared pair by pair with their inner units.
LARGEST_JOINT = 2**28
# Angles below this are the rounding of float32 products.
SETTLED = 2e-6
# Networks this much alike are taken to be the same but for noise, and are turned until nothing is left; others until
# less than this share of the objective is gained.
ALIKE, WORTH = 0.9, 1e-6
# A score matrix that was updated this many times is computed anew, so that rounding does not add up.
UPDATES = 32


def after(delta: Element, element: Element) -> Element:
    """delta @ element, at the cost of the sets that delta moves."""
    if delta.matrices or element.matrices:
        return delta @ element
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
        moving = {units for units, own in objective.sym.sets.items() if own.movable}
        moving |= {group.name for group in objective.matrices}
        self.neighbours = {label.units for row in self.rows for label in row if label.units in moving} - {name}
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


class MatrixNode(Node):
    """Units that matrices act on, apart in each copy: scores against the moved B, and their best matrices."""

    def __init__(self, objective: Objective, matrices: MatrixGroup) -> None:
        super().__init__(objective, matrices.name)
        self.matrices = matrices
        own = {member.tensor for member in matrices.members}
        self.tensors = [name for name in self.tensors if name in own]

    def propose(self, element: Element, trusted: set[str] | None) -> Move:
        kind, sym = self.matrices.kind, self.objective.sym
        shape = (sym.copies(self.name), self.group.size, self.matrices.order, self.matrices.order)
        scores = torch.zeros(shape if kind == "phase" else shape[:1] + shape[2:], device=self.objective.device)
        most = 0.0  # what the scores of networks that are the same come to
        for tensor in self.tensors:
            pairs = self.objective.blocks(tensor, element)
            if kind == "phase" and all(self.trusts(a.labels, trusted) for a, _ in pairs if a.where(self.name)):
                a, b = [one for one, _ in pairs], [other for _, other in pairs]
                for products in cross(self.matrices, tensor, a, b, self.group.over):
                    scores += products.reshape(scores.shape)
            for one, other in pairs:
                most += float(one.values.norm() * other.values.norm()) if one.where(self.name) else 0.0
                for d in one.where(self.name) if kind != "phase" and self.trusts(one.labels, trusted) else ():
                    scores += gram(one.values, other.values, one.bases(d, self.group), [d])
        if self.name in self.objective.linear:
            linear = moved_scores(element, self.name, self.objective.linear[self.name].to(scores))
            scores += linear.reshape(scores.shape)
        values, best = best_matrices(kind, scores)
        gain = float((values - trace(scores, kind)).sum())
        still = torch.eye(self.matrices.order, dtype=best.dtype, device=best.device)
        angle = float((best - still).square().sum(-1).mean(-1).max()) ** 0.5
        reached = float(values.sum())
        if angle < SETTLED or (reached < ALIKE * most and gain < WORTH * reached):
            gain = 0.0
        delta = sym.element(matrices={self.name: best if self.group.over else best[0]})
        return Move(delta, gain, self.linear and trusted is None)


class JointNode(Node):
    """Units, such as heads, with all units that lie over them.

    For every pair of A's unit x and B's unit y, the best order of the inner units, or the best matrices where these may
    act, is solved; its value V[x, y] then decides which y goes to x (a wreath product, solved exactly where the inner
    sets do not meet in one block).
    """

    def __init__(self, objective: Objective, name: str) -> None:
        super().__init__(objective, name)
        self.matrices = {group.name: group for group in objective.matrices if name in group.over}
        fibres = [
            inner
            for inner in objective.sym.sets.values()
            if name in inner.over and (inner.movable or inner.name in self.matrices)
        ]
        self.fibres = {fibre.name: fibre for fibre in fibres}
        self.pairs = {units: group for units, group in self.matrices.items() if group.kind == "phase"}
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
            pairs = self.objective.blocks(tensor, element)
            if all(self.trusts(a.labels, trusted) for a, _ in pairs if a.where(self.name)):
                self._read_pairs(tensor, pairs, scores)
            for a, b in pairs:
                paired = any(label.units in self.pairs for label in a.labels)
                if a.where(self.name) and not paired and self.trusts(a.labels, trusted):
                    self._read(a, b, values, scores)
        before = float(values.diagonal().sum())
        inside: dict[str, Tensor] = {}
        for name, pairs_of in scores.items():
            kind = self.matrices[name].kind if name in self.matrices else None
            copies = pairs_of.shape[0]
            own = pairs_of.diagonal(dim1=1, dim2=2).movedim(-1, 1)
            before += float((trace(own, kind) if kind else own.diagonal(dim1=-2, dim2=-1).double().sum(-1)).sum())
            if kind is not None:
                gains, inside[name] = best_matrices(kind, pairs_of)
                values += gains.sum(0).cpu()
                continue
            n = pairs_of.shape[-1]
            inner = solve_many(pairs_of.reshape(-1, n, n))
            values += inner.value.reshape(copies, heads, heads).sum(0)
            inside[name] = inner.permutation.cpu().reshape(copies, heads, heads, n)
        top = solve(values)
        best = {name: self._inside(self.fibres[name].over, x, top.permutation) for name, x in inside.items()}
        permutations = {name: x for name, x in best.items() if name not in self.matrices}
        matrices = {name: x for name, x in best.items() if name in self.matrices}
        delta = self.objective.sym.element({self.name: top.permutation, **permutations}, matrices=matrices)
        return Move(delta, top.value - before, self.linear and trusted is None)

    def _read_pairs(self, tensor: str, blocks_of: list[tuple[Block, Block]], scores: dict[str, Tensor]) -> None:
        """Add what a tensor says of pairs that turn: [copies, heads, heads, n, 2, 2]."""
        a, b = [one for one, _ in blocks_of], [other for _, other in blocks_of]
        for name, group in self.pairs.items():
            for products in cross(group, tensor, a, b, [base for base in group.over if base != self.name]):
                grid = products.reshape(-1, *products.shape[-5:])
                scores[name] = scores[name] + grid if name in scores else grid

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

    def _inside(self, over: tuple[str, ...], each: Tensor, heads: Tensor) -> Tensor:
        """[copies, ...]: the best for the inner units of each pair of heads, the copies numbered as in `over`."""
        sizes = [self.objective.sym.sets[base].size for base in over]
        rest = [size for base, size in zip(over, sizes, strict=True) if base != self.name]
        of_match = each[:, torch.arange(len(heads)), heads]
        grid = of_match.reshape(*rest, *of_match.shape[1:]).movedim(len(rest), over.index(self.name))
        return grid.reshape(math.prod(sizes), *of_match.shape[2:])


def _all_pairs(element: Element, name: str, base: str, scores: Tensor) -> Tensor:
    """[copies, copies, n, n] scores with B's copies and units moved."""
    heads = element[base].to(scores.device)
    columns = scores[:, heads]
    if element.sets[name].movable:
        p = element[name].to(scores.device)
        columns = columns.gather(-1, p[None, :, None, :].expand(columns.shape))
    return columns @ element.matrices[name].to(columns).mT if name in element.matrices else columns


def nodes_of(objective: Objective) -> list[Node]:
    """One node for each set of units that can move."""
    sets = objective.sym.sets
    matrices = {group.name: group for group in objective.matrices}
    bases = {base for inner in sets.values() if inner.movable or inner.name in matrices for base in inner.over}
    nodes: list[Node] = []
    for group in objective.sym.groups:
        if group.name in matrices:
            nodes.append(MatrixNode(objective, matrices[group.name]))
        elif sets[group.name].over:
            nodes.append(FibredNode(objective, group.name))
        elif group.name in bases:
            nodes.append(JointNode(objective, group.name))
        else:
            plain = PlainNode(objective, group.name)
            still = not any(sets[units].over or units in matrices for units in plain.neighbours)
            nodes.append(plain if plain.linear and still else FibredNode(objective, group.name))
    nodes += [MatrixNode(objective, group) for group in matrices.values() if group.kind == "phase"]
    return [node for node in nodes if node.tensors or node.units & objective.linear.keys()]
