"""Ops that regroup or reorder axes without touching the numbers."""

from __future__ import annotations

from collections.abc import Sequence

from coset.symmetries.explode import explode, groups_of, merge, natural_cuts
from coset.symmetries.tape import Call, Exploded, Letter, NoRuleError, Operand, Result, Segment, Value, operand, rule
from coset.symmetries.terms import Origin, Term, factors, find, product, units


@rule("view", "reshape", "flatten", "unflatten", "_unsafe_view", "_reshape_alias", "view_copy")
def reshape(call: Call) -> Result:
    name = "input" if "input" in call.arguments else "self"
    return reshape_to(call, call.raw(name), call.shape)


@rule("squeeze", "unsqueeze", "squeeze_copy", "unsqueeze_copy")
def squeeze(call: Call) -> Result:
    return reshape_to(call, call.raw("self"), call.shape)


@rule("permute", "transpose", "t", "swapaxes", "movedim", "numpy_T", "permute_copy", "transpose_copy")
def permute(call: Call) -> Result:
    value = call.raw("self")
    return transposed(call, value, _order(call, len(value.shape)))


def transposed(call: Call, value: Value | Exploded, order: Sequence[int]) -> Value | Exploded:
    if isinstance(value, Value):
        return reorder(call, value, order)
    return Exploded(list(order).index(value.axis), tuple(reorder(call, part, order) for part in value.parts))


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


@rule("expand", "expand_as", "broadcast_to", "expand_copy")
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


@rule("broadcast_tensors", "meshgrid")
def broadcast_tensors(call: Call) -> Result:
    if call.op == "meshgrid":
        raise NoRuleError("a grid of positions")
    return [
        expand_to(call, call.implode(item), shape)
        for item, shape in zip(call.arguments["tensors"], call.shapes, strict=True)
    ]


@rule("repeat", "tile")
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


def reshape_to(call: Call, value: Value | Exploded, shape: Sequence[int]) -> Value | Exploded:
    if 0 in shape:
        raise NoRuleError("empty tensor")
    if isinstance(value, Exploded):
        return _reshape_exploded(call, value, shape)
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
        chosen = next(((d, cuts) for d in after if (cuts := call.cuts(d))), None)
        if chosen is None and len(terms) == 1:
            chosen = natural_cuts(terms[0], after, shape)
        if chosen is not None:
            exploded = explode(call, value, shape, before, after, *chosen)
            if exploded is not None:
                return exploded
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


def _reshape_exploded(call: Call, value: Exploded, shape: Sequence[int]) -> Value | Exploded:
    if len(value.parts) == 1:
        return reshape_to(call, value.parts[0], shape)
    before, after = next(pair for pair in groups_of(value.shape, shape) if value.axis in pair[0])
    wide = [d for d in after if shape[d] != 1]
    if len([d for d in before if value.shape[d] != 1]) == 1 and len(wide) == 1:
        views = []
        for part, width in zip(value.parts, value.widths, strict=True):
            views.append(reshape_to(call, part, [width if d == wide[0] else size for d, size in enumerate(shape)]))
        return Exploded(wide[0], tuple(call.implode(view) for view in views))
    merged = merge(call, value, before) if len(wide) == 1 else None
    return reshape_to(call, call.implode(value) if merged is None else merged, shape)
