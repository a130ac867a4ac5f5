"""Recurrent layers: the gates of a unit move together, and directions are separate units.

A gate behind a sigmoid has no factor; a unit behind tanh may change sign, one behind ReLU may take a positive
factor, and its recurrent weights follow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from coset.symmetries.rules.cat_and_split import cat_along, position, take_apart
from coset.symmetries.rules.linear import matrix_map
from coset.symmetries.tape import (
    HOMOGENEOUS,
    LINEAR,
    NONLINEAR,
    ODD,
    Call,
    Letter,
    NoRuleError,
    Result,
    Slices,
    Value,
    rule,
)
from coset.symmetries.terms import Term, units


@dataclass(frozen=True)
class Memory:
    """State of a layer: its output, and for an LSTM the cell."""

    hidden: Value
    cell: Value | None = None


@dataclass(frozen=True)
class Gates:
    """What enters each gate: W x + b from the input, U h + c from the last output."""

    call: Call
    entering: list[Value]
    recurrent: list[Value]
    biases: list[Value]

    @classmethod
    def of(cls, call: Call, count: int, x: Value, weights: list[Value]) -> Gates:
        """weights: W, U and perhaps b, c, with the gates stacked along their first axis."""
        rows = [_apart(call, weight, count) for weight in weights]
        entering = [matrix_map(call, x, weight) for weight in rows[0]]
        if len(rows) > 2:
            entering = [call.tape.broadcast("add", pair) for pair in zip(entering, rows[2], strict=True)]
        return cls(call, entering, rows[1], rows[3] if len(rows) > 3 else [])

    def again(self, gate: int, hidden: Value) -> Value:
        out = matrix_map(self.call, hidden, self.recurrent[gate])
        return self.call.tape.broadcast("add", [out, self.biases[gate]]) if self.biases else out

    def after(self, gate: int, hidden: Value) -> Value:
        """The argument of a gate."""
        return self.call.tape.broadcast("add", [self.entering[gate], self.again(gate, hidden)])

    def tie(self, hidden: Value) -> None:
        """Every later step: the output of the layer enters its gates."""
        for gate in range(len(self.entering)):
            self.after(gate, hidden)


def _apart(call: Call, weight: Value, count: int) -> list[Value]:
    size = weight.shape[0] // count
    return take_apart(call, weight, 0, [(k * size, (k + 1) * size) for k in range(count)]) if count > 1 else [weight]


def _rnn(gates: Gates, last: Memory, projection: Value | None) -> Memory:
    """h' = f(W x + U h + b)"""
    call = gates.call
    law = HOMOGENEOUS if "relu" in call.op else ODD
    hidden = call.tape.map(gates.after(0, last.hidden), law)
    return Memory(hidden)


def _gru(gates: Gates, last: Memory, projection: Value | None) -> Memory:
    """n = tanh(W x + b + r (U h + c)), h' = (1 - z) n + z h, with r and z behind sigmoids."""
    call = gates.call
    reset, update = (call.tape.map(gates.after(k, last.hidden), NONLINEAR) for k in (0, 1))

    def gated(gate: Value, value: Value) -> Value:
        return call.tape.broadcast("multiply", [gate, value], [1.0, 1.0])

    def candidate(hidden: Value) -> Value:
        return call.tape.broadcast("add", [gates.entering[2], gated(reset, gates.again(2, hidden))])

    new = gated(update, call.tape.map(candidate(last.hidden), ODD))
    hidden = call.tape.broadcast("add", [new, gated(update, last.hidden)])
    candidate(hidden)
    return Memory(hidden)


def _lstm(gates: Gates, last: Memory, projection: Value | None) -> Memory:
    """c' = f c + i tanh(g), h' = o tanh(c'), with i, f and o behind sigmoids; a projection maps h' once more."""
    call = gates.call
    before = [gates.after(k, last.hidden) for k in range(4)]
    enter, forget, output = (call.tape.map(before[k], NONLINEAR) for k in (0, 1, 3))

    def gated(gate: Value, value: Value) -> Value:
        return call.tape.broadcast("multiply", [gate, value], [1.0, 1.0])

    new = gated(enter, call.tape.map(before[2], ODD))
    cell = call.tape.broadcast("add", [new, gated(forget, last.cell or new)])
    hidden = gated(output, call.tape.map(cell, ODD))
    if projection is not None:
        hidden = matrix_map(call, hidden, projection)
    return Memory(hidden, cell)


