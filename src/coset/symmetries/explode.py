"""Views that keep the slices of an axis apart, and back.

A fused projection is often viewed as (..., 3, heads, dim) and then taken apart. Its three slices index
unrelated units, which a product of axes cannot say; an :class:`Exploded` value can.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from coset.symmetries.tape import Call, Exploded, Operand, Segment, Value, operand
from coset.symmetries.terms import Term, blocks, concat, edges, find, interleave, product, section, units


def groups_of(before: Sequence[int], after: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Smallest runs of axes with equal numbers of positions, in order."""
    out: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(before) or j < len(after):
        a, b = [], []
        p = q = 1
        if i < len(before):
            a, p, i = [i], before[i], i + 1
        if j < len(after):
            b, q, j = [j], after[j], j + 1
        while p != q:
            if p < q:
                a.append(i)
                p, i = p * before[i], i + 1
            else:
                b.append(j)
                q, j = q * after[j], j + 1
        out.append((a, b))
    return out


def natural_cuts(term: Term, after: Sequence[int], shape: Sequence[int]) -> tuple[int, list[int]] | None:
    """An axis of the view at which the blocks (or interleaved lanes) of ``term`` come apart by themselves."""
    term = find(term)
    wide = [d for d in after if shape[d] != 1]
    step = term.size // shape[wide[0]]
    if term.kind == "concat" and all(block.size % step == 0 for block in blocks(term)):
        return wide[0], [edge // step for edge in edges(term)[1:-1]]
    if term.kind == "interleave" and len(term.children) == shape[wide[-1]]:
        return wide[-1], list(range(1, shape[wide[-1]]))
    return None


def explode(
    call: Call,
    value: Value,
    shape: Sequence[int],
    before: Sequence[int],
    after: Sequence[int],
    chosen: int,
    cuts: Sequence[int],
) -> Exploded | None:
    """View one run of axes with the blocks between ``cuts`` of axis ``chosen`` kept apart."""
    unifier = call.tape.unifier
    outer = [shape[d] for d in after if d < chosen]
    inner = [shape[d] for d in after if d > chosen]
    bounds = [0, *cuts, shape[chosen]]
    widths = [e - s for s, e in pairwise(bounds)]
    term = product([value.axes[d] for d in before])
    step = math.prod(inner)
    if step > 1:
        pieces = unifier.split([term], [math.prod(outer), shape[chosen] * step])
        if pieces is None or not unifier.cut(pieces[1], [cut * step for cut in cuts]):
            return None
        heads = unifier.split([pieces[0]], outer)
        slices = [section(pieces[1], s * step, e * step) for s, e in pairwise(bounds)]
        tails = [unifier.split([piece], [width, *inner]) for piece, width in zip(slices, widths, strict=True)]
        if heads is None or any(tail is None for tail in tails):
            return None
        shared = [Segment(before[0], "pre", pieces[0])]
        rows = [[*heads, *(tail or [])] for tail in tails]
    else:
        lanes = _lanes(call, term, shape[chosen]) if set(widths) == {1} else None
        if lanes is None:
            return None
        slices, shared = lanes, []
        views = [unifier.split([lane], outer) for lane in lanes]
        if any(view is None for view in views):
            return None
        rows = [[*(view or []), *[units(1)] * (1 + len(inner))] for view in views]
    own = [Segment(before[0], ("slice", k), piece) for k, piece in enumerate(slices)]
    return _assemble(call, value, shape, before, after, chosen, shared, own, rows)


def _lanes(call: Call, term: Term, count: int) -> list[Term] | None:
    """The interleaved lanes of a term."""
    term = find(term)
    if term.kind == "units":
        call.tape.unifier.become(term, "interleave", [units(term.size // count) for _ in range(count)])
    return list(term.children) if term.kind == "interleave" and len(term.children) == count else None


def _assemble(
    call: Call,
    value: Value,
    shape: Sequence[int],
    before: Sequence[int],
    after: Sequence[int],
    chosen: int,
    shared: list[Segment],
    own: list[Segment],
    rows: list[list[Term]],
) -> Exploded | None:
    """The parts; axes outside the exploded run are regrouped as in an ordinary view."""
    others: dict[int, Term] = {}
    for a, b in groups_of(value.shape, shape):
        if list(a) != list(before):
            pieces = call.tape.unifier.split([value.axes[d] for d in a], [shape[d] for d in b])
            if pieces is None:
                return None
            others.update(zip(b, pieces, strict=True))
    parts: list[Value] = []
    outs: list[Operand] = []
    for k, row in enumerate(rows):
        table = {**others, **dict(zip(after, row, strict=True))}
        part = Value(tuple(table[d] for d in range(len(shape))), value.content)
        letters = [
            "*" if d not in after else "pre" if shared and d < chosen else ("slice", k) for d in range(len(shape))
        ]
        parts.append(part)
        outs.append(operand(part, letters))
    ins: list[Segment] = []
    for d, term in enumerate(value.axes):
        if d == before[0]:
            ins += shared + own
        elif d not in before:
            ins.append(Segment(d, "*", term))
    call.tape.move([Operand(value, tuple(ins))], outs)
    return Exploded(chosen, tuple(parts))


def merge(call: Call, value: Exploded, before: Sequence[int]) -> Value | None:
    """Join the exploded axis with the axes ``before`` around it: blocks in a row, or lanes interleaved."""
    first = value.parts[0]
    pre = [d for d in before if d < value.axis]
    post = [d for d in before if d > value.axis]
    in_blocks = not pre or any(first.axes[d].size > 1 for d in post)
    if not in_blocks and set(value.widths) != {1}:
        return None
    own, common = ([value.axis, *post], pre) if in_blocks else (pre, [])
    kept = set(range(len(first.axes))) - set(own) - {value.axis}
    for part in value.parts[1:]:
        for d in kept:
            call.tape.unify(first.axes[d], part.axes[d])
    slices = [product([part.axes[d] for d in own]) for part in value.parts]
    shared = [first.axes[d] for d in common]
    merged = product([*shared, concat(slices)]) if in_blocks else interleave(slices)
    lead, tail = list(first.axes[: before[0]]), list(first.axes[before[-1] + 1 :])
    whole = Value((*lead, merged, *tail), first.content)
    ins = [
        operand(part, [("slice", k) if d in own else "pre" if d in common else d for d in range(len(part.axes))])
        for k, part in enumerate(value.parts)
    ]
    segments = [
        *[Segment(d, d, term) for d, term in enumerate(lead)],
        *[Segment(len(lead), "pre", term) for term in shared],
        *[Segment(len(lead), ("slice", k), piece) for k, piece in enumerate(slices)],
        *[Segment(len(lead) + 1 + i, before[-1] + 1 + i, term) for i, term in enumerate(tail)],
    ]
    call.tape.move(ins, [Operand(whole, tuple(segments))])
    return whole
