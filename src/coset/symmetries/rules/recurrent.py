"""Recurrent layers: the gates of a unit move together, and directions are separate units."""

from __future__ import annotations

from collections.abc import Iterator

from coset.symmetries.call import Call, NoRuleError, Result, rule
from coset.symmetries.rules.blocks import cat_along
from coset.symmetries.rules.reshape import reshape_to
from coset.symmetries.tape import NONLINEAR, Exploded, Letter, Value
from coset.symmetries.terms import Term, units

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


def gated(call: Call, value: Value, gates: int) -> Value:
    """View the first axis as (gates, units), the gates in their fixed order, and drop any scale."""
    value = call.tape.map(value, NONLINEAR)
    if gates == 1:
        return value
    wide = call.implode(reshape_to(call, value, [gates, value.shape[0] // gates, *value.shape[1:]]))
    call.tape.fix(wide.axes[0], "gates of a recurrent layer")
    return wide


def cell(
    call: Call, x: Value, weights: Iterator[Value], gates: int, biases: bool, projected: bool
) -> tuple[Value, Value]:
    """One direction of one layer: x (..., in) -> (output, cell) over (..., units)."""
    head: list[Letter] = ["gate", "unit"] if gates > 1 else ["unit"]
    places: list[Letter] = list(range(len(x.axes) - 1))
    w_in, w_rec = gated(call, next(weights), gates), gated(call, next(weights), gates)
    total = call.tape.multiply([(x, [*places, "in"]), (w_in, [*head, "in"])], [*places, *head])
    for _ in range(2 * biases):
        bias = gated(call, next(weights), gates)
        total = call.tape.add([(total, [*places, *head]), (bias, head)], [*places, *head])
    over = [len(places)] if gates > 1 else []
    inner = call.tape.map(total, NONLINEAR, letters=[*places, *head], out=[*places, "unit"], over=over)
    hidden = inner
    if projected:
        w_out = call.tape.map(next(weights), NONLINEAR)
        hidden = call.tape.multiply([(inner, [*places, "unit"]), (w_out, ["out", "unit"])], [*places, "out"])
    again = call.tape.multiply([(hidden, [*places, "out"]), (w_rec, [*head, "out"])], [*places, *head])
    call.tape.add([(total, [*places, *head]), (again, [*places, *head])], [*places, *head])
    return hidden, inner


@rule(*GATES)
def recurrent(call: Call) -> Result:
    """lstm, gru and rnn over (time, batch, features) or with the batch first."""
    if not call.has("params") or not call.has("input"):
        raise NoRuleError("packed sequence")
    x = call.tape.map(call.tensor("input"), NONLINEAR)
    gates, layers = GATES[call.op], call.get("num_layers")
    directions = 2 if call.get("bidirectional") else 1
    biases = bool(call.get("has_biases"))
    params = call.tensors("params")
    projected = len(params) == layers * directions * (5 if biases else 3)
    weights = iter(params)
    rows: list[tuple[Value, Value]] = []
    for term in x.axes[:-1]:
        call.tape.fix(term, "order in time")
    for _ in range(layers):
        outs = [cell(call, x, weights, gates, biases, projected) for _ in range(directions)]
        rows += outs
        hidden = [out for out, _ in outs]
        x = hidden[0] if directions == 1 else cat_along(call, hidden, len(x.axes) - 1)
    given = call.arguments["hx"]
    for state in [call.number(item) for item in (given if isinstance(given, list) else [given])]:
        # Zeros leave the units free; any other initial state enters unit by unit.
        if state not in call.tape.zeros:
            for row in rows:
                for value in row:
                    call.tape.fix(value.axes[-1], "initial state is given")
    finals = [Exploded(0, tuple(_last(call, row[k], shape) for row in rows)) for k, shape in enumerate(call.shapes[1:])]
    return [x, *finals]


@rule("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell")
def single_cell(call: Call) -> Result:
    """One step of a recurrent layer; the states given are tied to its units."""
    gates = GATES[call.op.removesuffix("_cell")]
    x = call.tape.map(call.tensor("input"), NONLINEAR)
    given = call.arguments["hx"]
    states = [call.tape.map(call.number(item), NONLINEAR) for item in (given if isinstance(given, list) else [given])]
    places: list[Letter] = list(range(len(x.axes) - 1))
    head: list[Letter] = ["gate", "unit"] if gates > 1 else ["unit"]
    w_in, w_rec = (gated(call, call.tensor(name), gates) for name in ("w_ih", "w_hh"))
    total = call.tape.multiply([(x, [*places, "in"]), (w_in, [*head, "in"])], [*places, *head])
    again = call.tape.multiply([(states[0], [*places, "out"]), (w_rec, [*head, "out"])], [*places, *head])
    total = call.tape.add([(total, [*places, *head]), (again, [*places, *head])], [*places, *head])
    for name in ("b_ih", "b_hh"):
        bias = call.maybe(name)
        if bias is not None:
            total = call.tape.add([(total, [*places, *head]), (gated(call, bias, gates), head)], [*places, *head])
    over = [len(places)] if gates > 1 else []
    new = call.tape.map(total, NONLINEAR, letters=[*places, *head], out=[*places, "unit"], over=over)
    for state in states:
        new = call.tape.broadcast("multiply", [new, state], [1.0, 1.0])
    return [new, new] if len(call.shapes) > 1 else new


def _last(call: Call, value: Value, shape: tuple[int, ...]) -> Value:
    """The state after the last step: time is gone, the batch is in its own order."""
    letters: list[Letter] = [*[("time", d) for d in range(len(value.axes) - 1)], "unit"]
    batch: list[Letter] = [("batch", d) for d in range(len(shape) - 2)]
    fresh: dict[Letter, Term] = {letter: call.tape.fixed(size, "batch") for letter, size in
                                 zip(batch, shape[1:], strict=False)}  # fmt: skip
    fresh["layer"] = units(1)
    return call.tape.map(value, NONLINEAR, letters=letters, out=["layer", *batch, "unit"], fresh=fresh)
