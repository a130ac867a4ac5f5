"""Tensors made from nothing: equal entries leave every axis free, counted entries are their own indices."""

from __future__ import annotations

from coset.symmetries.rules.reshape import expand_to
from coset.symmetries.tape import LINEAR, Call, Result, Slices, Value, rule
from coset.symmetries.terms import units

ZEROS = ("zeros", "zeros_like", "new_zeros", "empty", "empty_like", "new_empty", "empty_permuted")
EQUAL = ("ones", "ones_like", "new_ones", "full", "full_like", "new_full", "scalar_tensor")


@rule(ZEROS)
def zeros(call: Call) -> Result:
    return call.tape.zero([units(size) for size in call.shape])


@rule(EQUAL)
def equal_entries(call: Call) -> Result:
    if any(call.arguments.get(name) == 0 for name in ("fill_value", "value", "s")):
        return zeros(call)
    return Value(tuple(units(size) for size in call.shape))


@rule("fill")
def fill(call: Call) -> Result:
    if isinstance(call.arguments["value"], Value | Slices):
        return expand_to(call, call.tensor("value"), call.shape)
    return equal_entries(call)


@rule("zero")
def zero(call: Call) -> Result:
    return call.tape.zero([units(size) for size in call.shape])


@rule("arange")
def arange(call: Call) -> Result:
    """0, 1, ..., n-1 is the list of positions of its own axis."""
    if call.get("start", 0) != 0 or call.get("step", 1) != 1:
        return call.fresh(call.shape, "constant")
    term = units(call.shape[0])
    return Value((term,), term)


@rule(["tril_indices", "triu_indices", "linspace", "logspace"])
def ordered_constant(call: Call) -> Result:
    return call.fresh(call.shape, "constant")


@rule(["tril", "triu"])
def triangle(call: Call) -> Result:
    value = call.tensor("self")
    for axis in (-1, -2):
        call.tape.fix(value.axes[axis], "triangular mask")
    return call.tape.map(value, LINEAR)
