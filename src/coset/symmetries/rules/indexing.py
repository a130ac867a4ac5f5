"""Ops that look up positions by number. A tensor of unit indices (`Value.content`) may look up its own axis."""

from __future__ import annotations

from coset.symmetries.rules.cat_and_split import pieces
from coset.symmetries.tape import (
    HOMOGENEOUS,
    LINEAR,
    NONLINEAR,
    Call,
    Letter,
    Lookup,
    NoRuleError,
    Result,
    Slices,
    Value,
    rule,
)
from coset.symmetries.terms import Term, find

LOOKED_UP = "looked up by number"
# The mode of `embedding_bag` that takes the largest of each bag.
MAXIMUM = 2


def look_up(call: Call, term: Term, index: Value) -> None:
    """Positions of ``term`` are named by the entries of ``index``."""
    if index.content is not None and find(index.content).size == find(term).size:
        call.tape.unify(term, index.content)
    else:
        call.tape.fix(term, LOOKED_UP)
        if index.content is not None:
            call.tape.fix(index.content, LOOKED_UP)
        else:
            # Tables that are looked up by one number hold the same things, such as the layers of an expert.
            call.tape.unify(call.tape.tables.setdefault((index, find(term).size), term), term)


def no_scale(call: Call, index: Value) -> Value:
    return call.tape.map(Value(index.axes), NONLINEAR)


@rule("embedding")
def embedding(call: Call) -> Result:
    weight, index = call.tensor("weight"), call.whole("indices")
    look_up(call, weight.axes[0], index)
    letters: list[Letter] = list(range(len(index.axes)))
    ins: list[tuple[Value, list[Letter]]] = [(weight, ["row", "unit"]), (no_scale(call, index), letters)]
    out = call.tape.multiply(ins, [*letters, "unit"], lookups={"row": Lookup(index, tuple(letters))})
    if call.get("padding_idx", -1) >= 0:
        call.tape.padded.add(out)
    return out


@rule("index_select")
def index_select(call: Call) -> Result:
    value, index = call.tensor("self"), call.whole("index")
    axis = call.axis("dim", len(value.axes))
    look_up(call, value.axes[axis], index)
    letters: list[Letter] = list(range(len(value.axes)))
    out = [*letters[:axis], "taken", *letters[axis + 1 :]]
    ins: list[tuple[Value, list[Letter]]] = [(value, letters), (no_scale(call, index), ["taken"])]
    return call.tape.multiply(ins, out, lookups={axis: Lookup(index, ("taken",))})


@rule(["gather", "take_along_dim"])
def gather(call: Call) -> Result:
    """out[..., i, ...] = self[..., index[..., i, ...], ...]: other axes are matched position by position."""
    value, index = call.tensor("self"), call.whole("index" if call.op == "gather" else "indices")
    axis = call.axis("dim", len(value.axes))
    look_up(call, value.axes[axis], index)
    letters: list[Letter] = list(range(len(value.axes)))
    for d in range(len(value.axes)):
        if d != axis and value.shape[d] != index.shape[d]:
            # Only the first positions are looked at.
            call.tape.fix(value.axes[d], LOOKED_UP)
            call.tape.fix(index.axes[d], LOOKED_UP)
            letters[d] = ("source", d)
    letters[axis] = "row"
    out: list[Letter] = list(range(len(value.axes)))
    return call.tape.multiply([(value, letters), (no_scale(call, index), out)], out)


@rule(["scatter", "scatter_add", "scatter_reduce"])
def scatter(call: Call) -> Result:
    """The inverse of gather: entries are written to the units that ``index`` names."""
    base, index = call.tensor("self"), call.whole("index")
    axis = call.axis("dim", len(base.axes))
    look_up(call, base.axes[axis], index)
    source = call.maybe("src") if isinstance(call.arguments.get("src"), Value) else None
    for d in range(len(base.axes)):
        if d != axis and base.shape[d] == index.shape[d]:
            call.tape.unify(base.axes[d], index.axes[d])
        elif d != axis:
            call.tape.fix(base.axes[d], LOOKED_UP)
            call.tape.fix(index.axes[d], LOOKED_UP)
    for ranking in call.tape.rankings:
        if index is ranking.places and source is not None and source is ranking.values and base in call.tape.zeros:
            ranking.restored += 1
    entries: list[Letter] = list(range(len(base.axes)))
    entries[axis] = "entry"
    written = no_scale(call, index)
    if source is not None:
        if source.shape != index.shape:
            raise NoRuleError("source and index differ in shape")
        written = call.tape.multiply([(call.tape.map(source, NONLINEAR), entries), (written, entries)], entries)
    letters: list[Letter] = list(range(len(base.axes)))
    flat = call.tape.map(base, NONLINEAR)
    fresh: dict[Letter, Term] = {letter: base.axes[d] for d, letter in enumerate(letters)}
    spread = [
        letter if base.shape[d] == index.shape[d] or d == axis else ("short", d) for d, letter in enumerate(entries)
    ]
    return call.tape.multiply([(flat, letters), (written, spread)], letters, fresh=fresh)


@rule("one_hot")
def one_hot(call: Call) -> Result:
    index = call.whole("self")
    if index.content is not None and find(index.content).size == call.shape[-1]:
        units = index.content
    else:
        units = call.tape.fixed(call.shape[-1], LOOKED_UP)
        call.number(index)
    letters: list[Letter] = list(range(len(index.axes)))
    return call.tape.multiply([(no_scale(call, index), letters)], [*letters, "unit"], fresh={"unit": units})


