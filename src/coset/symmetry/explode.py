"""Views that keep the slices of an axis apart, and back.

A fused projection is often viewed as (..., 3, heads, dim) and then taken apart. Its three slices index
unrelated units, which a product of axes cannot say; an :class:`Exploded` value can.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from coset.symmetry.call import Call
from coset.symmetry.tape import Exploded, Operand, Segment, Value, operand
from coset.symmetry.terms import Term, blocks, concat, find, interleave, product, section, units


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


def natural_axis(term: Term, after: Sequence[int], shape: Sequence[int]) -> int | None:
    """An axis made of K equal blocks (or K interleaved lanes) that is viewed as K separate slices."""
    term = find(term)
    wide = [d for d in after if shape[d] != 1]
    if term.kind == "concat" and all(b.size == term.size // shape[wide[0]] for b in blocks(term)):
        return wide[0]
    if term.kind == "interleave" and len(term.children) == shape[wide[-1]]:
        return wide[-1]
    return None


def explode(
    call: Call,
    value: Value,
    shape: Sequence[int],
    before: Sequence[int],
    after: Sequence[int],
    chosen: int,
) -> Exploded | None:
    """View one run of axes with the slices along ``chosen`` kept apart."""
    unifier = call.tape.unifier
    outer = [shape[d] for d in after if d < chosen]
    inner = [shape[d] for d in after if d > chosen]
    count = shape[chosen]
    terms = [value.axes[d] for d in before]
    if math.prod(inner) > 1:
        pre_post = unifier.split(terms, [math.prod(outer), count * math.prod(inner)])
        if pre_post is None:
            return None
        step = math.prod(inner)
        if not unifier.cut(pre_post[1], range(step, count * step, step)):
            return None
        heads = unifier.split([pre_post[0]], outer)
        slices = [section(pre_post[1], k * step, (k + 1) * step) for k in range(count)]
        tails = [unifier.split([piece], inner) for piece in slices]
        if heads is None or any(tail is None for tail in tails):
            return None
        shared = [Segment(before[0], "pre", pre_post[0])]
        rows = [[*heads, *(tail or [])] for tail in tails]
    else:
        term = find(product(terms))
        if term.kind == "units":
            unifier.become(term, "interleave", [units(term.size // count) for _ in range(count)])
        if term.kind != "interleave" or len(term.children) != count:
            return None
        slices = list(term.children)
        lanes = [unifier.split([lane], outer) for lane in slices]
        if any(lane is None for lane in lanes):
            return None
        shared = []
        rows = [[*(lane or []), *[units(1)] * len(inner)] for lane in lanes]
    own = [Segment(before[0], ("slice", k), piece) for k, piece in enumerate(slices)]
    return _assemble(call, value, shape, before, after, chosen, shared, own, rows)


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
    """Assemble the parts; axes outside the exploded run are regrouped as in an ordinary view."""
    unifier = call.tape.unifier
    others: dict[int, Term] = {}
    for a, b in groups_of(value.shape, shape):
        if list(a) == list(before):
            continue
        pieces = unifier.split([value.axes[d] for d in a], [shape[d] for d in b])
        if pieces is None:
            return None
        others.update(zip(b, pieces, strict=True))
    kept = [d for d in after if d != chosen]
    parts: list[Value] = []
    outs: list[Operand] = []
    for k, row in enumerate(rows):
        table = {**others, **dict(zip(kept, row, strict=True))}
        axes = [table[d] for d in range(len(shape)) if d != chosen]
        part = Value(tuple(axes), value.content)
        segments = [
            Segment(
                i,
                "pre" if d in kept and d < chosen and shared else ("slice", k) if d in kept else "*",
                axes[i],
            )
            for i, d in enumerate(d for d in range(len(shape)) if d != chosen)
        ]
        parts.append(part)
        outs.append(Operand(part, tuple(segments)))
    ins: list[Segment] = []
    for d, term in enumerate(value.axes):
        if d == before[0]:
            ins += shared + own
        elif d not in before:
            ins.append(Segment(d, "*", term))
    call.tape.move([Operand(value, tuple(ins))], outs)
    return Exploded(chosen, tuple(parts))


def merge(call: Call, value: Exploded, before: Sequence[int]) -> Value:
    """Join the exploded axis with the axes ``before`` around it: blocks in a row, or lanes interleaved."""
    first = value.parts[0]
    pre = [d for d in before if d < value.axis]
    post = [d - 1 for d in before if d > value.axis]
    in_blocks = any(first.axes[d].size > 1 for d in post)
    own, common = (post, pre) if in_blocks else (pre, [])
    for part in value.parts[1:]:
        for d in set(range(len(first.axes))) - set(own):
            call.tape.unify(first.axes[d], part.axes[d])
    slices = [product([part.axes[d] for d in own]) for part in value.parts]
    shared = [first.axes[d] for d in common]
    merged = product([*shared, concat(slices)]) if in_blocks else interleave(slices)
    lead = list(first.axes[: before[0]])
    tail = list(first.axes[before[-1] :])
    whole = Value((*lead, merged, *tail), first.content)
    ins = [
        operand(part, [("slice", k) if d in own else "pre" if d in common else d for d in range(len(part.axes))])
        for k, part in enumerate(value.parts)
    ]
    segments = [
        *[Segment(d, d, term) for d, term in enumerate(lead)],
        *[Segment(len(lead), "pre", term) for term in shared],
        *[Segment(len(lead), ("slice", k), piece) for k, piece in enumerate(slices)],
        *[Segment(len(lead) + 1 + i, before[-1] + i, term) for i, term in enumerate(tail)],
    ]
    call.tape.move(ins, [Operand(whole, tuple(segments))])
    return whole