CellRule = Callable[[Gates, Memory, Value | None], Memory]
LAYERS: dict[str, tuple[int, CellRule]] = {
    "lstm": (4, _lstm),
    "gru": (3, _gru),
    "rnn_tanh": (1, _rnn),
    "rnn_relu": (1, _rnn),
}


@rule(LAYERS)
def recurrent(call: Call) -> Result:
    """lstm, gru and rnn over (time, batch, features), with the batch first, or without one."""
    if not call.has("input"):
        raise NoRuleError("packed sequence")
    x = call.tensor("input")
    count, layer = LAYERS[call.op]
    layers, directions = call.get("num_layers"), 2 if call.get("bidirectional") else 1
    matrices = 4 if call.get("has_biases") else 2
    params = call.tensors("params")
    projected = len(params) == layers * directions * (matrices + 1)
    width = matrices + projected
    for term in x.axes[:-1]:
        call.tape.fix(term, "order in time")
    memories: list[Memory] = []
    for k in range(layers):
        outs = []
        for row in range(k * directions, (k + 1) * directions):
            weights = params[row * width : (row + 1) * width]
            gates = Gates.of(call, count, x, weights[:matrices])
            memory = layer(gates, _initial(call, row), weights[matrices] if projected else None)
            gates.tie(memory.hidden)
            outs.append(memory)
        memories += outs
        hidden = [memory.hidden for memory in outs]
        x = hidden[0] if directions == 1 else cat_along(call, hidden, len(x.axes) - 1)
    rows = [[memory.hidden for memory in memories], [memory.cell for memory in memories if memory.cell]]
    finals = [
        Slices(0, tuple(_last(call, value, shape) for value in values))
        for values, shape in zip(rows, call.shapes[1:], strict=False)
    ]
    return [x, *finals]


def _initial(call: Call, row: int) -> Memory:
    """What a layer starts from, in one direction: its row of each state, (units)."""
    return Memory(*(_start(call, position(call, state, 0, row)) for state in _states(call)))


def _states(call: Call) -> list[Value | Slices]:
    """The state at the start: of an LSTM the hidden one and the cell."""
    hx = call.arguments["hx"]
    return list(hx) if isinstance(hx, list) else [hx]


def _start(call: Call, value: Value | Slices) -> Value:
    """(batch, units) -> (units). Zeros say nothing of what they meet elsewhere."""
    state = call.number(value)
    if state in call.tape.vanishing:
        return call.tape.zero([units(state.shape[-1])])
    letters: list[Letter] = [*range(len(state.axes) - 1), "unit"]
    for term in state.axes[:-1]:
        call.tape.fix(term, "batch")
    return call.tape.map(state, LINEAR, letters=letters, out=["unit"])


@rule(["lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"])
def single_cell(call: Call) -> Result:
    """One step of a recurrent layer; the states given are tied to its units."""
    count, layer = LAYERS[call.op.removesuffix("_cell")]
    last = Memory(*(_alone(call, state) for state in _states(call)))
    weights = [call.tensor("w_ih"), call.tensor("w_hh"), call.maybe("b_ih"), call.maybe("b_hh")]
    gates = Gates.of(call, count, call.tensor("input"), [weight for weight in weights if weight is not None])
    new = layer(gates, last, None)
    return [new.hidden, new.cell] if new.cell is not None else new.hidden


def _alone(call: Call, state: Value | Slices) -> Value:
    """A state of its own: zeros that several cells start from are no bond between them."""
    value = call.number(state)
    return call.tape.zero([units(size) for size in value.shape]) if value in call.tape.vanishing else value


def _last(call: Call, value: Value, shape: tuple[int, ...]) -> Value:
    """The state after the last step: time is gone, the batch is in its own order."""
    letters: list[Letter] = [*[("time", d) for d in range(len(value.axes) - 1)], "unit"]
    batch: list[Letter] = [("batch", d) for d in range(len(shape) - 2)]
    fresh: dict[Letter, Term] = {letter: call.tape.fixed(size, "batch") for letter, size in
                                 zip(batch, shape[1:], strict=False)}  # fmt: skip
    fresh["layer"] = units(1)
    return call.tape.map(value, LINEAR, letters=letters, out=["layer", *batch, "unit"], fresh=fresh)
