"""Elementwise ops with broadcasting, sorted by what they do to a positive factor and to a sign."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

from coset.symmetries.rules.cat_and_split import take_apart
from coset.symmetries.tape import (
    EVEN,
    HOMOGENEOUS,
    LINEAR,
    MAGNITUDE,
    NONLINEAR,
    NORMALISING,
    ODD,
    THRESHOLD,
    Call,
    Law,
    NoRuleError,
    Result,
    Slices,
    Value,
    rule,
)
from coset.symmetries.terms import find

# Ops whose results are zero on a whole region.
FLAT_AT_ZERO = ("relu", "threshold", "clamp", "clamp_min", "where", "masked_fill", "hardshrink", "softshrink")
# Adding a constant this small, as norms do before a root, changes a scale only in the last digits.
LARGEST_EPSILON = 1e-3
# A norm is kept from being zero by a bound this small, before something is divided by it.
SMALLEST_CLAMP = 1e-5

IDENTITY = (
    "clone",
    "contiguous",
    "to",
    "_to_copy",
    "detach",
    "alias",
    "type_as",
    "lift_fresh_copy",
    "lift_fresh",
    "positive",
    "conj",
    "resolve_conj",
    "resolve_neg",
    "requires_grad_",
    "alias_copy",
    "detach_copy",
    "to_sparse",
    "_to_sparse",
    "to_dense",
    "_to_dense",
)
CASTS = ("to", "_to_copy", "type_as")
# Whether an entry is zero.
ZERO = Law("kill", "kill")
LAWS: dict[Law, tuple[str, ...]] = {
    LINEAR: ("neg", "negative", "real", "imag", "conj_physical"),
    HOMOGENEOUS: ("relu", "leaky_relu"),
    ODD: ("tanh", "erf", "sin", "asinh", "atan", "arctan", "tan", "sinh", "softshrink",
          "hardshrink", "round", "trunc", "fix", "special_erf", "arcsinh"),
    EVEN: ("cos", "cosh", "sinc", "special_sinc"),
    MAGNITUDE: ("abs", "absolute"),
    NORMALISING: ("sign", "sgn"),
    THRESHOLD: ("logical_not", "isnan", "isinf", "isfinite", "signbit", "angle", "isreal"),
    NONLINEAR: ("gelu", "silu", "sigmoid", "exp", "expm1", "exp2", "log", "log2", "log10", "log1p", "hardswish",
                "hardsigmoid", "relu6", "softplus", "mish", "elu", "selu", "celu", "log_sigmoid",
                "log_sigmoid_forward", "logit", "floor", "ceil", "frac", "bitwise_not", "lgamma", "digamma",
                "erfinv", "nan_to_num",
                "acos", "asin", "acosh", "atanh", "erfc", "i0", "arccos", "arcsin", "arccosh", "arctanh", "deg2rad",
                "rad2deg", "mvlgamma", "polygamma", "bucketize"),
}  # fmt: skip
POWERS = {"sqrt": 0.5, "rsqrt": -0.5, "reciprocal": -1.0, "square": 2.0}
COMPARISONS = (
    "logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or",
    "bitwise_xor", "__and__", "__or__", "__xor__", "isin", "bitwise_left_shift", "bitwise_right_shift",
)  # fmt: skip
JOINT = (
    "fmod",
    "remainder",
    "floor_divide",
    "atan2",
    "xlogy",
    "logaddexp",
    "hypot",
    "copysign",
    "lerp",
    "logaddexp2",
    "arctan2",
    "igamma",
    "igammac",
    "ldexp",
    "nextafter",
    "special_xlogy",
    "special_xlog1py",
    "special_zeta",
)


def spread(call: Call, values: Sequence[Value | Slices], act: Callable[[list[Value]], Value]) -> Value | Slices:
    """Apply an elementwise op slice by slice where an operand is in slices."""
    sliced = [value for value in values if isinstance(value, Slices)]
    rank = max(len(value.shape) for value in values)
    cuts = {(value.axis + rank - len(value.shape), tuple(value.widths)) for value in sliced}
    if len(cuts) != 1:
        return act([call.number(value) for value in values])
    place, widths = cuts.pop()
    edges = [0, *accumulate(widths)]
    columns: list[list[Value]] = []
    for value in values:
        at = place - (rank - len(value.shape))
        if isinstance(value, Slices):
            columns.append([call.number(part) for part in value.parts])
        elif at < 0 or value.shape[at] == 1:
            columns.append([call.number(value)] * len(widths))
        else:
            columns.append(take_apart(call, call.number(value), at, list(pairwise(edges))))
    return Slices(place, tuple(act(list(row)) for row in zip(*columns, strict=True)))


@rule(IDENTITY)
def identity(call: Call) -> Result:
    """The same numbers; a cast to integers keeps unit indices and nothing about the scale of numbers."""
    value = call.values()[0]
    indices = isinstance(value, Value) and value.content is not None
    if call.floating or indices or call.op not in CASTS or (call.op == "_to_copy" and not call.has("dtype")):
        return value
    return spread(call, [value], lambda row: call.tape.map(row[0], NONLINEAR))


@rule(name for names in LAWS.values() for name in names)
def unary(call: Call) -> Result:
    law = next(law for law, names in LAWS.items() if call.op in names)
    values = call.values()
    if len(values) > 1:
        return joint(call)
    result = spread(call, values[:1], lambda row: call.tape.map(row[0], law))
    return [result, None] if len(call.shapes) > 1 else result


@rule("threshold")
def threshold(call: Call) -> Result:
    """x where it is above a threshold, else a number; ReLU if both are zero."""
    is_relu = call.get("threshold") == 0 and call.get("value") == 0
    law = HOMOGENEOUS if is_relu else NONLINEAR
    return spread(call, [call.raw("self")], lambda row: call.tape.map(row[0], law))


@rule(["clamp", "clamp_min", "clamp_max", "clip", "hardtanh"])
def clamp(call: Call) -> Result:
    """min(max(x, low), high): odd if symmetric, homogeneous if it is a ReLU, void on indices already inside."""
    low_name, high_name = ("min_val", "max_val") if call.op == "hardtanh" else ("min", "max")
    low, high = call.get(low_name), call.get(high_name)
    x = call.raw("self")
    if len(call.values()) > 1:
        return joint(call)
    content = x.content if isinstance(x, Value) else None
    if content is not None and (low or 0) <= 0 and (high is None or high >= find(content).size - 1):
        return x
    tiny = high is None and low is not None and 0 < low <= SMALLEST_CLAMP
    if low is not None and high is not None and low == -high <= 0:
        law = ODD
    else:
        law = HOMOGENEOUS if {low, high} <= {None, 0} or tiny else NONLINEAR
    return spread(call, [x], lambda row: call.tape.map(row[0], law, approximate=tiny))


@rule(POWERS)
def power(call: Call) -> Result:
    exponent = POWERS[call.op]
    return spread(call, call.values()[:1], lambda row: call.tape.map(row[0], LINEAR, power=exponent))


@rule(["pow", "float_power"])
def pow_(call: Call) -> Result:
    exponent = call.get("exponent")
    if isinstance(exponent, Value | Slices) or not isinstance(call.arguments["self"], Value | Slices):
        return joint(call)
    return spread(call, call.values()[:1], lambda row: call.tape.map(row[0], LINEAR, power=float(exponent)))


@rule(["prelu", "_prelu_kernel"])
def prelu(call: Call) -> Result:
    """max(x, 0) + a min(x, 0): homogeneous in x; the slope is one number a channel (axis 1) and has no scale."""
    x, slope = call.tensor("self"), call.tensor("weight")
    out = call.tape.map(x, HOMOGENEOUS)
    slope = call.tape.map(slope, NONLINEAR)
    if call.op == "_prelu_kernel" or slope.shape == (1,):
        return call.tape.broadcast("multiply", [out, slope], [1.0, 1.0])
    letters = list(range(len(x.axes)))
    return call.tape.multiply([(out, letters), (slope, [min(1, len(x.axes) - 1)])], letters)


@rule(["add", "sub", "rsub", "subtract"])
def add(call: Call) -> Result:
    values = call.values()
    if len(values) == 1:
        other = next(
            (v for k, v in call.arguments.items() if k in ("other", "self") and isinstance(v, int | float)),
            1.0,
        )
        if other == 0:
            return values[0]
        tiny = abs(float(other)) <= LARGEST_EPSILON
        return spread(call, values, lambda row: _shifted(call, row[0], tiny))
    if call.get("alpha", 1) != 1:
        multiple = 0 if call.op == "rsub" else 1
        values[multiple] = spread(call, [values[multiple]], lambda row: call.tape.map(row[0], LINEAR))
    return spread(call, values, lambda row: call.tape.broadcast("add", row))


def _shifted(call: Call, value: Value, tiny: bool) -> Value:
    """x + a number: one that is tiny matters only where x vanishes, as ReLU does."""
    nearly = tiny and not _often_zero(call, value)
    return call.tape.map(value, HOMOGENEOUS if nearly else NONLINEAR, approximate=nearly)


def _often_zero(call: Call, value: Value) -> bool:
    step = call.tape.producer(value)
    while step is not None and (step.kind == "move" or (step.kind == "map" and step.law == LINEAR and not step.over)):
        step = call.tape.producer(step.ins[0].value)
    return step is not None and step.op in FLAT_AT_ZERO


@rule(["maximum", "minimum", "fmax", "fmin"])
def choose(call: Call) -> Result:
    """Equivariant under a common positive factor, not under a sign."""
    return spread(call, call.values(), lambda row: call.tape.map(call.tape.broadcast("add", row), HOMOGENEOUS))


@rule(["mul", "multiply"])
def mul(call: Call) -> Result:
    values = call.values()
    if len(values) == 1:
        return spread(call, values, lambda row: call.tape.map(row[0], LINEAR))
    return spread(call, values, lambda row: call.tape.broadcast("multiply", row, [1.0] * len(row)))


@rule(["div", "true_divide", "divide"])
def div(call: Call) -> Result:
    values = call.values()
    if call.get("rounding_mode") is not None:
        return joint(call)
    if len(values) == 1:
        inverse = not isinstance(call.arguments["self"], Value | Slices)
        return spread(call, values, lambda row: call.tape.map(row[0], LINEAR, power=-1.0 if inverse else 1.0))
    return spread(call, values, lambda row: call.tape.broadcast("multiply", row, [1.0, -1.0]))


@rule(["addcmul", "addcdiv"])
def addcmul(call: Call) -> Result:
    base, a, b = call.tensor("self"), call.tensor("tensor1"), call.tensor("tensor2")
    sign = 1.0 if call.op == "addcmul" else -1.0
    return call.tape.broadcast("add", [base, call.tape.broadcast("multiply", [a, b], [1.0, sign])])


@rule(["where", "masked_fill"])
def where(call: Call) -> Result:
    """A choice by a condition that has no scale itself."""
    names = ("condition", "self", "other") if call.op == "where" else ("mask", "self", "value")
    if len(call.shapes) > 1 or "self" not in call.arguments:
        raise NoRuleError("positions depend on the data")
    condition = call.tape.map(call.tensor(names[0]), NONLINEAR)
    branches = [call.tensor(name) for name in names[1:] if isinstance(call.arguments.get(name), Value | Slices)]
    scalars = [call.arguments[name] for name in names[1:] if isinstance(call.arguments.get(name), int | float)]
    if not branches:
        return call.tape.map(condition, NONLINEAR)
    choice = call.tape.broadcast("add", branches) if len(branches) > 1 else branches[0]
    law = LINEAR if len(branches) == 2 or (scalars and scalars[0] == 0) else NONLINEAR
    return call.tape.broadcast("multiply", [call.tape.map(choice, law), condition], [1.0, 1.0])


@rule("eq")
def equal(call: Call) -> Result:
    """Two index tensors are compared unit by unit when they index the same axis."""
    values = [call.as_value(value) for value in call.values()]
    contents = [value.content for value in values]
    if len(values) != 2 or contents[0] is None or contents[1] is None:
        return compare(call)
    if find(contents[0]).size != find(contents[1]).size:
        return compare(call)
    call.tape.unify(contents[0], contents[1])
    return call.tape.broadcast("multiply", [Value(value.axes) for value in values], [1.0, 1.0])


@rule(["lt", "gt", "le", "ge", "ne", "less", "greater", "less_equal", "greater_equal", "not_equal"])
def compare(call: Call) -> Result:
    """Whether x - y is above zero has no scale; whether it is zero has no sign either."""
    values = call.values()
    law = ZERO if call.op in ("ne", "not_equal", "eq") else THRESHOLD
    if len(values) == 1:
        other = call.get("other")
        law = law if other == 0 else NONLINEAR
        return spread(call, values, lambda row: call.tape.map(row[0], law))
    return spread(call, values, lambda row: call.tape.map(call.tape.broadcast("add", row), law))


@rule("heaviside")
def heaviside(call: Call) -> Result:
    """0 below zero, 1 above, and at zero what the values say."""
    values = [call.raw("self"), call.raw("values")]

    def act(row: list[Value]) -> Value:
        return call.tape.broadcast(
            "multiply", [call.tape.map(row[0], THRESHOLD), call.tape.map(row[1], NONLINEAR)], [1.0, 1.0]
        )

    return spread(call, values, act)


@rule([*COMPARISONS, *JOINT])
def joint(call: Call) -> Result:
    """Several arguments enter together; nothing about their scale survives."""

    def act(row: list[Value]) -> Value:
        flat = [call.tape.map(value, NONLINEAR) for value in row]
        return call.tape.broadcast("multiply", flat, [1.0] * len(flat)) if len(flat) > 1 else flat[0]

    return spread(call, call.values(), act)


@rule(["softmax", "_softmax", "log_softmax", "_log_softmax", "_safe_softmax", "cumsum", "cumprod", "logcumsumexp"])
def along(call: Call) -> Result:
    value = call.tensor("self")
    axis = call.axis("dim", len(value.axes))
    if call.op.startswith("cum") or call.op == "logcumsumexp":
        call.tape.fix(value.axes[axis], "summed up in order")
        return call.tape.map(value, LINEAR if call.op == "cumsum" else NONLINEAR, over=[axis], mixes=True)
    return call.tape.map(value, NONLINEAR, over=[axis])


@rule("glu")
def glu(call: Call) -> Result:
    """a * sigmoid(b) for the two halves of an axis."""
    value = call.tensor("self")
    axis = call.axis("dim", len(value.axes), -1)
    half = value.axes[axis].size // 2
    a, b = take_apart(call, value, axis, [(0, half), (half, 2 * half)])
    return call.tape.broadcast("multiply", [a, call.tape.map(b, NONLINEAR)], [1.0, 1.0])
