"""Losses that compare entry by entry and add up, as models return them beside their output."""

from __future__ import annotations

from coset.symmetries.rules.reduction import reduce
from coset.symmetries.tape import EVEN, LINEAR, MAGNITUDE, NONLINEAR, Call, Result, Value, rule

UNREDUCED = 0


@rule(["mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"])
def of_difference(call: Call) -> Result:
    apart = call.tape.broadcast("add", [call.tensor("self"), call.tensor("target")])
    law = {"mse_loss": LINEAR, "l1_loss": MAGNITUDE}.get(call.op, EVEN)
    return _reduced(call, call.tape.map(apart, law, power=2.0 if call.op == "mse_loss" else 1.0))


@rule(["binary_cross_entropy", "binary_cross_entropy_with_logits", "soft_margin_loss", "poisson_nll_loss", "kl_div"])
def of_both(call: Call) -> Result:
    flat = [call.tape.map(call.as_value(value), NONLINEAR) for value in call.values()]
    return _reduced(call, call.tape.broadcast("multiply", flat, [1.0, 1.0]))


def _reduced(call: Call, value: Value) -> Value:
    if call.get("reduction", 1) == UNREDUCED:
        return value
    return reduce(call, "mean", value, list(range(len(value.axes))), LINEAR, ())
