"""Axis terms: what the positions of a tensor axis stand for, unified like types.

Every axis of every tensor in a traced model has a term

    Units(n)                 n interchangeable units, or a fixed order when frozen
    Product(a, b, ...)       row-major pairs of positions, first factor outermost
    Concat(a, b, ...)        one block after the other
    Interleave(a_1 .. a_K)   position j * K + k is position j of a_k

Two axes that index the same units are unified. A term that meets a finer structure is refined in place, so
that all axes that share it see the refinement. Units that stay unfrozen are the permutation symmetry.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

TermKind = Literal["units", "product", "concat", "interleave"]


@dataclass(frozen=True)
class Cause:
    """Why an axis is fixed: the op that needed it and a few words."""

    op: str
    reason: str


@dataclass(frozen=True)
class Origin:
    """The graph node, and the axis of its result, that split some units into a product.

    ``points``: where that axis was cut later on, if the split is to be made block by block.
    """

    node: str
    axis: int
    points: tuple[int, ...] = ()


class Term:
    """A node of the union-find forest; compare through :func:`find`."""

    __slots__ = ("cause", "children", "kind", "origins", "parent", "size")

    def __init__(self, size: int, kind: TermKind = "units", children: Sequence[Term] = ()) -> None:
        self.size = size
        self.kind: TermKind = kind
        self.children = list(children)
        self.cause: Cause | None = None
        self.origins: set[Origin] = set()
        self.parent: Term = self

    @property
    def frozen(self) -> bool:
        return self.cause is not None

    def __repr__(self) -> str:
        term = find(self)
        if term.kind == "units":
            return f"{'=' if term.frozen else ''}{term.size}"
        mark = {"product": "*", "concat": "+", "interleave": "~"}[term.kind]
        return "(" + mark.join(map(repr, parts(term))) + ")"


def find(term: Term) -> Term:
    """The representative of a term's class, with path halving."""
    while term.parent is not term:
        term.parent = term.parent.parent
        term = term.parent
    return term


def units(size: int) -> Term:
    return Term(size)


def fixed(size: int, cause: Cause) -> Term:
    term = Term(size)
    term.cause = cause
    return term


def parts(term: Term) -> list[Term]:
    """Children of a composite with nested products and concats of its own kind flattened; ``[term]`` for units."""
    term = find(term)
    if term.kind == "units":
        return [term]
    if term.kind == "interleave":
        return [find(child) for child in term.children]
    out: list[Term] = []
    for child in map(find, term.children):
        out.extend(parts(child) if child.kind == term.kind else [child])
    return out


def factors(term: Term) -> list[Term]:
    """The factors of a term seen as a product, size-one factors dropped."""
    term = find(term)
    seq = parts(term) if term.kind == "product" else [term]
    return [factor for factor in seq if factor.size != 1]


def product(terms: Iterable[Term]) -> Term:
    flat = [factor for term in terms for factor in factors(term)]
    if len(flat) == 1:
        return flat[0]
    return Term(math.prod(factor.size for factor in flat), "product", flat) if flat else Term(1)


def blocks(term: Term) -> list[Term]:
    """The blocks of a term seen as a concatenation."""
    term = find(term)
    return parts(term) if term.kind == "concat" else [term]


def concat(terms: Iterable[Term]) -> Term:
    flat = [block for term in terms for block in blocks(term) if block.size]
    if len(flat) == 1:
        return flat[0]
    return Term(sum(block.size for block in flat), "concat", flat)


def interleave(terms: Sequence[Term]) -> Term:
    return Term(sum(term.size for term in terms), "interleave", list(terms))


def leaves(term: Term) -> list[Term]:
    """Units below a term in order of position, size-one units dropped."""
    term = find(term)
    if term.kind == "units":
        return [term] if term.size != 1 else []
    return [leaf for child in parts(term) for leaf in leaves(child)]


def is_frozen(term: Term) -> bool:
    return all(leaf.frozen for leaf in leaves(term))


def freeze(term: Term, cause: Cause) -> None:
    """Fix the order of everything below ``term``; the first cause is kept."""
    for leaf in leaves(term):
        if leaf.cause is None:
            leaf.cause = cause