@rule(["index", "_unsafe_index"])
def index(call: Call) -> Result:
    """Advanced indexing: looked-up axes give way to the broadcast axes of the index tensors."""
    entries = list(call.arguments["indices"])
    constants = [
        (d, call.tape.constants[item])
        for d, item in enumerate(entries)
        if isinstance(item, Value) and item in call.tape.constants
    ]
    if len(constants) == 1 and sum(item is not None for item in entries) == 1:
        return select_positions(call, call.raw("self"), *constants[0])
    value = call.tensor("self")
    entries += [None] * (len(value.axes) - len(entries))
    tensors = [(d, call.as_value(item)) for d, item in enumerate(entries) if item is not None]
    if sum(item.shape == value.shape for _, item in tensors) and len(call.shape) == 1:
        raise NoRuleError("boolean mask")
    letters: list[Letter] = list(range(len(value.axes)))
    for d, item in tensors:
        look_up(call, value.axes[d], item)
        letters[d] = ("row", d)
    rank = max(len(item.axes) for _, item in tensors)
    places: list[Letter] = [("place", k) for k in range(rank)]
    at = [d for d, _ in tensors]
    adjacent = at == list(range(at[0], at[0] + len(at)))
    start = at[0] if adjacent else 0
    rest = [letter for d, letter in enumerate(letters) if d not in at]
    out = [*rest[:start], *places, *rest[start:]]
    ins: list[tuple[Value, list[Letter]]] = [(value, letters)]
    for _, item in tensors:
        ins.append((no_scale(call, item), places[rank - len(item.axes) :]))
    lookups: dict[Letter, Lookup] = {
        ("row", d): Lookup(item, tuple(places[rank - len(item.axes) :])) for d, item in tensors
    }
    return call.tape.multiply(ins, out, lookups=lookups)


def select_positions(call: Call, value: Value | Slices, axis: int, positions: list[int]) -> Value | Slices:
    """A constant list of positions: slices, one for each run of neighbours."""
    size = value.shape[axis]
    places = [p % size for p in positions]
    runs: list[tuple[int, int]] = []
    for place in places:
        if runs and runs[-1][1] == place:
            runs[-1] = (runs[-1][0], place + 1)
        else:
            runs.append((place, place + 1))
    parts = pieces(call, value, axis, runs)
    if len(parts) == 1:
        return parts[0]
    return Slices(axis, tuple(call.as_value(part) for part in parts))


@rule(["index_add", "index_put", "_unsafe_index_put", "index_copy", "index_fill"])
def index_write(call: Call) -> Result:
    """Rows of one axis are written by number; the other axes are matched."""
    base = call.tensor("self")
    if call.op in ("index_put", "_unsafe_index_put"):
        indices = list(call.arguments["indices"])
        if len(indices) == 1 and indices[0] in call.tape.booleans:
            return masked_write(call, base, call.as_value(indices[0]), call.tensor("values"))
        if len(indices) != 1 or indices[0] is None or call.tensor("values").shape[1:] != base.shape[1:]:
            raise NoRuleError("written by several indices")
        axis, index_, source = 0, call.as_value(indices[0]), call.tensor("values")
    else:
        axis, index_ = call.axis("dim", len(base.axes)), call.whole("index")
        if not call.has("source"):
            raise NoRuleError("rows are overwritten by one number")
        source = call.tensor("source")
    if len(index_.axes) != 1 or len(source.axes) != len(base.axes):
        raise NoRuleError("written by a table of indices")
    look_up(call, base.axes[axis], index_)
    letters: list[Letter] = list(range(len(base.axes)))
    entries = [*letters[:axis], "entry", *letters[axis + 1 :]]
    flat, written = call.tape.map(base, NONLINEAR), call.tape.map(source, NONLINEAR)
    fresh: dict[Letter, Term] = {letter: base.axes[d] for d, letter in enumerate(letters)}
    ins: list[tuple[Value, list[Letter]]] = [(flat, letters), (written, entries), (no_scale(call, index_), ["entry"])]
    return call.tape.multiply(ins, letters, fresh=fresh)


def masked_write(call: Call, base: Value, mask: Value, number: Value) -> Value:
    """h[mask] = number: a mask over the first axes, or all of them."""
    if call.get("accumulate", False) or number.shape not in ((), (1,)):
        raise NoRuleError("the entries of a mask are written one by one")
    letters: list[Letter] = list(range(len(base.axes)))
    flat = call.tape.map(mask, NONLINEAR)
    operands: list[tuple[Value, list[Letter]]] = [(base, letters)]
    if number not in call.tape.vanishing:
        one: list[Letter] = ["one"] if number.axes else []
        operands = [(call.tape.map(base, NONLINEAR), letters), (call.tape.map(number, NONLINEAR), one)]
    return call.tape.multiply([*operands, (flat, letters[: len(mask.axes)])], letters)


@rule("embedding_bag")
def embedding_bag(call: Call) -> Result:
    """Sums of looked-up rows, weighted where weights are given, or their maximum."""
    weight, indices = call.tensor("weight"), call.whole("indices")
    look_up(call, weight.axes[0], indices)
    call.tape.fix(indices.axes[0], LOOKED_UP)
    rows = call.tape.multiply(
        [(weight, ["row", "unit"]), (no_scale(call, indices), ["place"])],
        ["place", "unit"],
        lookups={"row": Lookup(indices, ("place",))},
    )
    if call.has("per_sample_weights"):
        rows = call.tape.multiply([(rows, ["place", "unit"]), (call.tensor("per_sample_weights"), ["place"])],
                                  ["place", "unit"])  # fmt: skip
    fresh: dict[Letter, Term] = {"bag": call.tape.fixed(call.shape[0], LOOKED_UP)}
    law = HOMOGENEOUS if call.get("mode", 0) == MAXIMUM else LINEAR
    out = call.tape.map(rows, law, letters=["place", "unit"], out=["bag", "unit"], over=[0], fresh=fresh)
    return [out, *[None] * (len(call.shapes) - 1)]
