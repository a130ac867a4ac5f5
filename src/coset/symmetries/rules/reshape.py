"""Ops that regroup or reorder axes without touching the numbers.

A fused projection is often viewed as (..., 3, heads, dim) and then taken apart. Its three slices index unrelated units,
which a product of axes cannot say; :class:`Slices` can.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from coset.symmetries.tape import Call, Letter, NoRuleError, Operand, Result, Segment, Slices, Value, operand, rule
from coset.symmetries.terms import (
    Origin,
    Term,
    blocks,
    concat,
    edges,
    factors,
    find,
    interleave,
    product,
    section,
    units,
)


@rule(["view", "reshape", "flatten", "unflatten", "_unsafe_view", "_reshape_alias", "view_copy"])
def reshape(call: Call) -> Result:
    name = "input" if "input" in call.arguments else "self"
    return reshape_to(call, call.raw(name), call.shape)


@rule(["squeeze", "unsqueeze", "squeeze_copy", "unsqueeze_copy", "atleast_1d", "atleast_2d", "atleast_3d"])
def squeeze(call: Call) -> Result:
    return reshape_to(call, call.raw("self"), call.shape)


@rule(["permute", "transpose", "t", "swapaxes", "movedim", "numpy_T", "permute_copy", "transpose_copy"])
def permute(call: Call) -> Result:
    value = call.raw("self")
    return transposed(call, value, _order(call, len(value.shape)))


def transposed(call: Call, value: Value | Slices, order: Sequence[int]) -> Value | Slices:
    if isinstance(value, Value):
        return reorder(call, value, order)
    return Slices(list(order).index(value.axis), tuple(reorder(call, part, order) for part in value.parts))


def _order(call: Call, rank: int) -> list[int]:
    order = list(range(rank))
    if call.op in ("permute", "permute_copy"):
        return [d % rank for d in call.get("dims")]
    if call.op in ("t", "numpy_T"):
        return order[::-1]
    if call.op == "movedim":
        source, target = call.get("source"), call.get("destination")
        sources = [d % rank for d in ([source] if isinstance(source, int) else source)]
        targets = [d % rank for d in ([target] if isinstance(target, int) else target)]
        rest = iter(d for d in order if d not in sources)
        at = dict(zip(targets, sources, strict=True))
        return [at[d] if d in at else next(rest) for d in order]
    a, b = ("axis0", "axis1") if call.op == "swapaxes" else ("dim0", "dim1")
    i, j = call.axis(a, rank), call.axis(b, rank)
    order[i], order[j] = order[j], order[i]
    return order


def reorder(call: Call, value: Value, order: Sequence[int]) -> Value:
    result = Value(tuple(value.axes[d] for d in order), value.content)
    call.tape.move([operand(value, list(range(len(order))))], [operand(result, list(order))])
    return result


@rule(["expand", "expand_as", "broadcast_to", "expand_copy"])
def expand(call: Call) -> Result:
    value = call.whole("self")
    return expand_to(call, value, call.shape)


def expand_to(call: Call, value: Value, shape: Sequence[int]) -> Value:
    """Copies along new or size-one axes are interchangeable."""
    lead = len(shape) - len(value.axes)
    old: list[Term | None] = [None] * lead + list(value.axes)
    axes = [
        term if term is not None and term.size == size else units(size) for term, size in zip(old, shape, strict=True)
    ]
    result = Value(tuple(axes), value.content)
    letters: list[Letter] = [lead + d for d in range(len(value.axes))]
    call.tape.move([operand(value, letters)], [operand(result, list(range(len(shape))))])
    return result


@rule("copy")
def copy(call: Call) -> Result:
    """The source, broadcast to the shape of what it overwrites."""
    return expand_to(call, call.whole("src"), call.shape)


@rule(["broadcast_tensors", "meshgrid"])
def broadcast_tensors(call: Call) -> Result:
    if call.op == "meshgrid":
        raise NoRuleError("a grid of positions")
    return [
        expand_to(call, call.as_value(item), shape)
        for item, shape in zip(call.arguments["tensors"], call.shapes, strict=True)
    ]


@rule(["repeat", "tile"])
def repeat(call: Call) -> Result:
    """n positions repeated r times are the pairs (copy, position)."""
    value = call.whole("self")
    lead = len(call.shape) - len(value.axes)
    padded = [units(1)] * lead + list(value.axes)
    counts = [size // term.size if term.size else 1 for size, term in zip(call.shape, padded, strict=True)]
    axes = [product([units(count), term]) for count, term in zip(counts, padded, strict=True)]
    return _copied(call, value, axes, lead)


@rule("repeat_interleave")
def repeat_interleave(call: Call) -> Result:
    value = call.whole("self")
    count = call.get("repeats")
    if not isinstance(count, int) or call.get("dim") is None:
        raise NoRuleError("repeats per element")
    axis = call.axis("dim", len(value.axes))
    axes = [product([t, units(count)]) if d == axis else t for d, t in enumerate(value.axes)]
    return _copied(call, value, axes, 0)


def _copied(call: Call, value: Value, axes: Sequence[Term], lead: int) -> Value:
    result = Value(tuple(axes), value.content)
    segments: list[Segment] = []
    for d, term in enumerate(axes):
        origin = None if d < lead else find(value.axes[d - lead])
        for factor in factors(term):
            letter: Letter = d - lead if origin is not None and find(factor) is origin else ("copy", d)
            segments.append(Segment(d, letter, factor))
    ins = operand(value, list(range(len(value.axes))))
    call.tape.move([ins], [Operand(result, tuple(segments))])
    return result


def reshape_to(call: Call, value: Value | Slices, shape: Sequence[int]) -> Value | Slices:
    if 0 in shape:
        raise NoRuleError("empty tensor")
    if isinstance(value, Slices):
        return _reshape_slices(call, value, shape)
    axes: list[list[Term]] = [[] for _ in shape]
    lost_before: set[int] = set()
    lost_after: set[int] = set()
    for before, after in groups_of(value.shape, shape):
        terms = [value.axes[d] for d in before]
        sizes = [shape[d] for d in after]
        wide = [d for d in after if shape[d] != 1]
        if len(wide) <= 1:
            for d in wide:
                axes[d] = terms
            continue
        cut = next(((d, cuts) for d in after if (cuts := call.cuts(d))), None)
        if cut is None and len(terms) == 1:
            cut = _natural_cuts(terms[0], after, shape)
        if cut is not None:
            slices = _in_slices(call, _SliceView(value, shape, before, after, axis=cut[0], cuts=cut[1]))
            if slices is not None:
                return slices
        pieces = call.tape.unifier.split(terms, sizes)
        if pieces is None:
            for term in terms:
                call.tape.fix(term, "split across its structure")
            pieces = [call.tape.fixed(size, "split across its structure") for size in sizes]
            lost_before.update(before)
            lost_after.update(after)
        for d, piece in zip(after, pieces, strict=True):
            if find(piece).kind == "units" and not find(piece).frozen:
                find(piece).origins.add(Origin(call.node, d))
            axes[d] = [piece]
    return call.regroup(value, axes, value.content, (lost_before, lost_after))


def _reshape_slices(call: Call, value: Slices, shape: Sequence[int]) -> Value | Slices:
    if len(value.parts) == 1:
        return reshape_to(call, value.parts[0], shape)
    before, after = next(pair for pair in groups_of(value.shape, shape) if value.axis in pair[0])
    wide = [d for d in after if shape[d] != 1]
    if len([d for d in before if value.shape[d] != 1]) == 1 and len(wide) == 1:
        views = []
        for part, width in zip(value.parts, value.widths, strict=True):
            views.append(reshape_to(call, part, [width if d == wide[0] else size for d, size in enumerate(shape)]))
        return Slices(wide[0], tuple(call.as_value(view) for view in views))
    merged = _merge(call, value, before) if len(wide) == 1 else None
    return reshape_to(call, call.as_value(value) if merged is None else merged, shape)


def groups_of(before: Sequence[int], after: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Smallest runs of axes before and after with equal numbers of positions, in order."""
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


