"""Ops that reduce axes, and those that answer with the position of an entry."""

from __future__ import annotations

from coset.symmetries.tape import (
    HOMOGENEOUS,
    LINEAR,
    MAGNITUDE,
    NONLINEAR,
    THRESHOLD,
    Call,
    Law,
    Letter,
    NoRuleError,
    Result,
    Value,
    rule,
)
from coset.symmetries.terms import Term, units

LAWS: dict[Law, tuple[str, ...]] = {
    LINEAR: ("sum", "mean", "nansum", "nanmean"),
    HOMOGENEOUS: ("amax", "amin", "aminmax", "quantile"),
    MAGNITUDE: ("std", "var", "norm", "linalg_vector_norm", "linalg_norm", "linalg_matrix_norm"),
    NONLINEAR: ("prod", "any", "all", "logsumexp", "count_nonzero"),
}
POWERS = {"var": 2.0}


def reduce(call: Call, op: str, value: Value, axes: list[int], law: Law, shape: tuple[int, ...]) -> Value:
    """Reduce ``axes`` by ``op`` to one entry each, kept as size-one axes where the op keeps them."""
    letters: list[Letter] = list(range(len(value.axes)))
    out: list[Letter] = [letter for d, letter in enumerate(letters) if d not in axes]
    fresh: dict[Letter, Term] = {}
    if len(shape) == len(value.axes) and axes:
        out = [("one", d) if d in axes else letter for d, letter in enumerate(letters)]
        fresh = {("one", d): units(1) for d in axes}
    return call.tape.map(
        value,
        law,
        letters=letters,
        out=out,
        over=axes,
        fresh=fresh,
        power=POWERS.get(op, 1.0),
        mixes=op in ("std", "var"),  # a mean is taken away first
    )


@rule(name for names in LAWS.values() for name in names)
def reduction(call: Call) -> Result:
    value = call.number(call.values()[0])
    law = next(law for law, names in LAWS.items() if call.op in names)
    axes = call.axes("dim", len(value.axes), [-2, -1] if call.op == "linalg_matrix_norm" else None)
    if call.op in ("norm", "linalg_norm") and call.get("p", call.get("ord", 2)) not in (1, 2, float("inf")):
        law = NONLINEAR
    outs = [reduce(call, call.op, value, axes, law, shape) for shape in call.shapes]
    return outs if len(outs) > 1 else outs[0]


@rule(["var_mean", "std_mean"])
def spread_and_mean(call: Call) -> Result:
    value = call.number(call.values()[0])
    axes = call.axes("dim", len(value.axes))
    spread, mean = call.shapes
    return [
        reduce(call, call.op.removesuffix("_mean"), value, axes, MAGNITUDE, spread),
        reduce(call, "mean", value, axes, LINEAR, mean),
    ]


@rule(["max", "min", "median", "nanmedian", "mode"])
def extremum(call: Call) -> Result:
    """Over all entries, over one axis with the positions, or between two tensors."""
    from coset.symmetries.rules.elementwise import choose

    if call.has("other"):
        return choose(call)
    value = call.number(call.values()[0])
    if not call.has("dim"):
        return reduce(call, call.op, value, list(range(len(value.axes))), HOMOGENEOUS, call.shape)
    return ranked(call, value, call.axis("dim", len(value.axes)), None)


@rule(["argmax", "argmin"])
def argmax(call: Call) -> Result:
    value = call.tensor("self")
    if not call.has("dim"):
        raise NoRuleError("position in a flattened tensor")
    axis = call.axis("dim", len(value.axes))
    out = reduce(call, call.op, value, [axis], THRESHOLD, call.shape)
    out.content = value.axes[axis]
    return out


@rule(["topk", "sort", "argsort", "kthvalue"])
def topk(call: Call) -> Result:
    """Sorted values do not depend on the order of the units; their positions are indices of the units."""
    value = call.tensor("self")
    axis = call.axis("dim", len(value.axes), -1)
    if call.op == "kthvalue":
        return ranked(call, value, axis, None)
    rank = call.tape.fixed(call.shape[axis], "ordered by value")
    result = ranked(call, value, axis, rank)
    return result[1] if call.op == "argsort" else result


def ranked(call: Call, value: Value, axis: int, rank: Term | None) -> list[Value]:
    """(values, positions) along ``axis``, which becomes a fixed ranking or disappears."""
    letters: list[Letter] = list(range(len(value.axes)))
    if rank is None:
        values = reduce(call, call.op, value, [axis], HOMOGENEOUS, call.shape)
        places = reduce(call, call.op, value, [axis], THRESHOLD, call.shape)
    else:
        out = [*letters[:axis], "rank", *letters[axis + 1 :]]
        values = call.tape.map(value, HOMOGENEOUS, letters=letters, out=out, over=[axis], fresh={"rank": rank})
        places = call.tape.map(value, THRESHOLD, letters=letters, out=out, over=[axis], fresh={"rank": rank})
    places.content = value.axes[axis]
    return [values, places]
