"""Rescalings and sign flips of units that leave the function unchanged.

Under a rescaling each entry of each tensor is multiplied by a factor. Its logarithm is a sum of unknowns, one
function per slot of units plus one number for the whole tensor. Every step of the tape gives linear
equations between those of its operands and its result; what remains free is the scaling symmetry. Signs obey
the same equations modulo two, with odd functions in place of homogeneous ones.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from coset.symmetries.fibres import Address, AxisSlot, Bases, SlotTable, addresses, cells
from coset.symmetries.group import IndexSet, ScaledAxis, Scaling, ScalingKind
from coset.symmetries.tape import Letter, Operand, Primitive, Tape, Value
from coset.symmetries.terms import Term

TINY = 1e-9
Unknown = TypeVar("Unknown", bound=Hashable)
Sum = dict[Unknown, float]


class Equations(Generic[Unknown]):
    """Expressions over unknowns that must vanish; modulo 2 for signs.

    Every equation eliminates one unknown. :meth:`reduce` rewrites an expression in the unknowns still free.
    """

    def __init__(self, modulo_two: bool = False) -> None:
        self.modulo_two = modulo_two
        self.solved: dict[Unknown, Sum[Unknown]] = {}

    def combine(self, *terms: tuple[float, Mapping[Unknown, float]]) -> Sum[Unknown]:
        out: Sum[Unknown] = {}
        for factor, expression in terms:
            for unknown, coefficient in expression.items():
                out[unknown] = out.get(unknown, 0.0) + factor * coefficient
        if self.modulo_two:
            return {unknown: 1.0 for unknown, coefficient in out.items() if round(coefficient) % 2}
        return {unknown: coefficient for unknown, coefficient in out.items() if abs(coefficient) > TINY}

    def reduce(self, expression: Mapping[Unknown, float]) -> Sum[Unknown]:
        out = self.combine((1, expression))
        while again := [unknown for unknown in out if unknown in self.solved]:
            for unknown in again:
                coefficient = out.pop(unknown, None)
                if coefficient is not None:
                    row = self.reduce(self.solved[unknown])
                    self.solved[unknown] = row
                    out = self.combine((1, out), (coefficient, row))
        return out

    def vanish(self, expression: Mapping[Unknown, float]) -> None:
        """Add the equation ``expression = 0``; the youngest unknown is eliminated."""
        rest = self.reduce(expression)
        if rest:
            pivot = next(reversed(rest))
            coefficient = rest.pop(pivot)
            self.solved[pivot] = self.combine((-1 / coefficient, rest))

    def equal(self, a: Mapping[Unknown, float], b: Mapping[Unknown, float]) -> None:
        self.vanish(self.combine((1, a), (-1, b)))


KINDS: tuple[ScalingKind, ...] = ("scaling", "sign")
Expression = Sum[int]


@dataclass
class LogFactor:
    """log factor of an entry = whole + sum over its slots."""

    whole: Expression = field(default_factory=dict)
    slots: dict[AxisSlot, Expression] = field(default_factory=dict)


@dataclass
class Factor:
    """One free unknown: the units it belongs to (None: whole tensors) and the power each slot takes of it."""

    kind: ScalingKind
    leaf: Term | None
    powers: dict[tuple[str, AxisSlot | None], float]
    offsets: dict[str, float]
    approximate: str = ""
    evaluation_only: bool = False

    @property
    def level(self) -> int:
        """0: exact in evaluation and training; 1: exact in evaluation; 2: nearly."""
        return 2 if self.approximate else int(self.evaluation_only)

    def scaling(
        self, number: int, names: Mapping[Term, str], sets: Mapping[str, IndexSet], tied: Mapping[str, list[str]]
    ) -> Scaling:
        units = names[self.leaf] if self.leaf is not None else ""
        index_set = sets.get(units, IndexSet("", 1))
        members = tuple(
            ScaledAxis(
                name,
                slot.axis if slot else None,
                power,
                self.offsets.get(tensor, 0.0),
                slot.occurrence if slot else 0,
            )
            for (tensor, slot), power in self.powers.items()
            for name in tied[tensor]
        )
        first = next(iter(self.powers))[0]
        owner = first.rpartition(".")[0] or first
        return Scaling(
            name=f"{units or owner}.{self.kind}.{number}",
            units=units,
            size=index_set.size,
            members=members,
            copies=math.prod(sets[base].size for base in index_set.over),
            over=index_set.over,
            kind=self.kind,
            exact=not self.approximate,
            note=self.approximate,
            evaluation_only=self.evaluation_only,
        )


def find_scalings(parameters: Mapping[str, Value], tape: Tape) -> list[Factor]:
    """All factors the tape leaves free, some of which others may span (see :func:`independent`)."""
    return [factor for kind in KINDS for factor in _Solver(kind, parameters, tape).factors()]


class _Solver:
    def __init__(self, kind: ScalingKind, parameters: Mapping[str, Value], tape: Tape) -> None:
        self.kind = kind
        self.parameters = parameters
        self.tape = tape
        self.equations: Equations[int] = Equations(modulo_two=kind == "sign")
        self.scales: dict[Value, LogFactor] = {}
        self.leaf_of: dict[int, Term | None] = {}
        self.loose: list[tuple[Expression, str]] = []
        self.coarse: set[tuple[Letter, Term]] = set()

    def _fresh(self, value: Value) -> LogFactor:
        scale = LogFactor(self._unknown(None))
        for slot in SlotTable.of(value).slots:
            scale.slots[slot] = self._unknown(slot.leaf)
        return scale

    def _unknown(self, leaf: Term | None) -> Expression:
        number = len(self.leaf_of)
        self.leaf_of[number] = leaf
        return {number: 1.0}

    def factors(self) -> list[Factor]:
        for value in self.parameters.values():
            scale = self.scales[value] = self._fresh(value)
            for slot, expression in scale.slots.items():
                if slot.leaf in self.tape.unused:
                    self.equations.vanish(expression)
        for value in self.tape.zeros:
            self.scales[value] = self._fresh(value)
        for step in self.tape.steps:
            self._read(step)
        for value, scale in self.scales.items():
            if value in self.tape.silent:
                self.equations.vanish(scale.whole)
        factors = self._collect()
        measured = [self.scales[value] for value in self.tape.statistics if value in self.scales]
        if self.kind == "sign" or not measured:
            return factors
        # Statistics of a batch follow its scale but for the epsilon, and gains that share a factor with them do not.
        for scale in measured:
            self._pin(scale.whole, scale.slots)
        return [*self._collect(), *(replace(factor, evaluation_only=True) for factor in factors)]

    def _scale(self, operand: Operand) -> tuple[Expression, dict[Address, Expression]]:
        scale = self.scales.get(operand.value, LogFactor())
        read: dict[tuple[int, Term], list[Address]] = defaultdict(list)
        for address, slot in addresses(operand):
            read[slot.axis, slot.leaf].append(address)
        written: dict[tuple[int, Term], list[Expression]] = defaultdict(list)
        for slot, expression in scale.slots.items():
            written[slot.axis, slot.leaf].append(expression)
        by_address: dict[Address, Expression] = {}
        for place in read.keys() | written.keys():
            names, expressions = read.get(place, []), written.get(place, [])
            if not names:
                # The axis was restructured after it was written, so its factor cannot be followed.
                self._equate({}, *expressions)
            elif len(names) == len(expressions):
                by_address.update(zip(names, expressions, strict=True))
            else:
                by_address.update(dict.fromkeys(names, self._shared(expressions, len(names))))
        for letter, leaf in self.coarse:
            names = [address for address in by_address if address[:2] == (letter, leaf)]
            if names:
                shared = self._shared([by_address.pop(name) for name in names], 1)
                by_address[letter, leaf, 0] = shared
        return scale.whole, by_address

    def _equate(self, first: Expression, *others: Expression) -> None:
        for other in others:
            self.equations.equal(first, other)

    def _shared(self, expressions: list[Expression], count: int) -> Expression:
        """What units have in common that are met so many times here, and ``count`` times there.

        As a x c + b x c is (a + b) x c, one of them stands for all. What is less clear than that has no factor.
        """
        first = expressions[0] if expressions and 1 in (count, len(expressions)) else {}
        self._equate(first, *expressions)
        return self.equations.reduce(first)

    def _write(self, operand: Operand, whole: Expression, by_address: Mapping[Address, Expression]) -> None:
        scale = LogFactor(self.equations.reduce(whole))
        for address, slot in addresses(operand):
            letter, leaf, _ = address
            source = (letter, leaf, 0) if (letter, leaf) in self.coarse else address
            scale.slots[slot] = self.equations.reduce(by_address.get(source, {}))
        self.scales[operand.value] = scale

    def _read(self, step: Primitive) -> None:
        self.coarse = _met_unevenly(step)
        ins = [self._scale(operand) for operand in step.ins]
        if not any(whole or any(slots.values()) for whole, slots in ins):
            return
        if step.kind == "multiply":
            self._multiply(step, ins)
        elif step.kind == "add":
            self._add(step, ins)
        elif step.kind == "map":
            self._map(step, *ins[0])
        else:
            self._move(step, ins)

    def _pin(self, whole: Expression, slots: Mapping[Any, Expression]) -> None:
        self.equations.vanish(whole)
        for expression in slots.values():
            self.equations.vanish(expression)

    def _power(self, power: float) -> float | None:
        """The power; None where it has no meaning for a sign."""
        return None if self.kind == "sign" and power != round(power) else power

    def _multiply(self, step: Primitive, ins: list[tuple[Expression, dict[Address, Expression]]]) -> None:
        whole: Expression = {}
        total: dict[Address, Expression] = {}
        for (part, slots), power in zip(ins, step.powers, strict=True):
            exact = self._power(power)
            if exact is None:
                self._pin(part, slots)
                continue
            whole = self.equations.combine((1, whole), (exact, part))
            for address, expression in slots.items():
                total[address] = self.equations.combine((1, total.get(address, {})), (exact, expression))
        remaining = {address for address, _ in addresses(step.outs[0])}
        for address, expression in total.items():
            if address not in remaining:
                self.equations.vanish(expression)
        self._write(step.outs[0], whole, total)

    def _add(self, step: Primitive, ins: list[tuple[Expression, dict[Address, Expression]]]) -> None:
        whole = ins[0][0]
        joint: dict[Address, Expression] = {}
        remaining = {address for address, _ in addresses(step.outs[0])}
        for part, slots in ins:
            self.equations.equal(whole, part)
            for address in remaining:
                expression = slots.get(address, {})
                self.equations.equal(joint.setdefault(address, expression), expression)
            for address in slots.keys() - remaining:
                self.equations.vanish(slots[address])
        self._write(step.outs[0], whole, joint)

    def _map(self, step: Primitive, whole: Expression, slots: dict[Address, Expression]) -> None:
        effect = step.law.positive if self.kind == "scaling" else step.law.sign
        power = self._power(step.powers[0])
        remaining = {address for address, _ in addresses(step.outs[0])}
        if effect == "pin" or power is None:
            self._pin(whole, slots)
            self._write(step.outs[0], {}, {})
            return
        mixed = [address for address in slots if address not in remaining or address[0] in step.over]
        if effect == "kill":
            if self.kind == "scaling":
                # The statistic is joint over these axes, so the factor must be one number along them.
                for address in mixed:
                    self.equations.vanish(slots[address])
                if step.approximate:
                    self.loose += [(e, step.op) for e in (whole, *slots.values())]
            elif step.mixes:
                for address in mixed:
                    self.equations.vanish(slots[address])
            self._write(step.outs[0], {}, {})
            return
        for address in mixed:
            if address not in remaining or self.kind == "scaling" or step.mixes:
                self.equations.vanish(self.equations.combine((power, slots[address])))
        if step.approximate and self.kind == "scaling":
            self.loose += [(e, step.op) for e in (whole, *slots.values())]
        scaled = {address: self.equations.combine((power, e)) for address, e in slots.items() if address in remaining}
        self._write(step.outs[0], self.equations.combine((power, whole)), scaled)

    def _move(self, step: Primitive, ins: list[tuple[Expression, dict[Address, Expression]]]) -> None:
        whole = ins[0][0]
        joint: dict[Address, Expression] = {}
        for part, slots in ins:
            self.equations.equal(whole, part)
            for address, expression in slots.items():
                self.equations.equal(joint.setdefault(address, expression), expression)
        remaining = {address for operand in step.outs for address, _ in addresses(operand)}
        letters = {segment.letter for operand in step.outs for segment in operand.segments}
        for address, expression in joint.items():
            # Blocks may be left behind whole; anything else that disappears was one of many factors.
            left_behind = isinstance(address[0], tuple) and address[0] not in letters
            if address not in remaining and not left_behind:
                self.equations.vanish(expression)
        for operand in step.outs:
            self._write(operand, whole, joint)

    def _collect(self) -> list[Factor]:
        """Express every parameter slot in the unknowns left free; one factor per free unknown."""
        offsets = {
            name: self.tape.offsets[value] for name, value in self.parameters.items() if value in self.tape.offsets
        }
        powers: dict[int, dict[tuple[str, AxisSlot | None], float]] = {}
        for name, value in self.parameters.items():
            scale = self.scales[value]
            entries: list[tuple[AxisSlot | None, Expression]] = [(None, scale.whole), *scale.slots.items()]
            for slot, expression in entries:
                for unknown, power in self.equations.reduce(expression).items():
                    powers.setdefault(unknown, {})[name, slot] = power
        loose: dict[int, str] = {}
        for expression, op in self.loose:
            for unknown in self.equations.reduce(expression):
                loose.setdefault(unknown, op)
        return [
            Factor(self.kind, self.leaf_of[unknown], by_slot, offsets, loose.get(unknown, ""))
            for unknown, by_slot in sorted(powers.items())
        ]


def _met_unevenly(step: Primitive) -> set[tuple[Letter, Term]]:
    """Units that stand once under a letter in one operand and several times in another (see `_Solver._shared`)."""
    counts: dict[tuple[Letter, Term], set[int]] = defaultdict(set)
    for operand in (*step.ins, *step.outs):
        for place, count in Counter(address[:2] for address, _ in addresses(operand)).items():
            counts[place].add(count)
    return {place for place, numbers in counts.items() if len(numbers) > 1}


def independent(factors: list[Factor], parameters: Mapping[str, Value], bases: Bases) -> list[Factor]:
    """Drop factors that others span: of whole tensors by those of units, of heads by those of their units.

    Those that hold in more modes come first, and span for the others.
    """
    places = _Places(parameters)
    units = [factor for factor in factors if factor.leaf is not None]
    units.sort(key=lambda factor: len(bases.get(factor.leaf, ())) if factor.leaf else 0, reverse=True)
    basis: list[Factor] = []
    spans: dict[tuple[ScalingKind, int, Term | None], Equations[Place]] = {}

    def span(factor: Factor, level: int, leaf: Term | None) -> Equations[Place]:
        return spans.setdefault((factor.kind, level, leaf), Equations(modulo_two=factor.kind == "sign"))

    for factor in [*units, *(f for f in factors if f.leaf is None)]:
        if not span(factor, factor.level, factor.leaf).reduce(places.action(factor, factor.leaf)):
            continue
        basis.append(factor)
        for leaf in dict.fromkeys([factor.leaf, *(bases.get(factor.leaf, ()) if factor.leaf else ()), None]):
            action = places.action(factor, leaf)
            for level in range(factor.level, 3):
                span(factor, level, leaf).vanish(action)
    return basis


Place = tuple[str, int, AxisSlot | None]


class _Places:
    """Where factors act: the blocks of tensors, and in each the slots of the units whose factors they are."""

    def __init__(self, parameters: Mapping[str, Value]) -> None:
        self.blocks = {name: cells(value) for name, value in parameters.items()}
        self.slots = {name: SlotTable.of(value) for name, value in parameters.items()}

    def action(self, factor: Factor, leaf: Term | None) -> Sum[Place]:
        """The power at each place, when all units that lie over the same unit of ``leaf`` take the same factor."""
        out: Sum[Place] = {}
        for (tensor, slot), power in factor.powers.items():
            at = slot
            if leaf is None or slot is None:
                at = None
            elif slot.leaf is not leaf:
                at = self.slots[tensor].companion(slot, leaf)
            for k, block in enumerate(self.blocks[tensor]):
                if slot is None or slot in block:
                    out[tensor, k, at] = out.get((tensor, k, at), 0.0) + power
        return out