def _natural_cuts(term: Term, after: Sequence[int], shape: Sequence[int]) -> tuple[int, list[int]] | None:
    """An axis of the view at which the blocks (or interleaved lanes) of ``term`` come apart by themselves."""
    term = find(term)
    wide = [d for d in after if shape[d] != 1]
    step = term.size // shape[wide[0]]
    if term.kind == "concat" and all(block.size % step == 0 for block in blocks(term)):
        return wide[0], [edge // step for edge in edges(term)[1:-1]]
    if term.kind == "interleave" and len(term.children) == shape[wide[-1]]:
        return wide[-1], list(range(1, shape[wide[-1]]))
    return None


@dataclass(frozen=True)
class _SliceView:
    """A view of a tensor, its axes `before` seen as axes `after`; of these, `axis` is kept in slices between `cuts`."""

    value: Value
    shape: Sequence[int]
    before: Sequence[int]
    after: Sequence[int]
    axis: int
    cuts: Sequence[int]

    @property
    def bounds(self) -> list[tuple[int, int]]:
        return list(pairwise([0, *self.cuts, self.shape[self.axis]]))


def _in_slices(call: Call, view: _SliceView) -> Slices | None:
    """The slices of a view, None where they do not come apart."""
    unifier = call.tape.unifier
    outer = [view.shape[d] for d in view.after if d < view.axis]
    inner = [view.shape[d] for d in view.after if d > view.axis]
    widths = [e - s for s, e in view.bounds]
    term = product([view.value.axes[d] for d in view.before])
    step = math.prod(inner)
    if step > 1:
        pieces = unifier.split([term], [math.prod(outer), view.shape[view.axis] * step])
        if pieces is None or not unifier.cut(pieces[1], [cut * step for cut in view.cuts]):
            return None
        heads = unifier.split([pieces[0]], outer)
        slices = [section(pieces[1], s * step, e * step) for s, e in view.bounds]
        tails = [unifier.split([piece], [width, *inner]) for piece, width in zip(slices, widths, strict=True)]
        if heads is None or any(tail is None for tail in tails):
            return None
        shared = [Segment(view.before[0], "pre", pieces[0])]
        rows = [[*heads, *(tail or [])] for tail in tails]
    else:
        lanes = _lanes(call, term, view.shape[view.axis]) if set(widths) == {1} else None
        if lanes is None:
            return None
        slices, shared = lanes, []
        views = [unifier.split([lane], outer) for lane in lanes]
        if any(lane is None for lane in views):
            return None
        rows = [[*(lane or []), *[units(1)] * (1 + len(inner))] for lane in views]
    own = [Segment(view.before[0], ("slice", k), piece) for k, piece in enumerate(slices)]
    return _assemble(call, view, shared, own, rows)


def _lanes(call: Call, term: Term, count: int) -> list[Term] | None:
    """The interleaved lanes of a term."""
    term = find(term)
    if term.kind == "units":
        call.tape.unifier.become(term, "interleave", [units(term.size // count) for _ in range(count)])
    return list(term.children) if term.kind == "interleave" and len(term.children) == count else None


def _assemble(
    call: Call, view: _SliceView, shared: list[Segment], own: list[Segment], rows: list[list[Term]]
) -> Slices | None:
    """The parts, of which `rows` are the axes `after`; the other axes are regrouped as in an ordinary view."""
    value, shape = view.value, view.shape
    others: dict[int, Term] = {}
    for a, b in groups_of(value.shape, shape):
        if list(a) != list(view.before):
            pieces = call.tape.unifier.split([value.axes[d] for d in a], [shape[d] for d in b])
            if pieces is None:
                return None
            others.update(zip(b, pieces, strict=True))
    parts: list[Value] = []
    outs: list[Operand] = []
    for k, row in enumerate(rows):
        table = {**others, **dict(zip(view.after, row, strict=True))}
        part = Value(tuple(table[d] for d in range(len(shape))), value.content)
        letters = [
            "*" if d not in view.after else "pre" if shared and d < view.axis else ("slice", k)
            for d in range(len(shape))
        ]
        parts.append(part)
        outs.append(operand(part, letters))
    ins: list[Segment] = []
    for d, term in enumerate(value.axes):
        if d == view.before[0]:
            ins += shared + own
        elif d not in view.before:
            ins.append(Segment(d, "*", term))
    call.tape.move([Operand(value, tuple(ins))], outs)
    return Slices(view.axis, tuple(parts))


def _merge(call: Call, value: Slices, before: Sequence[int]) -> Value | None:
    """Join the slices with the axes ``before`` around them: blocks in a row, or lanes interleaved."""
    first = value.parts[0]
    pre = [d for d in before if d < value.axis]
    post = [d for d in before if d > value.axis]
    in_blocks = not pre or any(first.axes[d].size > 1 for d in post)
    if not in_blocks and set(value.widths) != {1}:
        return None
    own, common = ([value.axis, *post], pre) if in_blocks else (pre, [])
    others = set(range(len(first.axes))) - set(own) - {value.axis}
    for part in value.parts[1:]:
        for d in others:
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
