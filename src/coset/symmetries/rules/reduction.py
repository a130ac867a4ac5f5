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
    Ranking,
    Result,
    Value,
    rule,
)
from coset.symmetries.terms import Term, units

# How many entries are not zero.
COUNT = Law("kill", "kill")
LAWS: dict[Law, tuple[str, ...]] = {
    LINEAR: ("sum", "mean", "nansum", "nanmean"),
    HOMOGENEOUS: ("amax", "amin", "aminmax", "quantile"),
    MAGNITUDE: ("std", "var", "norm", "linalg_vector_norm", "linalg_norm", "linalg_matrix_norm", "frobenius_norm"),
    COUNT: ("count_nonzero",),
    NONLINEAR: ("prod", "any", "all", "logsumexp"),
}
POWERS = {"var": 2.0}
SPREADS = ("std", "var")


def reduce(
    call: Call, op: str, value: Value, axes: list[int], law: Law, shape: tuple[int, ...], is_length: bool = False
) -> Value:
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
        mixes=op in SPREADS,  # a mean is taken away first
        isotropic=is_length or op in SPREADS,
    )


@rule(name for names in LAWS.values() for name in names)
def reduction(call: Call) -> Result:
    value = call.number(call.values()[0])
    law = next(law for law, names in LAWS.items() if call.op in names)
    axes = call.axes("dim", len(value.axes), [-2, -1] if call.op == "linalg_matrix_norm" else None)
    order = call.get("p", call.get("ord", 2))
    if law is COUNT or (law is MAGNITUDE and order == 0):
        value, law = call.tape.map(value, COUNT), LINEAR
    elif call.op in ("norm", "linalg_norm") and order not in (1, 2, float("inf")):
        law = NONLINEAR
    is_length = law is MAGNITUDE and call.op not in SPREADS and order == 2
    outs = [reduce(call, call.op, value, axes, law, shape, is_length) for shape in call.shapes]
    return outs if len(outs) > 1 else outs[0]


@rule("histc")
def histogram(call: Call) -> Result:
    """How many entries lie in each bin, whatever their order."""
    value = call.tensor("self")
    axes = list(range(len(value.axes)))
    bins: dict[Letter, Term] = {"bin": call.tape.fixed(call.shape[0], "bins")}
    return call.tape.map(value, NONLINEAR, letters=axes, out=["bin"], over=axes, fresh=bins)


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
    return placed(call, value, call.axis("dim", len(value.axes)), None, None)


@rule(["topk", "sort", "argsort", "kthvalue", "msort"])
def topk(call: Call) -> Result:
    """Sorted values do not depend on the order of the units; their positions are indices of the units."""
    value = call.tensor("self")
    axis = call.axis("dim", len(value.axes), 0 if call.op == "msort" else -1)
    rank = None if call.op == "kthvalue" else call.tape.fixed(call.shape[axis], "ordered by value")
    if call.op == "argsort":
        return placed(call, value, axis, rank, None)
    if call.op == "msort":
        return ordered(call, value, axis, rank, HOMOGENEOUS)
    return ranked(call, value, axis, rank)


def ranked(call: Call, value: Value, axis: int, rank: Term | None) -> list[Value | None]:
    """(values, positions) along ``axis``, which becomes a fixed ranking or disappears."""
    values = ordered(call, value, axis, rank, HOMOGENEOUS)
    return [values, placed(call, value, axis, rank, values) if call.readers[1] else None]


def placed(call: Call, value: Value, axis: int, rank: Term | None, values: Value | None) -> Value:
    """Positions along ``axis``, which equal scores may leave open."""
    places = ordered(call, value, axis, rank, THRESHOLD)
    places.content = value.axes[axis]
    call.tape.rankings.append(Ranking(call.op, value, axis, values, places, call.readers[-1]))
    return places


def ordered(call: Call, value: Value, axis: int, rank: Term | None, law: Law) -> Value:
    """A function of the entries along ``axis`` in the order of their size."""
    if rank is None:
        return reduce(call, call.op, value, [axis], law, call.shape)
    letters: list[Letter] = list(range(len(value.axes)))
    out = [*letters[:axis], "rank", *letters[axis + 1 :]]
    return call.tape.map(value, law, letters=letters, out=out, over=[axis], fresh={"rank": rank})


@rule(["cummax", "cummin"])
def running_extremum(call: Call) -> Result:
    """Values and their places on an axis whose order is fixed."""
    value = call.tensor("self")
    axis = call.axis("dim", len(value.axes))
    call.tape.fix(value.axes[axis], "the largest so far")
    return [call.tape.map(value, law, over=[axis]) for law in (HOMOGENEOUS, THRESHOLD)]
