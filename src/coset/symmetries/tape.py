"""The tape: what a model computes, as a short list of primitive steps over indexed values.

Rules translate ops into steps. Each step names the axes of its operands with letters, as in an einsum: equal
letters index the same units. Four analyses read the tape: permutations (done while it is written, by
unification), independent permutations per head or group (`fibres`), rescalings (`scaling`), and matrices (`matrices`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from coset.core.errors import SymmetryError
from coset.symmetries.terms import Cause, Origin, Term, Unifier, concat, find, fixed, freeze, product, units

Letter = Hashable
Effect = Literal["pass", "pin", "kill"]


@dataclass(eq=False)
class Value:
    """A tensor seen through its axes. ``content`` is set when its entries are themselves positions on an axis."""

    axes: tuple[Term, ...]
    content: Term | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(term.size for term in self.axes)


@dataclass(eq=False)
class Slices:
    """A tensor whose slices along ``axis`` index unrelated units, such as a fused (3, heads, dim) projection."""

    axis: int
    parts: tuple[Value, ...]

    @property
    def widths(self) -> list[int]:
        return [part.shape[self.axis] for part in self.parts]

    @property
    def shape(self) -> tuple[int, ...]:
        rest = self.parts[0].shape
        return (*rest[: self.axis], sum(self.widths), *rest[self.axis + 1 :])


@dataclass(frozen=True)
class Law:
    """What a unary op does to a positive factor and to a sign of its argument.

    pass: f(c x) = c f(x);  kill: f(c x) = f(x);  pin: neither, so c must be 1.
    """

    positive: Effect
    sign: Effect

    @property
    def additive(self) -> bool:
        """Whether it is f(x + y) = f(x) + f(y), too, at power one: `LINEAR`."""
        return self.positive == self.sign == "pass"


LINEAR = Law("pass", "pass")
HOMOGENEOUS = Law("pass", "pin")
ODD = Law("pin", "pass")
EVEN = Law("pin", "kill")
MAGNITUDE = Law("pass", "kill")
NONLINEAR = Law("pin", "pin")
NORMALISING = Law("kill", "pass")
THRESHOLD = Law("kill", "pin")


@dataclass(frozen=True)
class Segment:
    """A run of positions of one axis of an operand.

    A letter may run on over several segments of an operand: the units below them are matched in order.
    """

    axis: int
    letter: Letter
    term: Term


@dataclass(frozen=True)
class Operand:
    """A value with letters; the segments cover its axes in order."""

    value: Value
    segments: tuple[Segment, ...]


@dataclass
class Ranking:
    """Positions of units told by the rank of their scores.

    Args:
        op: That ranks.
        scores: What is ranked.
        axis: Along which axis.
        values: The scores in order, where the op gives them.
        places: The positions.
        readers: How many ops read the positions.
        restored: How many of these put the values back where they were, among zeros.
    """

    op: str
    scores: Value
    axis: int
    values: Value | None
    places: Value
    readers: int
    restored: int = 0

    @property
    def harmless(self) -> bool:
        """Whether it does not matter which of several zeros was taken."""
        return self.restored == self.readers


@dataclass(frozen=True)
class Lookup:
    """An axis of which each result entry sees one position: a constant, or what ``index`` says at its letters."""

    index: Value | int
    letters: tuple[Letter, ...] = ()


@dataclass(frozen=True)
class Primitive:
    """One primitive.

    kind
        multiply: product of powers of the operands, summed over letters absent from the result
        add: sum, maximum or choice among operands, all on one scale
        map: a unary function with a :class:`Law`, joint over the letters ``over``; it ``mixes`` them if
        entries along them are added up, so that their signs must agree; it is ``isotropic`` if it turns with
        its operand when that is rotated along them, about the vector of ones if it mixes
        move: the same numbers in another arrangement
    """

    kind: Literal["multiply", "add", "map", "move"]
    op: str
    ins: tuple[Operand, ...]
    outs: tuple[Operand, ...]
    powers: tuple[float, ...] = ()
    law: Law = LINEAR
    over: frozenset[Letter] = frozenset()
    mixes: bool = False
    approximate: bool = False
    isotropic: bool = False
    lookups: Mapping[Letter, Lookup] = field(default_factory=dict)

    @property
    def keeps_zero(self) -> bool:
        """Whether a function of one operand is zero at zero: so it is if it lets a positive factor or a sign pass."""
        passes = "pass" in (self.law.positive, self.law.sign) and self.law.positive != "kill"
        return passes and not self.approximate and self.powers[0] > 0

    def is_zero(self, zeros: Sequence[bool]) -> bool:
        """Whether the result is zero.

        Args:
            zeros: Whether each operand is.
        """
        if self.kind == "multiply":
            return any(zero and power > 0 for zero, power in zip(zeros, self.powers, strict=True))
        return all(zeros) and (self.kind != "map" or self.keeps_zero)


def operand(value: Value, letters: Sequence[Letter]) -> Operand:
    pairs = zip(letters, value.axes, strict=True)
    return Operand(value, tuple(Segment(axis, letter, term) for axis, (letter, term) in enumerate(pairs)))


def with_row(value: Value, axis: int, row: Sequence[Segment]) -> Operand:
    """An operand with its axes as letters, but for one that is a row of segments."""
    segments: list[Segment] = []
    for d, term in enumerate(value.axes):
        segments += row if d == axis else [Segment(d, d, term)]
    return Operand(value, tuple(segments))


@dataclass
class Tape:
    """Writes steps and unifies the terms of equal letters as it goes.

    Args:
        unifier: Makes terms equal.
        steps: What was written.
        offsets: Running variances -> the epsilon that is added to them.
        statistics: Running means and variances, which may be measured again: no factor then moves them.
        zeros: Values that are made as zeros, which any factor leaves alone.
        vanishing: Values that are zero whatever the weights and inputs: zeros, and what is computed from them alone.
        unused: Units of the state that have no factor, as no step reads them, or one that is not known.
        silent: Tensors of the state that have no factor as a whole, as no step reads them, or only in part.
        constants: Index tensors that the model holds -> their entries.
        booleans: Values whose entries are true or false.
        tables: Index tensor and number of rows -> the rows that it looks up.
        rankings: Positions told by rank, which equal scores may leave open.
        padded: Looked-up rows of which one may be zero.
        conditional: Units that are interchangeable where the scores that rank them differ.
        notes: What users should know of the result, in a sentence each.
    """

    unifier: Unifier = field(default_factory=Unifier)
    steps: list[Primitive] = field(default_factory=list)
    offsets: dict[Value, float] = field(default_factory=dict)
    statistics: set[Value] = field(default_factory=set)
    zeros: set[Value] = field(default_factory=set)
    vanishing: set[Value] = field(default_factory=set)
    unused: set[Term] = field(default_factory=set)
    silent: set[Value] = field(default_factory=set)
    constants: dict[Value, list[int]] = field(default_factory=dict)
    booleans: set[Value] = field(default_factory=set)
    tables: dict[tuple[Value, int], Term] = field(default_factory=dict)
    rankings: list[Ranking] = field(default_factory=list)
    padded: set[Value] = field(default_factory=set)
    conditional: set[Term] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    @property
    def cause(self) -> Cause:
        """The op that is being read."""
        return self.unifier.cause

    def producer(self, value: Value) -> Primitive | None:
        """The step that wrote a value, if any.

        Args:
            value: What it wrote.
        """
        return next((step for step in reversed(self.steps) if any(o.value is value for o in step.outs)), None)

    def fix(self, term: Term, reason: str) -> None:
        """The order of this axis matters.

        Args:
            term: What the axis indexes.
            reason: Why, in a few words that users see.
        """
        freeze(term, Cause(self.cause.op, reason))

    def fixed(self, size: int, reason: str) -> Term:
        """A new axis whose order matters.

        Args:
            size: How many positions it has.
            reason: Why, in a few words that users see.
        """
        return fixed(size, Cause(self.cause.op, reason))

    def unify(self, a: Term, b: Term) -> None:
        """Two axes index the same units.

        Args:
            a: What one indexes.
            b: What the other indexes.
        """
        self.unifier.unify(a, b)

    def _join(self, ins: Sequence[Operand]) -> dict[Letter, Term]:
        """Unify equal letters; an axis of size one broadcasts and says nothing."""
        terms: dict[Letter, Term] = {}
        for operand_ in ins:
            for segment in operand_.segments:
                first = terms.get(segment.letter)
                if first is None or find(first).size == 1:
                    terms[segment.letter] = segment.term
                elif find(segment.term).size != 1:
                    self.unify(first, segment.term)
        return terms

    def _emit(
        self,
        kind: Literal["multiply", "add", "map"],
        ins: Sequence[tuple[Value, Sequence[Letter]]],
        out: Sequence[Letter],
        fresh: Mapping[Any, Term] | None = None,
        *,
        powers: tuple[float, ...] = (),
        law: Law = LINEAR,
        over: frozenset[Letter] = frozenset(),
        mixes: bool = False,
        approximate: bool = False,
        isotropic: bool = False,
        lookups: Mapping[Letter, Lookup] | None = None,
    ) -> Value:
        operands = tuple(operand(value, letters) for value, letters in ins)
        terms = {**self._join(operands), **(fresh or {})}
        result = Value(tuple(terms[letter] for letter in out))
        self._write(
            Primitive(
                kind=kind,
                op=self.cause.op,
                ins=operands,
                outs=(operand(result, out),),
                powers=powers,
                law=law,
                over=over,
                mixes=mixes,
                approximate=approximate,
                isotropic=isotropic,
                lookups=lookups or {},
            )
        )
        return result

    def _write(self, step: Primitive) -> None:
        self.steps.append(step)
        if step.is_zero([operand_.value in self.vanishing for operand_ in step.ins]):
            self.vanishing.update(operand_.value for operand_ in step.outs)

    def multiply(
        self,
        ins: Sequence[tuple[Value, Sequence[Letter]]],
        out: Sequence[Letter],
        powers: Sequence[float] | None = None,
        fresh: Mapping[Any, Term] | None = None,
        lookups: Mapping[Letter, Lookup] | None = None,
    ) -> Value:
        """A product of (powers of) operands, summed over the letters that `out` lacks: any einsum.

        Args:
            ins: Operands, each with a letter for each axis; equal letters index the same units.
            out: The letters of the result.
            powers: Of the operands; 1 when None.
            fresh: Letters of the result that no operand has, with what they index.
            lookups: Letters of axes of which only one position is seen by each entry.
        """
        return self._emit("multiply", ins, out, fresh, powers=tuple(powers or [1.0] * len(ins)), lookups=lookups)

    def add(self, ins: Sequence[tuple[Value, Sequence[Letter]]], out: Sequence[Letter]) -> Value:
        """A sum, maximum or choice: all operands on one scale.

        Args:
            ins: Operands, each with a letter for each axis.
            out: The letters of the result.
        """
        return self._emit("add", ins, out)

    def map(
        self,
        value: Value,
        law: Law,
        *,
        letters: Sequence[Letter] | None = None,
        out: Sequence[Letter] | None = None,
        over: Sequence[int] = (),
        power: float = 1.0,
        fresh: Mapping[Any, Term] | None = None,
        mixes: bool = False,
        approximate: bool = False,
        isotropic: bool = False,
    ) -> Value:
        """A function of one operand.

        Args:
            value: The operand.
            law: What becomes of a factor or a sign of it.
            letters: Of its axes; their numbers when None.
            out: The letters of the result, those of the operand when None; what it lacks is reduced.
            over: Axes whose entries are used jointly, as softmax and norms do.
            power: The result is of this power in the operand.
            fresh: Letters of the result that the operand lacks, with what they index.
            mixes: Whether entries along `over` are added up, so that their signs must agree.
            approximate: Whether a small constant, such as the epsilon of a norm, breaks the law a little.
            isotropic: Whether rotating the operand along `over` rotates the result, or leaves it alone where it lacks
                these axes: a function of lengths, besides of the mean if it mixes.
        """
        letters = list(range(len(value.axes))) if letters is None else letters
        return self._emit(
            "map",
            [(value, letters)],
            letters if out is None else out,
            fresh,
            powers=(power,),
            law=law,
            over=frozenset(letters[axis] for axis in over),
            mixes=mixes,
            approximate=approximate,
            isotropic=isotropic,
        )

    def move(
        self, ins: Sequence[Operand], outs: Sequence[Operand], lookups: Mapping[Letter, Lookup] | None = None
    ) -> None:
        """The same numbers in another arrangement; the caller has already unified what must be.

        Args:
            ins: Operands, whose segments have letters.
            outs: Results, in which the same letters stand for the same positions.
            lookups: Letters of axes of which only one position is kept.
        """
        self._write(Primitive("move", self.cause.op, tuple(ins), tuple(outs), lookups=lookups or {}))

    def broadcast(
        self, kind: Literal["multiply", "add"], values: Sequence[Value], powers: Sequence[float] = ()
    ) -> Value:
        """An elementwise op with NumPy broadcasting.

        Args:
            kind: Whether the operands are multiplied or added.
            values: The operands.
            powers: Of the operands of a product.
        """
        rank = max(len(value.axes) for value in values)
        if kind == "add":
            # Zero has any factor, a different one for each unit as well.
            whole = next(value for value in values if len(value.axes) == rank)
            values = [self.zero(whole.axes) if value in self.zeros and not value.axes else value for value in values]
        ins = [(value, list(range(rank - len(value.axes), rank))) for value in values]
        fresh: dict[Letter, Term] = {letter: units(1) for letter in range(rank)}
        operands = [operand(value, letters) for value, letters in ins]
        fresh.update(self._join(operands))
        return self._emit(kind, ins, list(range(rank)), fresh, powers=tuple(powers))

    def zero(self, axes: Sequence[Term]) -> Value:
        """A tensor of zeros: any order of its axes and any factor leave it alone.

        Args:
            axes: What they index.
        """
        value = Value(tuple(axes))
        self.zeros.add(value)
        self.vanishing.add(value)
        return value


Result = Value | Slices | list[Any]
NodeValue = Result | None
"""What stands at a node of the graph; None for what is no tensor."""
Rule = Callable[["Call"], Result]

RULES: dict[str, Rule] = {}


class NoRuleError(Exception):
    """The op, or this use of it, has no rule; what it touches is fixed."""


def rule(ops: str | Iterable[str]) -> Callable[[Rule], Rule]:
    """Register the rule of a family of ops: a function from a `Call` to the value that the op returns, or a list.

    Args:
        ops: One name or several: of an ATen op its own (`"cdist"`), of an op of another library with its namespace
            (`"mylib::cdist"`).

    Raises:
        SymmetryError: If an op has another rule already.

    Example:
        >>> @coset.tape.rule("mylib::twice")
        ... def twice(call: coset.tape.Call) -> coset.tape.Value:
        ...     return call.tape.map(call.tensor("x"), coset.tape.LINEAR)
    """

    def register(function: Rule) -> Rule:
        for name in [ops] if isinstance(ops, str) else ops:
            # Defined again, as in a notebook, it takes the place of its former self.
            before = RULES.get(name, function)
            if (before.__module__, before.__qualname__) != (function.__module__, function.__qualname__):
                raise SymmetryError(
                    f"The op {name!r} has a rule already, {before.__qualname__} of {before.__module__}."
                )
            RULES[name] = function
        return function

    return register


@dataclass
class Call:
    """The arguments of one op by their schema names, with tensors replaced by values.

    Args:
        op: Its name.
        node: The node of the graph.
        arguments: By name.
        shapes: The shape of each tensor that the op returns.
        floating: Whether the first of these is.
        tape: What the rule writes to.
        splits: Splits of axes that are to be made as slices.
        readers: How many ops read each tensor that the op returns.
    """

    op: str
    node: str
    arguments: dict[str, Any]
    shapes: list[tuple[int, ...]]
    floating: bool
    tape: Tape
    splits: frozenset[Origin]
    readers: Sequence[int] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the first tensor that the op returns."""
        return self.shapes[0]

    def has(self, name: str) -> bool:
        """Whether an argument is there and not None."""
        return self.arguments.get(name) is not None

    def get(self, name: str, default: Any = None) -> Any:
        """An argument that is no tensor, or the default where it is None."""
        argument = self.arguments.get(name)
        return default if argument is None else argument

    def raw(self, name: str) -> Value | Slices:
        """A tensor argument as it is; for rules that know about index contents and slices."""
        argument = self.arguments[name]
        if not isinstance(argument, Value | Slices):
            raise NoRuleError(f"{name} is not a tensor")
        return argument

    def whole(self, name: str) -> Value:
        """A tensor argument whose index content, if any, the rule handles itself."""
        return self.as_value(self.raw(name))

    def tensor(self, name: str) -> Value:
        """A tensor argument used as numbers."""
        return self.number(self.raw(name))

    def maybe(self, name: str) -> Value | None:
        """An optional tensor argument, used as numbers."""
        return self.tensor(name) if self.has(name) else None

    def tensors(self, name: str) -> list[Value]:
        """A list of tensors, used as numbers."""
        return [self.number(item) for item in self.arguments[name]]

    def values(self) -> list[Value | Slices]:
        """All tensor arguments, in the order of the schema."""
        return [
            entry
            for item in self.arguments.values()
            for entry in (item if isinstance(item, list | tuple) else [item])
            if isinstance(entry, Value | Slices)
        ]

    def number(self, value: Value | Slices) -> Value:
        """A tensor used as numbers: if its entries are positions on an axis, that axis is fixed."""
        whole = self.as_value(value)
        if whole.content is not None:
            freeze(whole.content, Cause(self.op, "a unit's number is used as a value"))
        return whole

    def as_value(self, value: Value | Slices) -> Value:
        """Slices as one tensor: on the other axes they all index the same units."""
        return value if isinstance(value, Value) else self.join(value.parts, value.axis)

    def join(self, values: Sequence[Value], axis: int) -> Value:
        """Blocks one after the other along ``axis``."""
        first = values[0]
        contents = [value.content for value in values if value.content is not None]
        for value in values[1:]:
            for d in range(len(first.axes)):
                if d != axis:
                    self.tape.unify(first.axes[d], value.axes[d])
        for content in contents:
            if len(contents) < len(values):
                freeze(content, Cause(self.op, "a unit's number is used as a value"))
            self.tape.unify(contents[0], content)
        whole = concat([value.axes[axis] for value in values])
        indices = contents[0] if len(contents) == len(values) else None
        result = Value((*first.axes[:axis], whole, *first.axes[axis + 1 :]), indices)
        letters: list[Letter] = list(range(len(first.axes)))
        ins = [operand(v, [*letters[:axis], ("block", k), *letters[axis + 1 :]]) for k, v in enumerate(values)]
        row = [Segment(axis, ("block", k), value.axes[axis]) for k, value in enumerate(values)]
        self.tape.move(ins, [with_row(result, axis, row)])
        return result

    def cuts(self, axis: int) -> list[int]:
        """Where axis ``axis`` of the result is to be cut into slices."""
        here = (origin for origin in self.splits if origin.node == self.node and origin.axis == axis)
        return sorted({point for origin in here for point in origin.points})

    def axis(self, name: str, rank: int, default: int | None = None) -> int:
        """A ``dim`` argument as one non-negative axis."""
        d = self.get(name, default)
        if not isinstance(d, int):
            raise NoRuleError(f"{name} is {d!r}")
        return d % max(rank, 1)

    def axes(self, name: str, rank: int, default: Sequence[int] | None = None) -> list[int]:
        """A ``dim`` argument as sorted non-negative axes; none given means the default, or all."""
        dims = self.get(name, default)
        if dims is None or dims == []:
            return list(range(rank))
        return sorted({d % max(rank, 1) for d in ([dims] if isinstance(dims, int) else dims)})

    def fresh(self, shape: Sequence[int], reason: str) -> Value:
        """A value whose order is fixed on every axis."""
        return Value(tuple(self.tape.fixed(size, reason) for size in shape))

    def regroup(
        self,
        value: Value,
        axes: Sequence[Sequence[Term]],
        content: Term | None = None,
        lost: tuple[Container[int], Container[int]] = ((), ()),
    ) -> Value:
        """A value with the same factors in the same order, grouped into other axes.

        ``lost``: axes before and after between which no correspondence is left.
        """
        result = Value(tuple(product(group) for group in axes), content)
        before = ["before" if d in lost[0] else "*" for d in range(len(value.axes))]
        after = ["after" if d in lost[1] else "*" for d in range(len(result.axes))]
        self.tape.move([operand(value, before)], [operand(result, after)])
        return result
