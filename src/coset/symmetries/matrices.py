"""Matrices that units may be multiplied by: the fourth reading of the tape.

A residual stream that is written and read by linear maps, and normed by its length, can be rotated: x -> Q x. The
queries and keys of a head can be multiplied by any matrix and its inverse, q.k = (M q).(M^-T k). For each set of units
this finds the largest of these groups that every step allows:

    GL(n)   products summed over the units, one factor multiplied by M and the other by M^-T; sums; maps that are linear
            along other axes
    O(n)    besides, lengths of vectors, and tensors on both sides of products, for which M^-T must be M
    O(n-1)  the rotations with M 1 = 1, where a mean is taken away or a number added to all units

In every value a set of units stands for a vector (M acts on it), for entries that are all equal (it does not), or for
products of the entries of two vectors, which a sum must follow. A step that needs something else fixes the axes: only
permutations, factors and signs are left.

A gain, x * g after a norm, is such a step. Where g is one it is none, so the groups are looked for once more with the
gains set to one; `coset.fold` makes them so.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from coset.symmetries.fibres import Address, AxisSlot, SlotTable, addresses
from coset.symmetries.group import (
    Axis,
    Concat,
    Fixed,
    IndexSet,
    Interleave,
    MatrixAxis,
    MatrixGroup,
    MatrixKind,
    Product,
    Scaling,
    Units,
)
from coset.symmetries.tape import Operand, Primitive, Tape, Value
from coset.symmetries.terms import Term, find

Role = Literal["vector", "products", "equal"]


@dataclass(frozen=True)
class Form:
    """What some units of a value stand for.

    side: of a vector, the unknown that says whether M or M^-T acts on it.
    """

    role: Role
    side: int = -1


EQUAL = Form("equal")
PRODUCTS = Form("products")


class Sides:
    """Which of two sides each unknown is on, from pairs that are on one side or on two."""

    def __init__(self) -> None:
        self.parents: list[int] = []
        self.flips: list[bool] = []

    def new(self) -> int:
        """An unknown of which nothing is said yet."""
        self.parents.append(len(self.parents))
        self.flips.append(False)
        return len(self.parents) - 1

    def root(self, x: int) -> tuple[int, bool]:
        """The representative of an unknown, and whether it is on the other side."""
        flip = False
        while self.parents[x] != x:
            flip ^= self.flips[x]
            x = self.parents[x]
        return x, flip

    def relate(self, x: int, y: int, apart: bool) -> bool:
        """Say that two unknowns are on one side, or `apart`; False where they cannot be."""
        (a, left), (b, right) = self.root(x), self.root(y)
        if a == b:
            return (left ^ right) == apart
        self.parents[b], self.flips[b] = a, left ^ right ^ apart
        return True


@dataclass
class MatrixUnits:
    """Units on which matrices act.

    Args:
        leaf: The units.
        kind: Which matrices.
        dual: The slots of tensors of the state on which M^-T acts; M acts on the others.
        gains: Tensors that must be one, each with the slot of the units.
    """

    leaf: Term
    kind: MatrixKind
    dual: frozenset[tuple[str, AxisSlot]] = frozenset()
    gains: dict[str, AxisSlot] = field(default_factory=dict)

    def group(
        self,
        names: Mapping[Term, str],
        sets: Mapping[str, IndexSet],
        parameters: Mapping[str, Value],
        tied: Mapping[str, list[str]],
    ) -> MatrixGroup:
        """With names in place of terms."""
        index_set = sets[names[self.leaf]]
        members = tuple(
            MatrixAxis(each, slot.axis, slot.occurrence, (name, slot) in self.dual)
            for name, value in parameters.items()
            for slot in SlotTable.of(value).slots
            if slot.leaf is self.leaf and name not in self.gains
            for each in tied[name]
        )
        copies = math.prod(sets[base].size for base in index_set.over)
        return MatrixGroup(
            index_set.name, self.kind, index_set.size, members, copies, index_set.over, tuple(self.gains)
        )


def find_matrices(parameters: Mapping[str, Value], tape: Tape, fixed: Collection[Term] = ()) -> list[MatrixUnits]:
    """The units that matrices may act on.

    Args:
        parameters: The tensors of the state.
        tape: What the model computes.
        fixed: Units that are to be left alone.
    """
    free = dict.fromkeys(
        slot.leaf
        for value in parameters.values()
        for slot in SlotTable.of(value).slots
        if not slot.leaf.frozen and slot.leaf not in tape.conditional and slot.leaf not in fixed
    )
    plain = _Reading(parameters, tape, free, {})
    again = {leaf: values for leaf, values in gains(parameters, tape).items() if leaf in plain.pinned}
    folded = _Reading(parameters, tape, dict.fromkeys(again), again)
    out: list[MatrixUnits] = []
    for leaf in free:
        reading = plain if leaf not in plain.pinned else folded
        if leaf in reading.sides and leaf not in reading.pinned:
            out += reading.matrices(leaf)
    return out


def gains(parameters: Mapping[str, Value], tape: Tape) -> dict[Term, set[Value]]:
    """Tensors with nothing but some units, by which these are multiplied one by one."""
    origins = {value: value for value in parameters.values()}
    out: dict[Term, set[Value]] = defaultdict(set)
    for step in tape.steps:
        first = origins.get(step.ins[0].value)
        if first is not None and (step.kind == "move" or (step.kind == "map" and step.op in COPIES)):
            origins.update((operand.value, first) for operand in step.outs)
        for operand in step.ins if step.kind == "multiply" else ():
            value = origins.get(operand.value)
            leaves = [slot.leaf for slot in SlotTable.of(value).slots] if value is not None else []
            if value is not None and len(leaves) == 1:
                own = {address for address, _ in addresses(operand)}
                others = [other for other in step.ins if other is not operand]
                met = {address for other in others for address, _ in addresses(other)}
                if own & met & {address for address, _ in addresses(step.outs[0])}:
                    out[leaves[0]].add(value)
    return out


class _Reading:
    """One pass over the tape, for all units at once; `equal` are the tensors that are one along the units."""

    def __init__(
        self,
        parameters: Mapping[str, Value],
        tape: Tape,
        free: Mapping[Term, None],
        equal: Mapping[Term, Collection[Value]],
    ) -> None:
        self.parameters = parameters
        self.tape = tape
        self.equal = equal
        self.sides = {leaf: Sides() for leaf in free}
        self.pinned: set[Term] = set()
        self.mean_taken: set[Term] = set()
        self.one_sided: set[Term] = set()
        self.forms: dict[Value, dict[AxisSlot, Form]] = {}
        self.own: dict[tuple[str, AxisSlot], Form] = {}
        for name, value in parameters.items():
            self.forms[value] = {}
            for slot in SlotTable.of(value).slots:
                if slot.leaf in self.sides:
                    constant = value in equal.get(slot.leaf, ())
                    form = EQUAL if constant else Form("vector", self.sides[slot.leaf].new())
                    self.forms[value][slot] = self.own[name, slot] = form
        for step in tape.steps if self.sides else ():
            self._read(step)

    def matrices(self, leaf: Term) -> list[MatrixUnits]:
        """The group of units that no step fixed, if it is not finite."""
        own = {place: form for place, form in self.own.items() if place[1].leaf is leaf}
        gains = {name: slot for (name, slot), form in own.items() if form is EQUAL}
        if leaf in self.mean_taken:
            return [MatrixUnits(leaf, "centred", gains=gains)] if leaf.size > 2 else []
        if leaf.size < 2:
            return []
        if leaf in self.one_sided:
            return [MatrixUnits(leaf, "orthogonal", gains=gains)]
        sides = self.sides[leaf]
        dual = frozenset(place for place, form in own.items() if form.side >= 0 and sides.root(form.side)[1])
        return [MatrixUnits(leaf, "linear", dual, gains)]

    def _relate(self, leaf: Term, a: Form, b: Form, apart: bool) -> None:
        if not self.sides[leaf].relate(a.side, b.side, apart):
            self.one_sided.add(leaf)

    def _live(self, operand: Operand) -> Iterator[tuple[Address, AxisSlot]]:
        for address, slot in addresses(operand):
            if address[1] in self.sides and address[1] not in self.pinned:
                yield address, slot

    def _of(self, operand: Operand) -> dict[Address, Form | None]:
        """The forms of an operand by address; None of what is made of zeros."""
        value = operand.value
        if value.content is not None and find(value.content) in self.sides:
            self.pinned.add(find(value.content))  # positions are told apart
        out: dict[Address, Form | None] = {}
        for address, slot in self._live(operand):
            leaf = address[1]
            if value in self.tape.zeros:
                out[address] = None
            elif value not in self.forms:
                # What no step makes is the same in every order of the units, so its entries are equal.
                alone = sum(other.leaf is leaf for other in SlotTable.of(value).slots) == 1
                if alone:
                    out[address] = EQUAL
                else:
                    self.pinned.add(leaf)  # a constant matrix
            elif slot in self.forms[value]:
                out[address] = self.forms[value][slot]
            else:
                self.pinned.add(leaf)  # it is not known how the units enter
        return out

    def _write(self, operand: Operand, forms: Mapping[Address, Form | None]) -> None:
        own = self.forms.setdefault(operand.value, {})
        for address, slot in self._live(operand):
            if address in forms:
                form = forms[address]
                own[slot] = EQUAL if form is None else form

    def _read(self, step: Primitive) -> None:
        ins = [self._of(operand) for operand in step.ins]
        if not any(ins) and step.kind != "move":
            for operand in step.outs:
                self.forms.setdefault(operand.value, {})
            return
        for address in {address for forms in ins for address in forms}:
            if address[0] in step.lookups:
                self.pinned.add(address[1])  # one position is looked up
        act = {"multiply": self._multiply, "add": self._add, "map": self._map, "move": self._move}
        act[step.kind](step, ins)

    def _multiply(self, step: Primitive, ins: list[dict[Address, Form | None]]) -> None:
        remaining = {address for address, _ in self._live(step.outs[0])}
        result: dict[Address, Form | None] = {}
        for address in dict.fromkeys(address for forms in ins for address in forms):
            leaf = address[1]
            present = [
                (forms[address], power) for forms, power in zip(ins, step.powers, strict=True) if address in forms
            ]
            result[address] = None
            if any(form is None for form, _ in present):
                continue
            operands = [(form, power) for form, power in present if form is not None and form.role != "equal"]
            vectors = [form for form, _ in operands if form.role == "vector"]
            if not operands:
                result[address] = EQUAL
            elif any(power != 1 for _, power in operands):
                self.pinned.add(leaf)  # a power of each unit
            elif len(operands) == len(vectors) == 1:
                result[address] = vectors[0]
                if address not in remaining:
                    self.mean_taken.add(leaf)
            elif len(operands) == len(vectors) == 2:
                self._relate(leaf, vectors[0], vectors[1], apart=True)
                result[address] = PRODUCTS
            elif len(operands) == 1:
                result[address] = PRODUCTS
            else:
                self.pinned.add(leaf)  # each unit is multiplied by several others
        self._write(step.outs[0], result)

    def _add(self, step: Primitive, ins: list[dict[Address, Form | None]]) -> None:
        remaining = {address for address, _ in self._live(step.outs[0])}
        zero = [operand.value in self.tape.zeros for operand in step.ins]
        result: dict[Address, Form | None] = {}
        for address in dict.fromkeys(address for forms in ins for address in forms):
            leaf = address[1]
            forms = [one.get(address, EQUAL) for one, nil in zip(ins, zero, strict=True) if not nil]
            present = [form for form in forms if form is not None]
            roles = {form.role for form in present}
            vectors = [form for form in present if form.role == "vector"]
            result[address] = present[0] if present else None
            if {"vector", "products"} <= roles or (address not in remaining and roles - {"equal"}):
                self.pinned.add(leaf)  # units and their products are added
            elif vectors:
                result[address] = vectors[0]
                for other in vectors[1:]:
                    self._relate(leaf, vectors[0], other, apart=False)
                if "equal" in roles:
                    self.mean_taken.add(leaf)
            elif "products" in roles:
                result[address] = PRODUCTS
        self._write(step.outs[0], result)

    def _map(self, step: Primitive, ins: list[dict[Address, Form | None]]) -> None:
        remaining = {address for address, _ in self._live(step.outs[0])}
        linear = step.law.additive and step.powers[0] == 1
        square = step.law.additive and step.powers[0] == 2
        result: dict[Address, Form | None] = {}
        for address, form in ins[0].items():
            leaf, stays, joint = address[1], address in remaining, address[0] in step.over
            result[address] = form
            if form is None or form.role == "equal":
                continue
            if linear and not (joint and stays):
                if form.role == "vector" and not stays:
                    self.mean_taken.add(leaf)
            elif form.role == "vector" and step.isotropic and joint:
                self.one_sided.add(leaf)
                if step.mixes:
                    self.mean_taken.add(leaf)
            elif form.role == "vector" and square and stays and not joint:
                self.one_sided.add(leaf)
                result[address] = PRODUCTS
            else:
                self.pinned.add(leaf)  # a function of each unit
        self._write(step.outs[0], result)

    def _move(self, step: Primitive, ins: list[dict[Address, Form | None]]) -> None:
        segments = [segment for operand in step.ins for segment in operand.segments]
        letters = {segment.letter for segment in segments if segment.term.size > 1}
        joint: dict[Address, Form | None] = {}
        for forms in ins:
            for address, form in forms.items():
                first = joint.get(address)
                if first is None:
                    joint[address] = form
                elif form is not None and first.role != form.role:
                    self.pinned.add(address[1])  # units and others in one place
                elif form is not None and form.role == "vector":
                    self._relate(address[1], first, form, apart=False)
        for operand in step.outs:
            # What no operand has is copies.
            fresh = {address: EQUAL for address, _ in self._live(operand) if address[0] not in letters}
            self._write(operand, {**fresh, **joint})


# Ops after which a tensor of the state is still what it was.
COPIES = ("to", "_to_copy", "type_as")


def phases(
    scalings: Iterable[Scaling], axes: Mapping[str, tuple[Axis, ...]], sets: Mapping[str, IndexSet]
) -> list[MatrixGroup]:
    """Pairs of units that may be turned together: candidates, which running the model confirms.

    Rotary positions turn the pair (x_i, x_{i+n}) by an angle that depends on i, so the order of pairs is fixed, and
    what is left is one complex number a pair. Its modulus is a scaling; this looks for scalings of such pairs.
    """
    groups: list[MatrixGroup] = []
    for scaling in scalings:
        if scaling.kind == "sign" or not scaling.exact or not scaling.units or sets[scaling.units].movable:
            continue
        members: list[MatrixAxis] = []
        paired = 0
        for tensor, axis in dict.fromkeys((m.tensor, m.axis) for m in scaling.members):
            if axis is None:
                continue
            own = [m for m in scaling.members if (m.tensor, m.axis) == (tensor, axis)]
            pairs = pairs_on(axes[tensor][axis], scaling.units)
            if len({m.power for m in own}) == 1 and sum(1 + (two is not None) for _, two in pairs) == len(own):
                members += [MatrixAxis(tensor, axis, one, partner=two) for one, two in pairs]
                paired += len(own)
        if members and paired == len(scaling.members):
            name, size, copies, over = scaling.units, scaling.size, scaling.copies, scaling.over
            groups.append(MatrixGroup(name, "phase", size, tuple(members), copies, over))
    return groups


def pairs_on(axis: Axis, units: str) -> list[tuple[int, int | None]]:
    """The occurrences of units that make pairs: of two neighbouring blocks or lanes, or alone if each unit has two."""
    out: list[tuple[int, int | None]] = []
    count = 0

    def walk(part: Axis) -> None:
        nonlocal count
        if isinstance(part, Units):
            count += part.name == units
        elif isinstance(part, Product):
            two = any(isinstance(one, Fixed) and one.size == 2 for one in part.parts)
            for one in part.parts:
                if two and isinstance(one, Units) and one.name == units:
                    out.append((count, None))
                walk(one)
        elif isinstance(part, Concat | Interleave):
            for k, one in enumerate(part.parts):
                is_pair = isinstance(one, Units) and one.name == units and part.parts[k + 1 : k + 2] == (one,)
                if is_pair and (not out or out[-1][1] != count):
                    out.append((count, count + 1))
                walk(one)

    walk(axis)
    return out
