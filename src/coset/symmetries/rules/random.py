"""Random numbers: equal seeds draw equal ones at equal positions, so units that they are drawn for do not move."""

from __future__ import annotations

from coset.symmetries.tape import HOMOGENEOUS, NONLINEAR, Call, Result, Value, rule

BY_POSITION = "random numbers by position"
# They take the shape of a tensor, and none of its numbers.
OF_SHAPE = (
    "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "normal_functional", "uniform",
    "exponential", "cauchy", "log_normal", "geometric", "random",
)  # fmt: skip
OF_NUMBERS = ("normal", "bernoulli", "poisson", "binomial", "multinomial", "_standard_gamma", "_sample_dirichlet")


@rule(OF_SHAPE)
def draw(call: Call) -> Result:
    return call.fresh(call.shape, BY_POSITION)


@rule(OF_NUMBERS)
def draw_from(call: Call) -> Result:
    """Each number is drawn from a distribution of its own, which stands at its position."""
    values = [call.number(value) for value in call.values()]
    if call.op == "bernoulli" and call.has("p"):
        values = values[1:]  # the first has the shape alone
    for value in values:
        for term in value.axes:
            call.tape.fix(term, BY_POSITION)
        call.tape.map(value, NONLINEAR)
    return call.fresh(call.shape, BY_POSITION)


@rule(["dropout", "native_dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"])
def dropout(call: Call) -> Result:
    """In evaluation nothing; in training, which a model may ask for at any time, a factor drawn for each number."""
    drops = bool(call.get("train")) and call.get("p", 0.5) > 0
    auxiliary = [None] * (len(call.shapes) - 1)
    if not drops:
        x = call.raw("input")
    elif "alpha" in call.op:
        x = call.tape.map(with_noise(call, call.tensor("input")), NONLINEAR)
    else:
        x = with_noise(call, call.tensor("input"))
    return [x, *auxiliary] if auxiliary else x


@rule(["rrelu", "rreluwith_noise", "rreluwith_noise_functional"])
def rrelu(call: Call) -> Result:
    """A leaky ReLU, whose slope is drawn for each number in training."""
    x = call.tape.map(call.tensor("self"), HOMOGENEOUS)
    out = with_noise(call, x) if call.get("training") else x
    return [out, *[None] * (len(call.shapes) - 1)] if len(call.shapes) > 1 else out


def with_noise(call: Call, x: Value) -> Value:
    """Times a factor drawn for each entry."""
    return call.tape.broadcast("multiply", [x, call.fresh(x.shape, BY_POSITION)], [1.0, 1.0])
