"""Ops that join or take apart tensors along one axis."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from coset.symmetries.tape import (
    LINEAR,
    Call,
    Letter,
    Lookup,
    NoRuleError,
    Result,
    Segment,
    Slices,
    Value,
    operand,
    rule,
    with_row,
)
from coset.symmetries.terms import Term, concat, edges, find, is_frozen, section, units

MOST_SLICES = 64
# (layers, batch, units): the states of recurrent layers, of which each row has units of its own.
STATES_RANK = 3


@rule(["cat", "concat", "concatenate"])
def cat(call: Call) -> Result:
    values = [value for value in call.arguments["tensors"] if value.shape != (0,)]
    axis, rank = call.axis("dim", len(call.shape), 0), len(call.shape)
    first, *others = values
    if rank == STATES_RANK and axis == 0 and all(value.shape[0] == 1 for value in values):
        return Slices(0, tuple(call.as_value(value) for value in values))
    if isinstance(first, Slices) and first.axis != axis and all(_cut_alike(first, other) for other in others):
        columns = zip(*(value.parts for value in values), strict=True)
        return Slices(first.axis, tuple(cat_along(call, column, axis) for column in columns))
    return cat_along(call, [call.as_value(value) for value in values], axis)


def _cut_alike(first: Slices, other: Value | Slices) -> bool:
    return isinstance(other, Slices) and other.axis == first.axis and other.widths == first.widths


@rule(["hstack", "vstack", "row_stack", "column_stack"])
def join_rows(call: Call) -> Result:
    values = [call.as_value(item) for item in call.arguments["tensors"]]
    rank = len(call.shape)
    if any(len(value.axes) != rank for value in values):
        raise NoRuleError("axes are added")
    return cat_along(call, values, 0 if call.op in ("vstack", "row_stack") or rank == 1 else 1)


@rule("diff")
def differences(call: Call) -> Result:
    """Neighbours are subtracted: the order of one axis is fixed, the others pass."""
    value = call.tensor("self")
    if call.has("prepend") or call.has("append"):
        raise NoRuleError("something is put before or after")
    axis = call.axis("dim", len(value.axes), -1)
    reason = "neighbours are subtracted"
    call.tape.fix(value.axes[axis], reason)
    letters: list[Letter] = list(range(len(value.axes)))
    fresh: dict[Letter, Term] = {"pair": call.tape.fixed(call.shape[axis], reason)}
    out: list[Letter] = ["pair" if d == axis else d for d in letters]
    return call.tape.map(value, LINEAR, letters=letters, out=out, over=[axis], fresh=fresh, mixes=True)


def cat_along(call: Call, values: Sequence[Value], axis: int) -> Value:
    """Blocks along ``axis``; on every other axis the tensors index the same units."""
    return call.join([call.number(value) for value in values], axis)


def take_apart(call: Call, value: Value, axis: int, bounds: Sequence[tuple[int, int]]) -> list[Value]:
    """The slices [start, stop) of ``axis``; units are cut into blocks at the bounds."""
    term = value.axes[axis]
    request_slices(call, term, [p for pair in bounds for p in pair])
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
        outs.append(with_row(result, axis, [Segment(axis, ("slice", s), piece) for s, piece in inside]))
    call.tape.move([with_row(value, axis, row)], outs)
    return results


@rule(["split", "split_with_sizes", "chunk", "tensor_split", "unsafe_split", "split_copy", "unsafe_chunk"])
def split(call: Call) -> Result:
    value = call.raw("self")
    axis = call.axis("dim", len(value.shape), 0)
    sizes = [shape[axis] for shape in call.shapes]
    return pieces(call, value, axis, [(sum(sizes[:k]), sum(sizes[: k + 1])) for k in range(len(sizes))])


def pieces(call: Call, value: Value | Slices, axis: int, bounds: Sequence[tuple[int, int]]) -> list[Value | Slices]:
    """Slices along an axis, also of a tensor in blocks."""
    if isinstance(value, Value):
        return list(take_apart(call, value, axis, bounds))
    if axis != value.axis:
        rows = [take_apart(call, part, axis, bounds) for part in value.parts]
        return [Slices(value.axis, tuple(row[k] for row in rows)) for k in range(len(bounds))]
    out: list[Value | Slices] = []
    for start, stop in bounds:
        inside: list[Value] = []
        offset = 0
        for part, width in zip(value.parts, value.widths, strict=True):
            low, high = max(start - offset, 0), min(stop - offset, width)
            if high > low:
                inside.append(part if (low, high) == (0, width) else take_apart(call, part, axis, [(low, high)])[0])
            offset += width
        if not inside:
            raise NoRuleError("empty slice")
        out.append(inside[0] if len(inside) == 1 else Slices(axis, tuple(inside)))
    return out


@rule(["slice", "narrow", "slice_copy", "narrow_copy"])
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
    if step != 1 and isinstance(value, Slices) and axis == value.axis and set(value.widths) == {1}:
        rows = value.parts[start : start + step * length : step]
        return rows[0] if length == 1 else Slices(axis, rows)
    if step != 1:
        return _strided(call, call.whole("self"), axis, start, step, length)
    return pieces(call, value, axis, [(start, start + length)])[0]


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
        call.tape.move([with_row(value, axis, row)], [with_row(result, axis, out)])
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


@rule(["select", "select_copy"])
def select(call: Call) -> Result:
    value = call.raw("self")
    axis = call.axis("dim", len(value.shape))
    index = call.get("index")
    if not isinstance(index, int):
        raise NoRuleError("the selected position is not a constant")
    return position(call, value, axis, index % value.shape[axis])


@rule(["unbind", "unbind_copy"])
def unbind(call: Call) -> Result:
    value = call.raw("self")
    axis = call.axis("dim", len(value.shape), 0)
    return [position(call, value, axis, k) for k in range(len(call.shapes))]


def position(call: Call, value: Value | Slices, axis: int, index: int) -> Value | Slices:
    """One position of an axis, which is dropped and otherwise fixed."""
    if isinstance(value, Slices):
        if axis == value.axis:
            piece = pieces(call, value, axis, [(index, index + 1)])[0]
            return drop(call, call.as_value(piece), axis, 0)
        parts = tuple(call.as_value(position(call, part, axis, index)) for part in value.parts)
        return Slices(value.axis - (axis < value.axis), parts)
    term, size = find(value.axes[axis]), value.shape[axis]
    ends = term.kind == "units" and not term.frozen and not term.origins and index in (0, size - 1)
    start, stop = (index, index + 1) if ends else _block_of(term, index)
    if (start, stop) != (0, size):
        # The rest of the axis is not touched.
        return position(call, take_apart(call, value, axis, [(start, stop)])[0], axis, index - start)
    request_slices(call, value.axes[axis], range(size) if size <= MOST_SLICES else ())
    call.tape.fix(value.axes[axis], "a single position is selected")
    return drop(call, value, axis, index)


def _block_of(term: Term, index: int) -> tuple[int, int]:
    """The block that a position of an axis lies in."""
    return next((a, b) for a, b in itertools.pairwise(edges(term)) if a <= index < b)


def request_slices(call: Call, term: Term, points: Sequence[int]) -> None:
    """Parts of an axis go separate ways: if it was split off another one, better to cut it into slices there."""
    term = find(term)
    inside = tuple(sorted({p for p in points if 0 < p < term.size}))
    if inside and not is_frozen(term):
        call.tape.unifier.splits |= {replace(origin, points=inside) for origin in term.origins}


@rule("stack")
def stack(call: Call) -> Result:
    axis = call.axis("dim", len(call.shape), 0)
    parts = []
    for item in call.arguments["tensors"]:
        value = call.as_value(item)
        axes = [[term] for term in value.axes]
        parts.append(call.regroup(value, [*axes[:axis], [], *axes[axis:]], value.content))
    return Slices(axis, tuple(parts))


@rule(["flip", "roll", "fliplr", "flipud", "fft_fftshift", "fft_ifftshift"])
def flip(call: Call) -> Result:
    value = call.whole("self")
    for axis in call.axes("dim" if call.has("dim") else "dims", len(value.axes)):
        value = reordered(call, value, axis, value.axes[axis].size, "its order is reversed or rolled")
    return value


@rule(["constant_pad_nd", "pad"])
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
        parts = [row[0]] * (before > 0) + [value] + [row[1]] * (after > 0)
        value = cat_along(call, parts, axis) if len(parts) > 1 else value
    return value


@rule(["slice_scatter", "select_scatter"])
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
    parts = zip(bounds, take_apart(call, value, axis, bounds), strict=True)
    return cat_along(call, [source if bound == (start, end) else part for bound, part in parts], axis)
