"""Where units stand in a value: addresses that let steps be compared slot by slot once inference is done."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from coset.symmetries.tape import Letter, Operand, Value
from coset.symmetries.terms import Term, find, leaves, parts


@dataclass(frozen=True)
class Slot:
    """The n-th occurrence of some units on an axis of a value."""

    axis: int
    leaf: Term
    occurrence: int


Address = tuple[Letter, Term, int]


@dataclass
class SlotTable:
    """All slots of a value; ``near`` maps a slot to those it forms a product with on its own axis."""

    slots: list[Slot] = field(default_factory=list)
    near: dict[Slot, list[Slot]] = field(default_factory=lambda: defaultdict(list))
    plain: list[Slot] = field(default_factory=list)

    @classmethod
    def of(cls, value: Value) -> SlotTable:
        table = cls()
        for axis, term in enumerate(value.axes):
            counts: dict[Term, int] = defaultdict(int)
            _, direct = table._walk(term, axis, counts)
            table.plain += direct
        return table

    def _walk(self, term: Term, axis: int, counts: dict[Term, int]) -> tuple[list[Slot], list[Slot]]:
        """(all slots below, those not under a concat)."""
        term = find(term)
        if term.size == 1:
            return [], []
        if term.kind == "units":
            slot = Slot(axis, term, counts[term])
            counts[term] += 1
            self.slots.append(slot)
            return [slot], [slot]
        below = [self._walk(child, axis, counts) for child in parts(term)]
        everything = [slot for slots, _ in below for slot in slots]
        if term.kind != "product":
            return everything, []
        for i, (slots, _) in enumerate(below):
            for j, (_, direct) in enumerate(below):
                if i != j:
                    for slot in slots:
                        self.near[slot] += direct
        return everything, [slot for _, direct in below for slot in direct]

    def companion(self, slot: Slot, base: Term) -> Slot | None:
        """The one slot of ``base`` that goes with ``slot``: on its own axis, else the only one elsewhere."""
        near = [other for other in self.near[slot] if other.leaf is base]
        if near:
            return near[0] if len(near) == 1 else None
        far = [other for other in self.plain if other.leaf is base and other.axis != slot.axis]
        return far[0] if len(far) == 1 else None


def addresses(operand: Operand) -> Iterator[tuple[Address, Slot]]:
    """Each slot of an operand with the letter it stands under and its place among equals there."""
    on_axis: dict[tuple[int, Term], int] = defaultdict(int)
    on_letter: dict[tuple[Letter, Term], int] = defaultdict(int)
    for segment in operand.segments:
        for leaf in leaves(segment.term):
            slot = Slot(segment.axis, leaf, on_axis[segment.axis, leaf])
            on_axis[segment.axis, leaf] += 1
            address = (segment.letter, leaf, on_letter[segment.letter, leaf])
            on_letter[segment.letter, leaf] += 1
            yield address, slot


def cells(value: Value) -> list[tuple[Slot, ...]]:
    """The blocks of a tensor, each as the slots that index it: all combinations of one block per axis."""
    rows: list[tuple[Slot, ...]] = [()]
    for axis, term in enumerate(value.axes):
        rows = [(*row, *atom) for row in rows for atom in _atoms(term, axis, defaultdict(int))]
    return rows


def _atoms(term: Term, axis: int, counts: dict[Term, int]) -> list[tuple[Slot, ...]]:
    term = find(term)
    if term.kind == "units":
        counts[term] += 1
        return [(Slot(axis, term, counts[term] - 1),)] if term.size > 1 else [()]
    inner = [_atoms(child, axis, counts) for child in parts(term)]
    if term.kind != "product":
        return [atom for atoms in inner for atom in atoms]
    rows: list[tuple[Slot, ...]] = [()]
    for atoms in inner:
        rows = [(*row, *atom) for row in rows for atom in atoms]
    return rows
