"""Ops that hold graphs of their own: choices between two, and loops, which are read as two of their steps.

What a loop carries from step to step stands on the units and on the scale of what it began with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import GraphModule

from coset.symmetries.tape import LINEAR, NONLINEAR, NodeValue, NoRuleError, Slices, Tape, Value

IN_ORDER = "one step after another"


@dataclass(frozen=True)
class SubgraphCall:
    """A call of an op that holds graphs.

    arguments
        as they stand in the graph: values of tensors, modules of graphs, lists of these
    shapes
        of the tensors that the op returns
    run
        from a graph and what it is called with to what it returns
    whole
        from what stands at a node to a tensor used as numbers
    """

    arguments: Sequence[Any]
    shapes: Sequence[tuple[int, ...]]
    tape: Tape
    run: Callable[[GraphModule, Sequence[NodeValue]], list[NodeValue]]
    whole: Callable[[Value | Slices], Value]

    def outputs(self, graph: GraphModule, inputs: Sequence[NodeValue]) -> list[Value]:
        """What a graph returns, as numbers."""
        outs = self.run(graph, inputs)
        if not all(isinstance(out, Value | Slices) for out in outs):
            raise NoRuleError("a graph returns what is no tensor")
        return [self.whole(out) for out in outs]  # type: ignore[arg-type]

    def values(self, items: Sequence[Any]) -> list[Value]:
        """Arguments that are tensors, as numbers."""
        if not all(isinstance(item, Value | Slices) for item in items):
            raise NoRuleError("a graph is called with what is no tensor")
        return [self.whole(item) for item in items]


def cond(call: SubgraphCall) -> list[Value]:
    """One graph or the other, by a condition that has no scale."""
    condition, first, second, operands = call.arguments[:4]
    ways = zip(call.outputs(first, operands), call.outputs(second, operands), strict=True)
    choices = [call.tape.broadcast("add", list(pair)) for pair in ways]
    if isinstance(condition, bool | int):
        return choices
    (number,) = call.values([condition])
    flat = call.tape.map(number, NONLINEAR)
    return [call.tape.broadcast("multiply", [choice, flat], [1.0, 1.0]) for choice in choices]


def _carried(call: SubgraphCall, first: Sequence[Value]) -> list[Value]:
    """What a step is called with: zeros at first, say, and anything later on the same units and scale."""
    return [call.tape.broadcast("add", [value, Value(value.axes)]) for value in first]


def _together(call: SubgraphCall, *rows: Sequence[Value]) -> list[Value]:
    return [call.tape.broadcast("add", list(column)) for column in zip(*rows, strict=True)]


def scan(call: SubgraphCall) -> list[Value]:
    """carry, y_t = step(carry, x_t) for each position t of the first axis."""
    step, starts, sequences, others = call.arguments[:4]
    first = call.values(starts)
    rows = [_at_a_step(call.tape, value) for value in call.values(sequences)]
    before = _carried(call, first)
    count = len(before)
    one = call.outputs(step, [*before, *rows, *others])
    two = call.outputs(step, [*_together(call, before, one[:count]), *rows, *others])
    carry = _together(call, before, one[:count], two[:count])
    results = _together(call, one[count:], two[count:])
    return [
        *carry,
        *(_at_all_steps(call.tape, y, shape) for y, shape in zip(results, call.shapes[count:], strict=True)),
    ]


def while_loop(call: SubgraphCall) -> list[Value]:
    """carry = body(carry) as long as a condition holds, also never."""
    condition, body, starts, others = call.arguments[:4]
    before = _carried(call, call.values(starts))
    one = call.outputs(body, [*before, *others])
    two = call.outputs(body, [*_together(call, before, one), *others])
    carry = _together(call, before, one, two)
    for value in call.outputs(condition, [*carry, *others]):
        call.tape.map(value, NONLINEAR)
    return carry


def map_(call: SubgraphCall) -> list[Value]:
    """y_t = f(x_t) for each position t of the first axis."""
    function, sequences, others = call.arguments[:3]
    rows = [_at_a_step(call.tape, value) for value in call.values(sequences)]
    outs = call.outputs(function, [*rows, *others])
    return [_at_all_steps(call.tape, y, shape) for y, shape in zip(outs, call.shapes, strict=True)]


def _at_a_step(tape: Tape, value: Value) -> Value:
    tape.fix(value.axes[0], IN_ORDER)
    letters = list(range(len(value.axes)))
    return tape.map(value, LINEAR, letters=letters, out=letters[1:], over=[0])


def _at_all_steps(tape: Tape, value: Value, shape: Sequence[int]) -> Value:
    letters = list(range(len(value.axes)))
    return tape.multiply([(value, letters)], ["step", *letters], fresh={"step": tape.fixed(shape[0], IN_ORDER)})


SUBGRAPH_RULES: dict[str, Callable[[SubgraphCall], list[Value]]] = {
    "cond": cond,
    "scan": scan,
    "while_loop": while_loop,
    "map_impl": map_,
}