@dataclass
class Unifier:
    """Unification with refinement. What cannot be reconciled is frozen, which is always sound.

    ``splits`` collects those that, had they been made as separate slices instead of a product, would have avoided a
    loss; the caller may start again with them.
    """

    cause: Cause = field(default_factory=lambda: Cause("", ""))
    splits: set[Origin] = field(default_factory=set)

    def become(self, term: Term, kind: TermKind, children: Sequence[Term]) -> None:
        """Refine units in place; frozen units stay frozen piece by piece."""
        if term.cause is not None:
            for child in children:
                freeze(child, term.cause)
            term.cause = None
        term.kind, term.children = kind, list(children)

    def conflict(self, *terms: Term, why: str) -> None:
        for term in terms:
            for node in self._composites(term):
                self.splits |= node.origins
            freeze(term, Cause(self.cause.op, why))

    def _composites(self, term: Term) -> list[Term]:
        term = find(term)
        below = [] if term.kind == "units" else [node for c in parts(term) for node in self._composites(c)]
        return [term, *below]

    def unify(self, a: Term, b: Term) -> None:
        """Make two axes index the same units."""
        a, b = find(a), find(b)
        if a is b:
            return
        if a.size != b.size:
            raise ValueError(f"axes of size {a.size} and {b.size} cannot index the same units")
        if a.size == 1:
            return
        if b.kind == "units":
            a, b = b, a
        if a.kind == "units":
            if a.cause is not None:
                freeze(b, a.cause)
            b.origins |= a.origins
            a.parent = b
        elif "concat" in (a.kind, b.kind):
            self._unify_concat(a, b)
        elif "interleave" in (a.kind, b.kind):
            self._unify_interleave(*((a, b) if a.kind == "interleave" else (b, a)))
        else:
            self._unify_product(a, b)

    def _merge(self, a: Term, b: Term) -> None:
        a, b = find(a), find(b)
        if a is not b and a.kind == b.kind and a.kind != "units":
            b.origins |= a.origins
            a.parent = b

    def _unify_concat(self, a: Term, b: Term) -> None:
        # An axis that is unified with a shifted copy of itself is cut anew by each cut, so it never lines up.
        aligned = self.cut(b, edges(a)) and self.cut(a, edges(b)) and edges(a) == edges(b)
        if not aligned:
            self.conflict(a, b, why="blocks do not line up")
            return
        for x, y in zip(blocks(a), blocks(b), strict=True):
            self.unify(x, y)
        self._merge(a, b)

    def _unify_interleave(self, a: Term, b: Term) -> None:
        lanes = parts(a)
        if b.kind == "interleave" and len(parts(b)) == len(lanes):
            for x, y in zip(lanes, parts(b), strict=True):
                self.unify(x, y)
            return
        if b.kind == "product":
            pieces = self.split(factors(b), [a.size // len(lanes), len(lanes)])
            if pieces is not None:
                freeze(pieces[1], self.cause)
                for lane in lanes:
                    self.unify(lane, pieces[0])
                return
        self.conflict(a, b, why="interleaved axes do not line up")

    def _unify_product(self, a: Term, b: Term) -> None:
        left, right = factors(a), factors(b)
        while left and right:
            x, y = left[0], right[0]
            if x.size == y.size:
                self.unify(left.pop(0), right.pop(0))
                continue
            longer, shorter = (left, y) if x.size > y.size else (right, x)
            pieces = self._peel(longer[0], shorter.size)
            if pieces is None:
                self.conflict(a, b, why="products with different factors")
                return
            longer[:1] = pieces
        self._merge(a, b)

    def _peel(self, term: Term, head: int) -> list[Term] | None:
        """Split ``term`` into an outer part of size ``head`` and the rest; None where that is impossible."""
        term = find(term)
        if term.size % head:
            return None
        if term.kind == "product":
            seq = factors(term)
            if head % seq[0].size == 0:
                return seq
            inner = self._peel(seq[0], head)
            return None if inner is None else inner + seq[1:]
        if term.kind == "units":
            pieces = [Term(head), Term(term.size // head)]
            self.become(term, "product", pieces)
            return pieces
        return None

    def split(self, terms: Sequence[Term], sizes: Sequence[int]) -> list[Term] | None:
        """Regroup a product of ``terms`` into axes of the given sizes, splitting units where needed."""
        queue = [factor for term in terms for factor in factors(term)]
        out: list[Term] = []
        for size in sizes:
            group: list[Term] = []
            have = 1
            while have < size:
                if not queue:
                    return None
                head = find(queue[0])
                if head.kind == "product":
                    queue[:1] = factors(head)
                elif size % (have * head.size) == 0:
                    group.append(queue.pop(0))
                    have *= head.size
                else:
                    pieces = self._peel(head, size // have) if size % have == 0 else None
                    if pieces is None:
                        return None
                    queue[:1] = pieces
            out.append(product(group))
        return out

    def cut(self, term: Term, points: Iterable[int]) -> bool:
        """Refine ``term`` to a concatenation with boundaries at ``points``; False where that is impossible."""
        term = find(term)
        inside = sorted({p for p in points if 0 < p < term.size})
        if not inside:
            return True
        if term.kind != "concat" and is_frozen(term):
            # A fixed order has no structure worth keeping, so any cut will do.
            below = leaves(term)
            term.kind, term.children, term.cause = "units", [], below[0].cause if below else self.cause
        if term.kind == "units":
            bounds = [0, *inside, term.size]
            self.become(term, "concat", [Term(e - s) for s, e in pairwise(bounds)])
            return True
        if term.kind == "concat":
            start = 0
            for block in parts(term):
                if not self.cut(block, [p - start for p in inside]):
                    return False
                start += block.size
            return True
        if term.kind == "interleave":
            return self._cut_interleave(term, inside)
        return self._cut_product(term, inside)

    def _cut_interleave(self, term: Term, inside: list[int]) -> bool:
        """Cut every lane; a row that a point goes through falls into single positions."""
        lanes = parts(term)
        width = len(lanes)
        marks = {p // width for p in inside} | {-(-p // width) for p in inside}
        if not all(self.cut(lane, marks) for lane in lanes):
            return False
        broken = {p // width for p in inside if p % width}
        pieces = []
        for start, stop in pairwise(sorted({0, *marks, term.size // width})):
            rows = [section(lane, start, stop) for lane in lanes]
            pieces.append(concat(rows) if start in broken else interleave(rows))
        self.become(term, "concat", pieces)
        return True

    def _cut_product(self, term: Term, inside: list[int]) -> bool:
        outer, *rest = factors(term)
        inner = math.prod(factor.size for factor in rest)
        if any(p % inner for p in inside):
            self.splits |= term.origins
            return False
        if not self.cut(outer, [p // inner for p in inside]):
            return False
        # The rest is shared by the blocks: all of them move their inner units together.
        self.become(term, "concat", [product([block, *rest]) for block in blocks(outer)])
        return True


def edges(term: Term) -> list[int]:
    """Block boundaries of a term, both ends included."""
    out = [0]
    for block in blocks(term):
        out.append(out[-1] + block.size)
    return out


def cuts(term: Term) -> frozenset[tuple[int, int, int]]:
    """Where concatenations inside a term are cut: stride, size of the whole, place."""
    return frozenset(_cuts(term, 1))


def _cuts(term: Term, stride: int) -> Iterator[tuple[int, int, int]]:
    term = find(term)
    if term.kind == "concat":
        yield from ((stride, term.size, place) for place in edges(term)[1:-1])
    for child in reversed(parts(term) if term.kind != "units" else []):
        yield from _cuts(child, stride)
        stride *= child.size if term.kind == "product" else 1


def section(term: Term, start: int, stop: int) -> Term:
    """The blocks of ``term`` between two boundaries it already has."""
    position, inside = 0, []
    for block in blocks(term):
        if start <= position and position + block.size <= stop:
            inside.append(block)
        position += block.size
    return concat(inside)
