"""From traced graphs to a `Symmetry`: run the rules over them, and name what is left free."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

import coset.symmetries.rules  # noqa: F401  (registers every rule)
from coset.core.errors import SymmetryError
from coset.symmetries.cat_of_split import cats_of_splits, inner_nodes, transposition
from coset.symmetries.fibres import Bases, fibres
from coset.symmetries.fold import foldable
from coset.symmetries.group import COMPOSITES, Axis, Concat, Fixed, FixedAxis, IndexSet, Interleave, Product, Units
from coset.symmetries.matrices import find_matrices, phases
from coset.symmetries.reach import reach
from coset.symmetries.scaling import Factor, find_scalings, independent
from coset.symmetries.subgraphs import SUBGRAPH_RULES, SubgraphCall
from coset.symmetries.symmetry import Symmetry
from coset.symmetries.tape import NONLINEAR, RULES, Call, NodeValue, NoRuleError, Slices, Tape, Value
from coset.symmetries.terms import Cause, Origin, Term, Unifier, cuts, find, fixed, freeze, leaves, parts, units
from coset.symmetries.ties import break_ties
from coset.symmetries.trace import Trace, op_name, shape_of

MOST_RESTARTS = 12
OF_SHAPE = {
    f"{name}_like" for name in ("zeros", "ones", "empty", "full", "rand", "randn", "randint")
} | {f"new_{name}" for name in ("zeros", "ones", "empty", "full")}  # fmt: skip


@dataclass
class Inference:
    """The axes of every state tensor and of every result, the tape that relates them, and sets of units by name.

    read
        names of the tensors of the state that an op reads
    meets_zeros
        whether only zeros meet a part of the state, which says nothing of it
    """

    parameters: dict[str, Value]
    tape: Tape
    values: dict[Node, NodeValue] = field(default_factory=dict)
    names: dict[str, Term] = field(default_factory=dict)
    read: set[str] = field(default_factory=set)
    meets_zeros: bool = False


def infer(traces: Sequence[Trace], strict: bool = False) -> Inference:
    """Interpret the graphs; start again where splitting an axis into separate slices would lose less.

    All graphs are read onto one tape, over the same tensors of the state, so what is left free holds for all.
    """
    alone = [_read_together([trace], strict) for trace in traces] if len(traces) > 1 else []
    inference = _read_together(traces, strict)
    for name, axis in _moving_cuts(alone):
        # A part of a table up to a size or number says nothing of the parts of other calls.
        freeze(inference.parameters[name].axes[axis], Cause("", "cut at different places in different calls"))
        inference.tape.map(inference.parameters[name], NONLINEAR)
    if inference.tape.rankings:
        buffers = {name for trace in traces for name in trace.buffers}
        break_ties(inference.parameters, buffers, inference.tape, strict)
    return inference


def _moving_cuts(alone: Sequence[Inference]) -> Iterator[tuple[str, int]]:
    """Tensors and axes of which several calls take different slices."""
    for name in dict.fromkeys(name for one in alone for name in one.read):
        values = [one.parameters[name] for one in alone if name in one.read]
        for axis in range(len(values[0].axes)):
            if len({cuts(value.axes[axis]) for value in values} - {frozenset()}) > 1:
                yield name, axis


def _read_together(traces: Sequence[Trace], strict: bool) -> Inference:
    splits: frozenset[Origin] = frozenset()
    for _ in range(MOST_RESTARTS):
        inference = Inference({}, Tape(Unifier()))
        for number, trace in enumerate(traces):
            _Interpreter(trace, number, splits, strict, inference).interpret()
        _freeze_unused(inference)
        if inference.tape.unifier.splits <= splits:
            break
        splits |= inference.tape.unifier.splits
    return inference


class _Interpreter:
    def __init__(
        self, trace: Trace, number: int, splits: frozenset[Origin], strict: bool, inference: Inference
    ) -> None:
        self.trace = trace
        self.number = number
        self.splits = splits
        self.strict = strict
        self.inference = inference
        self.tape = inference.tape
        self.values = inference.values
        self.path = ""
        self.transpositions: dict[Node, Node] = {}

    def interpret(self) -> None:
        self.transpositions = cats_of_splits(self.trace.graph)
        aside = _of_shapes_alone(self.trace.graph) | inner_nodes(self.transpositions)
        for node in self.trace.graph.nodes:
            if node in aside:
                continue
            if node.op == "placeholder":
                self.tape.unifier.cause = Cause(node.op, "")
                self.values[node] = self._placeholder(node)
            elif node.op == "output":
                self.tape.unifier.cause = Cause(node.op, "")
                self._outputs(node)
            else:
                self._inner(node)

    def _inner(self, node: Node) -> None:
        self.tape.unifier.cause = Cause(op_name(node) if node.op == "call_function" else node.op, "")
        if node.op == "call_function":
            self.values[node] = self._call(node)
        elif node.op == "get_attr":
            self.values[node] = self._fixed(node, "constant")

    def _run(self, graph: GraphModule, inputs: Sequence[NodeValue]) -> list[NodeValue]:
        """What a graph that an op holds returns."""
        rest = iter(inputs)
        outer, self.path = self.path, f"{self.path}{self.tape.cause.op}."
        cause = self.tape.unifier.cause
        outputs: Any = ()
        try:
            for node in graph.graph.nodes:
                if node.op == "placeholder":
                    self.values[node] = next(rest)
                elif node.op == "output":
                    outputs = node.args[0]
                else:
                    self._inner(node)
        finally:
            self.path, self.tape.unifier.cause = outer, cause
        items = outputs if isinstance(outputs, list | tuple) else [outputs]
        return [self.values.get(item) if isinstance(item, Node) else None for item in items]

    def _placeholder(self, node: Node) -> Value | None:
        source = self.trace.sources.get(node.name)
        example = node.meta.get("val")
        if not isinstance(example, Tensor) or source is None or shape_of(example) is None:
            return None
        if source.kind != "state":
            reason = "model input" if source.kind == "input" else f"constant {source.name}"
            value = Value(tuple(_fixed_term(int(size), source.kind, reason) for size in example.shape))
            if example.dtype == torch.bool:
                self.tape.booleans.add(value)
            positions = self.trace.positions(source.name)
            if positions is not None:
                self.tape.constants[value] = positions
            return self.tape.zero(value.axes) if self.trace.is_zero(source.name) else value
        if node.users:
            self.inference.read.add(source.name)
        if source.name not in self.inference.parameters:
            value = Value(tuple(units(int(size)) for size in example.shape))
            self.inference.parameters[source.name] = value
            sparse = example.layout is not torch.strided
            if sparse:
                self._freeze(value, Cause("", "kept sparse"))
            if sparse or not (example.is_floating_point() or example.is_complex()):
                self.tape.map(value, NONLINEAR)
        return self.inference.parameters[source.name]

    def _outputs(self, node: Node) -> None:
        outputs = node.args[0]
        assert isinstance(outputs, Sequence)
        for item, buffer in zip(outputs, self.trace.mutated, strict=True):
            value = self.values.get(item) if isinstance(item, Node) else None
            for part in _values(value):
                parameter = self.inference.parameters.get(self.trace.aliases.get(buffer, buffer)) if buffer else None
                if parameter is not None:
                    # What the next call reads stands on the units, and on the scale, of what this one read.
                    self.tape.broadcast("add", [part, parameter])
                    continue
                self._freeze(part, Cause("output", "model output" if buffer is None else f"kept in {buffer}"))
                self.tape.map(part, NONLINEAR)

    def _freeze(self, value: Value, cause: Cause) -> None:
        for term in value.axes:
            freeze(term, cause)
        if value.content is not None:
            freeze(value.content, cause)

    def _fixed(self, node: Node, reason: str) -> NodeValue:
        example = node.meta.get("val")
        op = self.tape.cause.op
        if isinstance(example, Tensor):
            return _undescribed(example, op, reason)
        if isinstance(example, list | tuple):
            return [_undescribed(item, op, reason) for item in example]
        return None

    def _call(self, node: Node) -> NodeValue:
        if node.target is operator.getitem:
            source = self.values.get(node.args[0])  # type: ignore[arg-type]
            return source[node.args[1]] if isinstance(source, list) else None  # type: ignore[index]
        example = node.meta.get("val")
        outputs = [example] if isinstance(example, Tensor) else example
        if not isinstance(outputs, list | tuple) or not any(isinstance(item, Tensor) for item in outputs):
            return None
        op = op_name(node)
        try:
            rule = RULES.get(op)
            if rule is None and not (isinstance(node.target, HigherOrderOperator) and op in SUBGRAPH_RULES):
                raise NoRuleError("no rule for this op")
            shapes = [shape_of(item) if isinstance(item, Tensor) else () for item in outputs]
            sizes = [shape for shape in shapes if shape is not None]
            if len(sizes) < len(shapes):
                raise NoRuleError("its size depends on the data")
            if rule is None:
                return self._guard(self._call_with_graphs(node, op, sizes), outputs, False, [])
            first = next(item for item in outputs if isinstance(item, Tensor))
            is_number = first.is_floating_point() or first.is_complex()
            # The same op of another trace has axes of other sizes, to be split elsewhere.
            name = f"{self.number}:{self.path}{node.name}"
            readers = [_readers(node, k, isinstance(example, Tensor)) for k in range(len(sizes))]
            split = self.transpositions.get(node)
            arguments = self._bind(node) if split is None else {"self": self._resolve(split.args[0])}
            call = Call(op, name, arguments, sizes, is_number, self.tape, self.splits, readers=readers)
            done = rule(call) if split is None else transposition(call, node, split)
            result = self._guard(done, outputs, isinstance(example, Tensor), readers)
            if first.dtype == torch.bool:
                self.tape.booleans.update(_values(result))
            return result
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

    def _call_with_graphs(self, node: Node, op: str, shapes: Sequence[tuple[int, ...]]) -> list[Value]:
        arguments = [self._resolve(raw) for raw in node.args]
        plain = Call(op, node.name, {}, list(shapes), True, self.tape, self.splits)
        return SUBGRAPH_RULES[op](SubgraphCall(arguments, shapes, self.tape, self._run, plain.number))

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
            graph = _submodule(raw)
            if graph is not None:
                return graph
            value = self.values.get(raw)
            return value if value is not None else self._resolve(raw.meta.get("val"))
        if isinstance(raw, list | tuple):
            return [self._resolve(item) for item in raw]
        if isinstance(raw, torch.SymInt):
            try:
                return int(raw)
            except GuardOnDataDependentSymNode as error:
                raise NoRuleError("a number depends on the data") from error
        return raw

    def _guard(self, result: Any, outputs: Sequence[Any], single: bool, readers: Sequence[int]) -> NodeValue:
        """A rule must return as many values as the op, each of the right shape, or None for what nobody reads."""
        values = [result] if single and not isinstance(result, list) else result
        if not isinstance(values, list) or (single and len(values) != 1) or len(values) < len(outputs):
            raise NoRuleError("the rule returns the wrong number of tensors")
        for k, (value, example) in enumerate(zip(values, outputs, strict=False)):
            if value is None and k < len(readers) and readers[k]:
                raise NoRuleError("the rule does not describe an auxiliary result")
            if value is None:
                values[k] = _undescribed(example, self.tape.cause.op, "auxiliary result")
            elif isinstance(example, Tensor) and value.shape != tuple(example.shape):
                raise NoRuleError(f"the rule returns shape {value.shape} for {tuple(example.shape)}")
        return values[0] if single else values

    def _opaque(self, node: Node, op: str, error: Exception) -> NodeValue:
        """Fix whatever the op touches: always sound."""
        refused = isinstance(error, NoRuleError)
        reason = str(error) if refused else f"rule failed ({type(error).__name__}: {error})"
        split = self.transpositions.get(node)
        inputs = node.all_input_nodes if split is None else split.all_input_nodes
        touched = [part for arg in inputs for part in _values(self.values.get(arg))]
        free = [part for part in touched if any(not leaf.frozen for term in part.axes for leaf in leaves(term))]
        if free and self.strict:
            raise SymmetryError(f"op {op} at {node.name}: {reason}; without strict=True its axes are fixed")
        for part in touched:
            self._freeze(part, Cause(op, reason))
            self.tape.map(part, NONLINEAR)
        return self._fixed(node, reason)


def _freeze_unused(inference: Inference) -> None:
    """Parts of the state that the examples leave aside, such as later positions, may matter for another."""
    tape = inference.tape
    sight = reach(tape)
    for value in inference.parameters.values():
        own = [leaf for term in value.axes for leaf in leaves(term)]
        if value not in sight.values or (own and sight.used.isdisjoint(own)):
            tape.silent.add(value)
        for leaf in own:
            if leaf not in sight.used:
                _leave_aside(tape, leaf, "not used")
    for value, units_ in sight.incomplete():
        inference.meets_zeros = True
        tape.silent.add(value)
        for leaf in units_:
            _leave_aside(tape, leaf, "met only zeros")


def _leave_aside(tape: Tape, leaf: Term, reason: str) -> None:
    freeze(leaf, Cause("", reason))
    tape.unused.add(leaf)


def _of_shapes_alone(graph: Graph) -> set[Node]:
    """Results of which only shapes are read, as in `ones_like(h[:, :1])`: nothing is done to what they are made of."""
    nodes: set[Node] = set()
    for node in reversed(graph.nodes):
        reads = (user in nodes or _reads_shape(user, node) for user in node.users)
        if node.op == "call_function" and node.users and all(reads):
            nodes.add(node)
    return nodes


def _reads_shape(user: Node, node: Node) -> bool:
    """Whether an op takes the shape of a tensor, and none of its numbers."""
    alone = user.args[:1] == (node,) and user.all_input_nodes == [node]
    return user.op == "call_function" and op_name(user) in OF_SHAPE and alone


def _submodule(node: Node) -> GraphModule | None:
    """The graph that a node stands for."""
    owner = node.graph.owning_module
    module = getattr(owner, str(node.target), None) if node.op == "get_attr" and owner is not None else None
    return module if isinstance(module, GraphModule) else None


def _readers(node: Node, k: int, single: bool) -> int:
    """How many nodes read the k-th tensor that a node returns."""
    if single:
        return len(node.users)
    return sum(len(user.users) for user in node.users if user.target is operator.getitem and user.args[1] == k)


def _fixed_term(size: int, op: str, reason: str) -> Term:
    return fixed(size, Cause(op, reason))


def _values(value: NodeValue) -> list[Value]:
    if isinstance(value, Value):
        return [value]
    if isinstance(value, Slices):
        return list(value.parts)
    return [part for item in value or [] for part in _values(item)]


def _undescribed(example: Any, op: str, reason: str) -> Value | None:
    """A tensor that no rule describes."""
    shape = shape_of(example) if isinstance(example, Tensor) else None
    return None if shape is None else Value(tuple(_fixed_term(size, op, reason) for size in shape))


def build(inference: Inference, aliases: Mapping[str, str]) -> Symmetry:
    spanning = find_scalings(inference.parameters, inference.tape)
    bases = fibres(inference.parameters, inference.tape, {factor.leaf for factor in spanning if factor.leaf})
    factors = independent(spanning, inference.parameters, bases)
    unit_names = _names(inference, bases, factors)
    inference.names = {name: leaf for leaf, name in unit_names.items()}
    values = {name: inference.parameters[first] for name, first in aliases.items() if first in inference.parameters}
    axes = {name: tuple(_simplify(_axis(term, unit_names)) for term in value.axes) for name, value in values.items()}
    sets = {
        name: IndexSet(name, leaf.size, tuple(unit_names[base] for base in bases.get(leaf, ())), not leaf.frozen)
        for leaf, name in unit_names.items()
    }
    tied: dict[str, list[str]] = {}
    for name, first in aliases.items():
        tied.setdefault(first, []).append(name)
    scalings = tuple(factor.scaling(k, unit_names, sets, tied) for k, factor in enumerate(factors))
    outer = {base for bases_of in bases.values() for base in bases_of}
    turning = [
        one.group(unit_names, sets, inference.parameters, tied)
        for one in find_matrices(inference.parameters, inference.tape, outer)
    ]
    matrices = [group for group in turning if foldable(group, scalings)]
    fixed = [
        FixedAxis(name, d, leaf.size, leaf.cause.op, leaf.cause.reason)
        for name, value in values.items()
        for d, term in enumerate(value.axes)
        for leaf in leaves(term)
        if leaf.cause is not None
    ]
    notes = tuple(dict.fromkeys(inference.tape.notes))
    conditional = frozenset(name for leaf, name in unit_names.items() if leaf in inference.tape.conditional)
    return Symmetry(
        sets,
        axes,
        scalings,
        tuple(dict.fromkeys(fixed)),
        notes=notes,
        conditional=conditional,
        matrices=(*matrices, *phases(scalings, axes, sets)),
        blocked=tuple(group for group in turning if group not in matrices),
    )


def _names(inference: Inference, bases: Bases, factors: list[Factor]) -> dict[Term, str]:
    """Name every unit set after the first module that produces it."""
    fixed_but_used = {base for outer in bases.values() for base in outer} | {factor.leaf for factor in factors}
    producers: dict[Term, str] = {}
    for name, value in inference.parameters.items():
        for term in value.axes:
            for leaf in leaves(term):
                if not leaf.frozen or leaf in fixed_but_used:
                    producers.setdefault(leaf, name)
    # A leaf first met on an input axis is named after its producer, if some tensor has it on axis 0.
    for name, value in inference.parameters.items():
        for leaf in leaves(value.axes[0]) if value.axes and name.endswith("weight") else []:
            if leaf in producers and not _on_first_axis(inference, producers[leaf], leaf):
                producers[leaf] = name
    by_module: dict[str, list[Term]] = {}
    for leaf, tensor in producers.items():
        by_module.setdefault(tensor.rpartition(".")[0] or tensor, []).append(leaf)
    names: dict[Term, str] = {}
    for module, produced in by_module.items():
        for k, leaf in enumerate(produced):
            names[leaf] = module if len(produced) == 1 else f"{module}[{k}]"
    return {leaf: names[leaf] for leaf in producers}


def _on_first_axis(inference: Inference, tensor: str, leaf: Term) -> bool:
    axes = inference.parameters[tensor].axes
    return bool(axes) and leaf in leaves(axes[0])


def _axis(term: Term, names: Mapping[Term, str]) -> Axis:
    term = find(term)
    if term.kind == "units":
        return Units(names[term], term.size) if term in names else Fixed(term.size)
    inner = tuple(_axis(child, names) for child in parts(term) if term.kind != "product" or find(child).size != 1)
    if len(inner) == 1:
        return inner[0]
    return COMPOSITES[term.kind](inner)


def _simplify(axis: Axis) -> Axis:
    """Join neighbouring fixed factors and blocks, which say nothing apart."""
    if isinstance(axis, Units) or not isinstance(axis, Product | Concat | Interleave):
        return axis
    parts = [_simplify(part) for part in axis.parts]
    if all(isinstance(part, Fixed) for part in parts):
        return Fixed(axis.size)
    if isinstance(axis, Interleave):
        return Interleave(tuple(parts))
    merged: list[Axis] = []
    for part in parts:
        if merged and isinstance(part, Fixed) and isinstance(merged[-1], Fixed):
            size = merged[-1].size * part.size if isinstance(axis, Product) else merged[-1].size + part.size
            merged[-1] = Fixed(size)
        else:
            merged.append(part)
    return type(axis)(tuple(merged))
