"""Run the rules over a traced graph and collect the tape."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

import coset.symmetries.rules  # noqa: F401  (registers every rule)
from coset.core.errors import SymmetryError
from coset.symmetries.tape import NONLINEAR, RULES, Call, Exploded, NoRuleError, Tape, Value
from coset.symmetries.terms import Cause, Origin, Term, Unifier, fixed, freeze, leaves, units
from coset.symmetries.trace import Trace

MOST_RESTARTS = 12
Found = Value | Exploded | list[Any] | None


@dataclass
class Inference:
    """The axes of every state tensor and of every result, the tape that relates them, and ops without a rule."""

    parameters: dict[str, Value]
    tape: Tape
    unknown: dict[str, str] = field(default_factory=dict)
    values: dict[Node, Found] = field(default_factory=dict)


def infer(trace: Trace, strict: bool = False) -> Inference:
    """Interpret the graph; start again where splitting an axis into separate blocks would lose less."""
    explode: frozenset[Origin] = frozenset()
    for _ in range(MOST_RESTARTS):
        run = _Run(trace, explode, strict)
        result = run.interpret()
        wanted = explode | run.tape.unifier.wanted
        if wanted == explode:
            break
        explode = frozenset(wanted)
    return result


def op_name(node: Node) -> str:
    schema = getattr(node.target, "_schema", None)
    if schema is not None:
        return str(schema.name).rpartition("::")[2]
    return str(getattr(node.target, "__name__", node.target))


class _Run:
    def __init__(self, trace: Trace, explode: frozenset[Origin], strict: bool) -> None:
        self.trace = trace
        self.explode = explode
        self.strict = strict
        self.tape = Tape(Unifier())
        self.found: dict[Node, Found] = {}
        self.result = Inference({}, self.tape, values=self.found)

    def interpret(self) -> Inference:
        for node in self.trace.graph.nodes:
            self.tape.unifier.cause = Cause(op_name(node) if node.op == "call_function" else node.op, "")
            if node.op == "placeholder":
                self.found[node] = self._placeholder(node)
            elif node.op == "call_function":
                self.found[node] = self._call(node)
            elif node.op == "get_attr":
                self.found[node] = self._fixed(node, "constant")
            elif node.op == "output":
                self._outputs(node)
        self._freeze_unused()
        return self.result

    def _freeze_unused(self) -> None:
        """Parts of the state that this input leaves aside, such as later positions, may matter for another."""
        used = {
            leaf
            for step in self.tape.steps
            if step.kind != "move"
            for operand in step.ins
            for segment in operand.segments
            for leaf in leaves(segment.term)
        }
        read = {operand.value for step in self.tape.steps for operand in step.ins}
        for value in self.result.parameters.values():
            known = [leaf for term in value.axes for leaf in leaves(term)]
            if value not in read or (known and not used.intersection(known)):
                self.tape.silent.add(value)
            for term in value.axes:
                for leaf in leaves(term):
                    if leaf not in used:
                        freeze(leaf, Cause("", "not used"))
                        self.tape.unused.add(leaf)

    def _placeholder(self, node: Node) -> Value | None:
        source = self.trace.sources.get(node.name)
        example = node.meta.get("val")
        if not isinstance(example, Tensor) or source is None or shape_of(example) is None:
            return None
        if source.kind != "state":
            reason = "model input" if source.kind == "input" else f"constant {source.name}"
            value = Value(tuple(_fixed_term(int(size), source.kind, reason) for size in example.shape))
            known = self.trace.positions(source.name)
            if known is not None:
                self.tape.constants[value] = known
            return value
        if source.name not in self.result.parameters:
            value = Value(tuple(units(int(size)) for size in example.shape))
            self.result.parameters[source.name] = value
            if not example.is_floating_point():
                self.tape.map(value, NONLINEAR)
        return self.result.parameters[source.name]

    def _outputs(self, node: Node) -> None:
        outputs = node.args[0]
        assert isinstance(outputs, Sequence)
        for item, buffer in zip(outputs, self.trace.mutated, strict=True):
            value = self.found.get(item) if isinstance(item, Node) else None
            for part in _values(value):
                if buffer is not None:
                    name = self.trace.aliases.get(buffer, buffer)
                    known = self.result.parameters.get(name)
                    if known is not None:
                        for a, b in zip(part.axes, known.axes, strict=True):
                            self.tape.unify(a, b)
                    continue
                self._freeze(part, Cause("output", "model output"))
                self.tape.map(part, NONLINEAR)

    def _freeze(self, value: Value, cause: Cause) -> None:
        for term in value.axes:
            freeze(term, cause)
        if value.content is not None:
            freeze(value.content, cause)

    def _fixed(self, node: Node, reason: str) -> Found:
        example = node.meta.get("val")
        op = self.tape.cause.op
        if isinstance(example, Tensor):
            return _nobody(example, op, reason)
        if isinstance(example, list | tuple):
            return [_nobody(item, op, reason) for item in example]
        return None

    def _call(self, node: Node) -> Found:
        if node.target is operator.getitem:
            source = self.found.get(node.args[0])  # type: ignore[arg-type]
            return source[node.args[1]] if isinstance(source, list) else None  # type: ignore[index]
        example = node.meta.get("val")
        outputs = [example] if isinstance(example, Tensor) else example
        if not isinstance(outputs, list | tuple) or not any(isinstance(item, Tensor) for item in outputs):
            return None
        op = op_name(node)
        try:
            known = RULES.get(op)
            if known is None:
                raise NoRuleError("no rule for this op")
            shapes = [shape_of(item) if isinstance(item, Tensor) else () for item in outputs]
            known_shapes = [shape for shape in shapes if shape is not None]
            if len(known_shapes) < len(shapes):
                raise NoRuleError("its size depends on the data")
            first = next(item for item in outputs if isinstance(item, Tensor))
            is_number = first.is_floating_point() or first.is_complex()
            call = Call(op, node.name, self._bind(node), known_shapes, is_number, self.tape, self.explode)
            return self._guard(node, known(call), outputs, isinstance(example, Tensor))
        except (
            NoRuleError,
            ValueError,
            KeyError,
            IndexError,
            TypeError,
            AttributeError,
            ZeroDivisionError,
        ) as error:
            return self._opaque(node, op, error)

    def _bind(self, node: Node) -> dict[str, Any]:
        """Arguments by schema name, with defaults, tensors replaced by values."""
        schema = node.target._schema  # type: ignore[union-attr]
        bound: dict[str, Any] = {}
        for k, argument in enumerate(schema.arguments):
            if k < len(node.args):
                raw = node.args[k]
            elif argument.name in node.kwargs:
                raw = node.kwargs[argument.name]
            else:
                raw = argument.default_value
            bound[argument.name] = self._resolve(raw)
        return bound

    def _resolve(self, raw: Any) -> Any:
        if isinstance(raw, Node):
            found = self.found.get(raw)
            return found if found is not None else self._resolve(raw.meta.get("val"))
        if isinstance(raw, list | tuple):
            return [self._resolve(item) for item in raw]
        if isinstance(raw, torch.SymInt):
            try:
                return int(raw)
            except GuardOnDataDependentSymNode as error:
                raise NoRuleError("a number depends on the data") from error
        return raw

    def _guard(self, node: Node, result: Any, outputs: Sequence[Any], single: bool) -> Found:
        """A rule must return as many values as the op, each of the right shape."""
        values = [result] if single and not isinstance(result, list) else result
        if not isinstance(values, list) or (single and len(values) != 1) or len(values) < len(outputs):
            raise NoRuleError("the rule returns the wrong number of tensors")
        for k, (value, example) in enumerate(zip(values, outputs, strict=False)):
            if value is None:
                values[k] = _nobody(example, self.tape.cause.op, "auxiliary result")
            elif isinstance(example, Tensor) and value.shape != tuple(example.shape):
                raise NoRuleError(f"the rule returns shape {value.shape} for {tuple(example.shape)}")
        return values[0] if single else values

    def _opaque(self, node: Node, op: str, error: Exception) -> Found:
        """Fix whatever the op touches: always sound."""
        known = isinstance(error, NoRuleError)
        reason = str(error) if known else f"rule failed ({type(error).__name__}: {error})"
        touched = [part for arg in node.all_input_nodes for part in _values(self.found.get(arg))]
        free = [part for part in touched if any(not leaf.frozen for term in part.axes for leaf in leaves(term))]
        if free:
            self.result.unknown.setdefault(op, reason)
            if self.strict:
                raise SymmetryError(f"op {op} at {node.name}: {reason}; without strict=True its axes are fixed")
        for part in touched:
            self._freeze(part, Cause(op, reason))
            self.tape.map(part, NONLINEAR)
        return self._fixed(node, reason)


def _fixed_term(size: int, op: str, reason: str) -> Term:
    return fixed(size, Cause(op, reason))


def _values(found: Found) -> list[Value]:
    if isinstance(found, Value):
        return [found]
    if isinstance(found, Exploded):
        return list(found.parts)
    return [value for item in found or [] for value in _values(item)]


def shape_of(tensor: Tensor) -> tuple[int, ...] | None:
    """The shape as numbers; None where a size depends on the data."""
    try:
        return tuple(int(size) for size in tensor.shape)
    except GuardOnDataDependentSymNode:
        return None


def _nobody(example: Any, op: str, reason: str) -> Value | None:
    """A tensor that no rule describes."""
    shape = shape_of(example) if isinstance(example, Tensor) else None
    return None if shape is None else Value(tuple(_fixed_term(size, op, reason) for size in shape))
