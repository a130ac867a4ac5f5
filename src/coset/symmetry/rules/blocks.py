"""Ops that join or take apart tensors along one axis."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from coset.symmetry.call import Call, NoRuleError, Result, rule
from coset.symmetry.tape import Exploded, Letter, Lookup, Operand, Segment, Value, operand
from coset.symmetry.terms import Term, concat, find, section, units

LARGEST_EXPLOSION = 64


@rule("cat", "concat", "concatenate")
def cat(call: Call) -> Result:
    values = [call.implode(item) for item in call.arguments["tensors"]]
    values = [value for value in values if value.shape != (0,)]
    return cat_along(call, values, call.axis("dim", len(call.shape), 0))


def cat_along(call: Call, values: Sequence[Value], axis: int) -> Value:
    """Blocks along ``axis``; on every other axis the tensors index the same units."""
    first = values[0]
    if any(value.content is not None for value in values):
        values = [call.number(value) for value in values]
    for value in values[1:]:
        for d in range(len(first.axes)):
            if d != axis:
                call.tape.unify(first.axes[d], value.axes[d])
    joined = concat([value.axes[axis] for value in values])
    result = Value((*first.axes[:axis], joined, *first.axes[axis + 1 :]))
    ins, row = [], []
    for k, value in enumerate(values):
        letters: list[Letter] = list(range(len(value.axes)))
        letters[axis] = ("block", k)
        ins.append(operand(value, letters))
        row.append(Segment(axis, ("block", k), value.axes[axis]))
    call.tape.move(ins, [_with_row(result, axis, row)])
    return result


def _with_row(value: Value, axis: int, row: Sequence[Segment]) -> Operand:
    segments: list[Segment] = []
    for d, term in enumerate(value.axes):
        segments += row if d == axis else [Segment(d, d, term)]
    return Operand(value, tuple(segments))


def take_apart(call: Call, value: Value, axis: int, bounds: Sequence[tuple[int, int]]) -> list[Value]:
    """The slices [start, stop) of ``axis``; units are cut into blocks at the bounds."""
    term = value.axes[axis]
    if all(stop - start == 1 for start, stop in bounds):
        want_apart(call, term)
    size = term.size
    points = [p for pair in bounds for p in pair]
    if not call.tape.unifier.cut(term, points):
        call.tape.fix(term, "sliced across its structure")
        if not call.tape.unifier.cut(term, points):
            raise NoRuleError("sliced across its structure")
    marks = sorted({0, size, *points})
    pieces = {(s, e): section(term, s, e) for s, e in itertools.pairwise(marks)}
    row = [Segment(axis, ("slice", s), piece) for (s, _), piece in pieces.items()]
    results, outs = [], []
    for start, stop in bounds:
        inside = [(s, piece) for (s, e), piece in pieces.items() if start <= s and e <= stop]
        term_out = concat([piece for _, piece in inside]) if inside else units(0)
        result = Value((*value.axes[:axis], term_out, *value.axes[axis + 1 :]), value.content)
        results.append(result)
        outs.append(_with_row(result, axis, [Segment(axis, ("slice", s), piece) for s, piece in inside]))
    call.tape.move([_with_row(value, axis, row)], outs)
    return results


@rule("split", "split_with_sizes", "chunk", "tensor_split", "unsafe_split", "split_copy", "unsafe_chunk")
def split(call: Call) -> Result:
    value = call.raw("self")
    axis = call.axis("dim", len(value.shape), 0)
    sizes = [shape[axis] for shape in call.shapes]
    starts = [sum(sizes[:k]) for k in range(len(sizes))]
    if isinstance(value, Exploded):
        if axis == value.axis and all(size == 1 for size in sizes):
            return [_kept(call, part, axis) for part in value.parts]
        value = call.implode(value)
    return take_apart(call, value, axis, [(s, s + n) for s, n in zip(starts, sizes, strict=True)])


def _kept(call: Call, part: Value, axis: int) -> Value:
    """A slice of length one along an exploded axis, the axis kept."""
    axes = [[term] for term in part.axes]
    return call.regroup(part, [*axes[:axis], [], *axes[axis:]], part.content)


@rule("slice", "narrow", "slice_copy")
def slice_(call: Call) -> Result:
    value = call.raw("self")
    axis = call.axis("dim", len(value.shape), 0)
    size, length = value.shape[axis], call.shape[axis]
    start = call.get("start", 0)
    step = call.get("step", 1)
    if not isinstance(start, int):
        raise NoRuleError("slice start is not a constant")
    start = min(start + size if start < 0 else start, size)
    if length == size and step == 1:
        return value
    if step != 1:
        return _strided(call, call.whole("self"), axis, start, step, length)
    if isinstance(value, Exploded):
        if axis == value.axis:
            chosen = value.parts[start : start + length]
            return Exploded(axis, chosen) if length > 1 else _kept(call, chosen[0], axis)
        parts = [take_apart(call, part, axis - (axis > value.axis), [(start, start + length)]) for part in value.parts]
        return Exploded(value.axis, tuple(part[0] for part in parts))
    return take_apart(call, value, axis, [(start, start + length)])[0]


def _strided(call: Call, value: Value, axis: int, start: int, step: int, length: int) -> Value:
    """Every step-th position: one lane of interleaved lanes, where the axis divides evenly."""
    term = find(value.axes[axis])
    if term.kind == "units" and not term.frozen and term.size % step == 0 and start < step:
        call.tape.unifier.become(term, "interleave", [units(term.size // step) for _ in range(step)])
    if term.kind == "interleave" and len(term.children) == step and start < step:
        lanes = term.children
        result = Value((*value.axes[:axis], lanes[start], *value.axes[axis + 1 :]), value.content)
        row = [Segment(axis, ("lane", k), lane) for k, lane in enumerate(lanes)]
        out = [Segment(axis, ("lane", start), lanes[start])]
        call.tape.move([_with_row(value, axis, row)], [_with_row(result, axis, out)])
        return result
    return reordered(call, value, axis, length, "every n-th position is taken")


def reordered(call: Call, value: Value, axis: int, size: int, reason: str) -> Value:
    """Positions of one axis are reshuffled by number: that axis is fixed, the others pass."""
    call.tape.fix(value.axes[axis], reason)
    fresh = call.tape.fixed(size, reason)
    result = Value((*value.axes[:axis], fresh, *value.axes[axis + 1 :]), value.content)
    letters: list[Letter] = list(range(len(value.axes)))
    outs = [*letters[:axis], ("new", axis), *letters[axis + 1 :]]
    call.tape.move([operand(value, letters)], [operand(result, outs)])
    return result


def drop(call: Call, value: Value, axis: int, index: int) -> Value:
    """One slice along ``axis``, the axis removed."""
    result = Value((*value.axes[:axis], *value.axes[axis + 1 :]), value.content)
    letters: list[Letter] = list(range(len(value.axes)))
    out = operand(result, letters[:axis] + letters[axis + 1 :])
    call.tape.move([operand(value, letters)], [out], {axis: Lookup(index)})
    return result


@rule("select", "select_copy")
def select(call: Call) -> Result:
    value = call.raw("self")
    axis = call.axis("dim", len(value.shape))
    index = call.get("index")
    if isinstance(value, Exploded):
        if axis == value.axis and isinstance(index, int):
            return value.parts[index % len(value.parts)]
        value = call.implode(value)
    pick(call, value.axes[axis])
    if not isinstance(index, int):
        raise NoRuleError("the selected position is not a constant")
    return drop(call, value, axis, index % value.shape[axis])


@rule("unbind", "unbind_copy")
def unbind(call: Call) -> Result:
    value = call.raw("self")
    axis = call.axis("dim", len(value.shape), 0)
    if isinstance(value, Exploded):
        if axis == value.axis:
            return list(value.parts)
        value = call.implode(value)
    pick(call, value.axes[axis])
    return [drop(call, value, axis, k) for k in range(len(call.shapes))]


def pick(call: Call, term: Term) -> None:
    """Single positions are named, so the axis is fixed."""
    want_apart(call, term)
    call.tape.fix(term, "a single position is selected")


def want_apart(call: Call, term: Term) -> None:
    """Positions are used one by one: if the axis was split off another one, better to explode it there."""
    leaf = find(term)
    if leaf.kind == "units" and not leaf.frozen and leaf.size <= LARGEST_EXPLOSION:
        call.tape.unifier.wanted |= leaf.origins


@rule("stack")
def stack(call: Call) -> Result:
    values = tuple(call.implode(item) for item in call.arguments["tensors"])
    return Exploded(call.axis("dim", len(call.shape), 0), values)


@rule("flip", "roll", "fliplr", "flipud")
def flip(call: Call) -> Result:
    value = call.whole("self")
    for axis in call.axes("dims", len(value.axes)):
        value = reordered(call, value, axis, value.axes[axis].size, "its order is reversed or rolled")
    return value


@rule("constant_pad_nd", "pad")
def pad(call: Call) -> Result:
    """Constants before and after: blocks of interchangeable positions; negative pads cut."""
    value = call.tensor("self")
    widths = list(call.get("pad"))
    mode = call.get("mode", "constant")
    for k in range(len(widths) // 2):
        axis = len(value.axes) - 1 - k
        before, after = widths[2 * k], widths[2 * k + 1]
        if not before and not after:
            continue
        size = value.axes[axis].size
        if mode != "constant":
            value = reordered(call, value, axis, call.shape[axis], "padding copies positions")
            continue
        if before < 0 or after < 0:
            value = take_apart(call, value, axis, [(max(0, -before), size - max(0, -after))])[0]
        rest = [(*value.axes[:axis], units(n), *value.axes[axis + 1 :]) for n in (max(before, 0), max(after, 0))]
        make = call.tape.zero if not call.get("value", 0) else lambda axes: Value(tuple(axes))
        row = [make(axes) for axes in rest]
        pieces = [row[0]] * (before > 0) + [value] + [row[1]] * (after > 0)
        value = cat_along(call, pieces, axis) if len(pieces) > 1 else value
    return value


@rule("slice_scatter", "select_scatter")
def scatter_slice(call: Call) -> Result:
    """A slice is overwritten: both tensors on one scale, and the axis is cut at the slice."""
    value, source = call.tensor("self"), call.tensor("src")
    axis = call.axis("dim", len(value.axes), 0)
    size = value.axes[axis].size
    if call.op == "select_scatter":
        call.tape.fix(value.axes[axis], "a single position is overwritten")
        letters: list[Letter] = list(range(len(value.axes)))
        return call.tape.add([(value, letters), (source, letters[:axis] + letters[axis + 1 :])], letters)
    start, end, step = call.get("start", 0), call.get("end", size), call.get("step", 1)
    if step != 1 or not isinstance(start, int):
        raise NoRuleError("strided overwrite")
    start, end = (min(p + size if p < 0 else p, size) for p in (start, end))
    bounds = [(s, e) for s, e in ((0, start), (start, end), (end, size)) if e > s]
    kept = take_apart(call, value, axis, bounds)
    pieces = [source if bound == (start, end) else piece for bound, piece in zip(bounds, kept, strict=True)]
    return cat_along(call, pieces, axis)
