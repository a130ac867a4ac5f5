"""The tape: what a model computes, as a short list of primitive steps over indexed values.

Rules translate ops into steps. Each step names the axes of its operands with letters, as in an einsum: equal
letters index the same units. Three analyses read the tape: permutations (done while it is written, by
unification), independent permutations per head or group (`fibres`), and rescalings (`scaling`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from coset.symmetries.terms import Cause, Term, Unifier, find, fixed, freeze, units

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
class Exploded:
    """A tensor whose blocks along ``axis`` index unrelated units, such as a fused (3, heads, dim) projection."""

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


@dataclass(frozen=True)
class Lookup:
    """An axis of which each result entry sees one position: a constant, or what ``index`` says at its letters."""

    index: Value | int
    letters: tuple[Letter, ...] = ()


@dataclass(frozen=True)
class Step:
    """One primitive.

    kind
        multiply: product of powers of the operands, summed over letters absent from the result
        add: sum, maximum or choice among operands, all on one scale
        map: a unary function with a :class:`Law`, joint over the letters ``over``; it ``mixes`` them if
        entries along them are added up, so that their signs must agree
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
    lookups: Mapping[Letter, Lookup] = field(default_factory=dict)


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
    """Writes steps and unifies the terms of equal letters as it goes."""

    unifier: Unifier = field(default_factory=Unifier)
    steps: list[Step] = field(default_factory=list)
    offsets: dict[Value, float] = field(default_factory=dict)
    zeros: set[Value] = field(default_factory=set)
    unused: set[Term] = field(default_factory=set)
    silent: set[Value] = field(default_factory=set)
    constants: dict[Value, list[int]] = field(default_factory=dict)

    @property
    def cause(self) -> Cause:
        return self.unifier.cause

    def fix(self, term: Term, reason: str) -> None:
        freeze(term, Cause(self.cause.op, reason))

    def fixed(self, size: int, reason: str) -> Term:
        return fixed(size, Cause(self.cause.op, reason))

    def unify(self, a: Term, b: Term) -> None:
        self.unifier.unify(a, b)

    def _join(self, ins: Sequence[Operand]) -> dict[Letter, Term]:
        """Unify equal letters; an axis of size one broadcasts and says nothing."""
        terms: dict[Letter, Term] = {}
        for operand_ in ins:
            for segment in operand_.segments:
                known = terms.get(segment.letter)
                if known is None or find(known).size == 1:
                    terms[segment.letter] = segment.term
                elif find(segment.term).size != 1:
                    self.unify(known, segment.term)
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
        lookups: Mapping[Letter, Lookup] | None = None,
    ) -> Value:
        operands = tuple(operand(value, letters) for value, letters in ins)
        terms = {**self._join(operands), **(fresh or {})}
        result = Value(tuple(terms[letter] for letter in out))
        self.steps.append(
            Step(
                kind=kind,
                op=self.cause.op,
                ins=operands,
                outs=(operand(result, out),),
                powers=powers,
                law=law,
                over=over,
                mixes=mixes,
                approximate=approximate,
                lookups=lookups or {},
            )
        )
        return result

    def multiply(
        self,
        ins: Sequence[tuple[Value, Sequence[Letter]]],
        out: Sequence[Letter],
        powers: Sequence[float] | None = None,
        fresh: Mapping[Any, Term] | None = None,
        lookups: Mapping[Letter, Lookup] | None = None,
    ) -> Value:
        """A product of (powers of) operands, summed over the letters that ``out`` lacks: any einsum."""
        return self._emit("multiply", ins, out, fresh, powers=tuple(powers or [1.0] * len(ins)), lookups=lookups)

    def add(self, ins: Sequence[tuple[Value, Sequence[Letter]]], out: Sequence[Letter]) -> Value:
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
    ) -> Value:
        """A unary op. ``over`` lists axes whose entries are used jointly, as softmax and norms do."""
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
        )

    def move(
        self, ins: Sequence[Operand], outs: Sequence[Operand], lookups: Mapping[Letter, Lookup] | None = None
    ) -> None:
        """Record a rearrangement; the caller has already unified what must be."""
        self.steps.append(Step("move", self.cause.op, tuple(ins), tuple(outs), lookups=lookups or {}))

    def broadcast(
        self, kind: Literal["multiply", "add"], values: Sequence[Value], powers: Sequence[float] = ()
    ) -> Value:
        """An elementwise op with NumPy broadcasting."""
        rank = max(len(value.axes) for value in values)
        ins = [(value, list(range(rank - len(value.axes), rank))) for value in values]
        fresh: dict[Letter, Term] = {letter: units(1) for letter in range(rank)}
        operands = [operand(value, letters) for value, letters in ins]
        fresh.update(self._join(operands))
        return self._emit(kind, ins, list(range(rank)), fresh, powers=tuple(powers))

    def zero(self, axes: Sequence[Term]) -> Value:
        """A block of zeros: any order of its axes and any factor leave it alone."""
        value = Value(tuple(axes))
        self.zeros.add(value)
        return value
