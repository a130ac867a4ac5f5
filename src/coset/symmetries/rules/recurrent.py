"""Recurrent layers: the gates of a unit move together, and directions are separate units.

A gate behind a sigmoid has no factor; a unit behind tanh may change sign, one behind ReLU may take a positive
factor, and its recurrent weights follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from coset.symmetries.rules.cat_and_split import cat_along, take_apart
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

    def before(self, gate: int, last: Memory | None) -> Value:
        """The argument of a gate. From zeros the first step has no recurrent part; `tie` adds it."""
        return self.entering[gate] if last is None else self.after(gate, last.hidden)

    def after(self, gate: int, hidden: Value) -> Value:
        return self.call.tape.broadcast("add", [self.entering[gate], self.again(gate, hidden)])

    def tie(self, hidden: Value) -> None:
        """Every later step: the output of the layer enters its gates."""
        for gate in range(len(self.entering)):
            self.after(gate, hidden)


def _apart(call: Call, weight: Value, count: int) -> list[Value]:
    size = weight.shape[0] // count
    return take_apart(call, weight, 0, [(k * size, (k + 1) * size) for k in range(count)]) if count > 1 else [weight]


def _rnn(gates: Gates, last: Memory | None, projection: Value | None) -> Memory:
    """h' = f(W x + U h + b)"""
    call = gates.call
    law = HOMOGENEOUS if "relu" in call.op else ODD
    hidden = call.tape.map(gates.before(0, last), law)
    return Memory(hidden)


def _gru(gates: Gates, last: Memory | None, projection: Value | None) -> Memory:
    """n = tanh(W x + b + r (U h + c)), h' = (1 - z) n + z h, with r and z behind sigmoids."""
    call = gates.call
    reset, update = (call.tape.map(gates.before(k, last), NONLINEAR) for k in (0, 1))

    def gated(gate: Value, value: Value) -> Value:
        return call.tape.broadcast("multiply", [gate, value], [1.0, 1.0])

    def candidate(hidden: Value) -> Value:
        return call.tape.broadcast("add", [gates.entering[2], gated(reset, gates.again(2, hidden))])

    new = gated(update, call.tape.map(candidate(last.hidden) if last else gates.entering[2], ODD))
    hidden = call.tape.broadcast("add", [new, gated(update, last.hidden if last else new)])
    candidate(hidden)
    return Memory(hidden)


def _lstm(gates: Gates, last: Memory | None, projection: Value | None) -> Memory:
    """c' = f c + i tanh(g), h' = o tanh(c'), with i, f and o behind sigmoids; a projection maps h' once more."""
    call = gates.call
    before = [gates.before(k, last) for k in range(4)]
    enter, forget, output = (call.tape.map(before[k], NONLINEAR) for k in (0, 1, 3))

    def gated(gate: Value, value: Value) -> Value:
        return call.tape.broadcast("multiply", [gate, value], [1.0, 1.0])

    new = gated(enter, call.tape.map(before[2], ODD))
    old = last.cell if last and last.cell else new
    cell = call.tape.broadcast("add", [new, gated(forget, old)])
    hidden = gated(output, call.tape.map(cell, ODD))
    if projection is not None:
        hidden = matrix_map(call, hidden, projection)
    return Memory(hidden, cell)


CellRule = Callable[[Gates, Memory | None, Value | None], Memory]
LAYERS: dict[str, tuple[int, CellRule]] = {
    "lstm": (4, _lstm),
    "gru": (3, _gru),
    "rnn_tanh": (1, _rnn),
    "rnn_relu": (1, _rnn),
}


@rule(LAYERS)
def recurrent(call: Call) -> Result:
    """lstm, gru and rnn over (time, batch, features) or with the batch first."""
    if not call.has("params") or not call.has("input"):
        raise NoRuleError("packed sequence")
    x = call.tensor("input")
    count, layer = LAYERS[call.op]
    layers, directions = call.get("num_layers"), 2 if call.get("bidirectional") else 1
    matrices = 4 if call.get("has_biases") else 2
    params = call.tensors("params")
    projected = len(params) == layers * directions * (matrices + 1)
    weights = iter(params)
    for term in x.axes[:-1]:
        call.tape.fix(term, "order in time")
    memories: list[Memory] = []
    for _ in range(layers):
        outs = [_direction(call, x, count, layer, weights, matrices, projected) for _ in range(directions)]
        memories += outs
        hidden = [out.hidden for out in outs]
        x = hidden[0] if directions == 1 else cat_along(call, hidden, len(x.axes) - 1)
    if not _from_zeros(call):
        for memory in memories:
            for value in (memory.hidden, memory.cell):
                if value is not None:
                    call.tape.fix(value.axes[-1], "initial state is given")
                    call.tape.map(value, NONLINEAR)
    rows = [[memory.hidden for memory in memories], [memory.cell for memory in memories if memory.cell]]
    finals = [
        Slices(0, tuple(_last(call, value, shape) for value in row))
        for row, shape in zip(rows, call.shapes[1:], strict=False)
    ]
    return [x, *finals]


def _direction(
    call: Call, x: Value, count: int, layer: CellRule, weights: Iterator[Value], matrices: int, projected: bool
) -> Memory:
    """One direction of one layer, started from zeros: x (..., in) -> hidden (..., units)."""
    gates = Gates.of(call, count, x, [next(weights) for _ in range(matrices)])
    memory = layer(gates, None, next(weights) if projected else None)
    gates.tie(memory.hidden)
    return memory


def _from_zeros(call: Call) -> bool:
    """Zeros leave the units free; any other initial state enters unit by unit."""
    return all(state in call.tape.zeros for state in _initial(call))


def _initial(call: Call) -> list[Value]:
    """The initial state, one tensor or several."""
    hx = call.arguments["hx"]
    return [call.number(item) for item in (hx if isinstance(hx, list) else [hx])]


@rule(["lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"])
def single_cell(call: Call) -> Result:
    """One step of a recurrent layer; the states given are tied to its units."""
    count, layer = LAYERS[call.op.removesuffix("_cell")]
    last = Memory(*_initial(call))
    weights = [call.tensor("w_ih"), call.tensor("w_hh"), call.maybe("b_ih"), call.maybe("b_hh")]
    gates = Gates.of(call, count, call.tensor("input"), [weight for weight in weights if weight is not None])
    new = layer(gates, last, None)
    return [new.hidden, new.cell] if new.cell is not None else new.hidden


def _last(call: Call, value: Value, shape: tuple[int, ...]) -> Value:
    """The state after the last step: time is gone, the batch is in its own order."""
    letters: list[Letter] = [*[("time", d) for d in range(len(value.axes) - 1)], "unit"]
    batch: list[Letter] = [("batch", d) for d in range(len(shape) - 2)]
    fresh: dict[Letter, Term] = {letter: call.tape.fixed(size, "batch") for letter, size in
                                 zip(batch, shape[1:], strict=False)}  # fmt: skip
    fresh["layer"] = units(1)
    return call.tape.map(value, LINEAR, letters=letters, out=["layer", *batch, "unit"], fresh=fresh)
