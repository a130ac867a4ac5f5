"""Which units may be permuted independently for each value of another index.

The units of an attention head can be reordered head by head: the group is a wreath product. Units ``i`` are
*fibred* over ``h`` when every tensor that has an ``i`` axis, intermediate results included, also has the
``h`` axis that goes with it, and every step matches both together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field

from coset.symmetries.tape import Letter, Operand, Primitive, Tape, Value
from coset.symmetries.terms import Term, find, leaves, parts


@dataclass(frozen=True)
class AxisSlot:
    """The n-th occurrence of some units on an axis of a value."""

    axis: int
    leaf: Term
    occurrence: int


Address = tuple[Letter, Term, int]


@dataclass
class SlotTable:
    """All slots of a value; ``near`` maps a slot to those it forms a product with on its own axis."""

    slots: list[AxisSlot] = field(default_factory=list)
    near: dict[AxisSlot, list[AxisSlot]] = field(default_factory=lambda: defaultdict(list))
    plain: list[AxisSlot] = field(default_factory=list)

    @classmethod
    def of(cls, value: Value) -> SlotTable:
        table = cls()
        for axis, term in enumerate(value.axes):
            counts: dict[Term, int] = defaultdict(int)
            _, direct = table._walk(term, axis, counts)
            table.plain += direct
        return table

    def _walk(self, term: Term, axis: int, counts: dict[Term, int]) -> tuple[list[AxisSlot], list[AxisSlot]]:
        """(all slots below, those not under a concat)."""
        term = find(term)
        if term.size == 1:
            return [], []
        if term.kind == "units":
            slot = AxisSlot(axis, term, counts[term])
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

    def companion(self, slot: AxisSlot, base: Term) -> AxisSlot | None:
        """The one slot of ``base`` that goes with ``slot``: on its own axis, else the only one elsewhere."""
        near = [other for other in self.near[slot] if other.leaf is base]
        if near:
            return near[0] if len(near) == 1 else None
        far = [other for other in self.plain if other.leaf is base and other.axis != slot.axis]
        return far[0] if len(far) == 1 else None


def addresses(operand: Operand) -> Iterator[tuple[Address, AxisSlot]]:
    """Each slot of an operand with the letter it stands under and its place among equals there."""
    on_axis: dict[tuple[int, Term], int] = defaultdict(int)
    on_letter: dict[tuple[Letter, Term], int] = defaultdict(int)
    for segment in operand.segments:
        for leaf in leaves(segment.term):
            slot = AxisSlot(segment.axis, leaf, on_axis[segment.axis, leaf])
            on_axis[segment.axis, leaf] += 1
            address = (segment.letter, leaf, on_letter[segment.letter, leaf])
            on_letter[segment.letter, leaf] += 1
            yield address, slot


def cells(value: Value) -> list[tuple[AxisSlot, ...]]:
    """The blocks of a tensor, each as the slots that index it: all combinations of one block per axis."""
    rows: list[tuple[AxisSlot, ...]] = [()]
    for axis, term in enumerate(value.axes):
        rows = [(*row, *atom) for row in rows for atom in _atoms(term, axis, defaultdict(int))]
    return rows


def _atoms(term: Term, axis: int, counts: dict[Term, int]) -> list[tuple[AxisSlot, ...]]:
    term = find(term)
    if term.kind == "units":
        counts[term] += 1
        return [(AxisSlot(axis, term, counts[term] - 1),)] if term.size > 1 else [()]
    inner = [_atoms(child, axis, counts) for child in parts(term)]
    if term.kind != "product":
        return [atom for atoms in inner for atom in atoms]
    rows: list[tuple[AxisSlot, ...]] = [()]
    for atoms in inner:
        rows = [(*row, *atom) for row in rows for atom in atoms]
    return rows


Bases = dict[Term, list[Term]]


def fibres(parameters: Mapping[str, Value], tape: Tape, always: Container[Term]) -> Bases:
    """Units -> the units they are fibred over, outermost first; of frozen units those in `always`."""
    bases = {leaf: outer for leaf, outer in _candidates(parameters).items() if not leaf.frozen or leaf in always}
    carriers = {
        value: {slot.leaf for slot in SlotTable.of(value).slots if slot.leaf.frozen and slot.leaf in bases}
        for value in parameters.values()
    }
    check = _Check(bases, carriers)
    for step in tape.steps:
        for operand in (*step.ins, *step.outs):
            content = operand.value.content
            for leaf in leaves(content) if content is not None else []:
                # A unit's number is only meaningful if it is the same in every fibre.
                bases.pop(leaf, None)
        if bases:
            check.read(step)
    return _closed(bases, parameters)


def _candidates(parameters: Mapping[str, Value]) -> Bases:
    """Pairs that stand together in every parameter."""
    together: dict[Term, set[Term]] = {}
    order: dict[Term, int] = {}
    for value in parameters.values():
        table = SlotTable.of(value)
        for slot in table.slots:
            order.setdefault(slot.leaf, len(order))
            partners = {other.leaf for other in table.slots if other.leaf is not slot.leaf}
            beside = {leaf for leaf in partners if table.companion(slot, leaf) is not None}
            together[slot.leaf] = together[slot.leaf] & beside if slot.leaf in together else beside
    return {leaf: sorted(outer, key=order.__getitem__) for leaf, outer in together.items() if outer}


@dataclass(frozen=True)
class Via:
    """A companion that is not an axis any more: the base's value at an entry is looked up at these addresses."""

    index: Value | int
    places: tuple[Address, ...]


Companion = Address | Via


@dataclass
class _Check:
    """Reads the tape in order and drops the pairs that some step does not keep together.

    carriers: values -> units of a fixed order whose factors they have. In others, such as tables of rotary positions,
    these units may well stand alone.
    """

    bases: Bases
    carriers: dict[Value, set[Term]]
    tables: dict[Value, SlotTable] = field(default_factory=dict)
    lookups: dict[tuple[Value, Term], tuple[Value | int, tuple[AxisSlot, ...]]] = field(default_factory=dict)

    def read(self, step: Primitive) -> None:
        agreed: dict[tuple[Address, Term], Companion] = {}
        for operand in step.ins:
            for address, base, companion in self._companions(operand):
                companion = self._through(step, companion)
                if companion is None or agreed.setdefault((address, base), companion) != companion:
                    _drop(self.bases, address[1], base)
                elif address[0] not in step.over and any(place[0] in step.over for place in _places(companion)):
                    # A statistic over the base at fixed i, as a softmax over heads takes, mixes the fibres.
                    _drop(self.bases, address[1], base)
        carried = {leaf for operand in step.ins for leaf in self.carriers.get(operand.value, ())}
        for operand in step.outs:
            if carried:
                self.carriers[operand.value] = carried | self.carriers.get(operand.value, set())
            self._carry(operand, agreed)
            for address, base, companion in self._companions(operand):
                if companion is None or agreed.get((address, base), companion) != companion:
                    _drop(self.bases, address[1], base)

    def _through(self, step: Primitive, companion: Companion | None) -> Companion | None:
        """The companion as the result sees it, where the step looks up the base's axis."""
        if companion is None or isinstance(companion, Via) or companion[0] not in step.lookups:
            return companion
        lookup = step.lookups[companion[0]]
        index_operand = [operand for operand in step.ins[1:] if lookup.letters]
        places = [a for operand in index_operand for a, _ in addresses(operand) if a[0] in lookup.letters]
        return Via(lookup.index, tuple(dict.fromkeys(places)))

    def _carry(self, operand: Operand, agreed: Mapping[tuple[Address, Term], Companion]) -> None:
        """Remember, for a result, where its looked-up bases are to be found."""
        slots = dict(addresses(operand))
        for (address, base), companion in agreed.items():
            if not isinstance(companion, Via) or address not in slots:
                continue
            if all(place in slots for place in companion.places):
                places = tuple(slots[place] for place in companion.places)
                self.lookups[operand.value, base] = (companion.index, places)

    def _companions(self, operand: Operand) -> list[tuple[Address, Term, Companion | None]]:
        pairs = list(addresses(operand))
        if not any(address[1] in self.bases for address, _ in pairs):
            return []
        if operand.value not in self.tables:
            self.tables[operand.value] = SlotTable.of(operand.value)
        table = self.tables[operand.value]
        by_slot: dict[AxisSlot, Address] = {slot: address for address, slot in pairs}
        out: list[tuple[Address, Term, Companion | None]] = []
        for address, slot in pairs:
            if address[1].frozen and address[1] not in self.carriers.get(operand.value, ()):
                continue
            for base in self.bases.get(address[1], ()):
                companion = table.companion(slot, base)
                lookup = self.lookups.get((operand.value, base))
                if companion is not None and lookup is None:
                    out.append((address, base, by_slot.get(companion)))
                elif companion is None and lookup is not None and all(place in by_slot for place in lookup[1]):
                    out.append((address, base, Via(lookup[0], tuple(by_slot[place] for place in lookup[1]))))
                else:
                    out.append((address, base, None))
        return out


def _places(companion: Companion) -> tuple[Address, ...]:
    return companion.places if isinstance(companion, Via) else (companion,)


def _drop(bases: Bases, leaf: Term, base: Term) -> None:
    if base in bases.get(leaf, ()):
        bases[leaf] = [other for other in bases[leaf] if other is not base]
        if not bases[leaf]:
            del bases[leaf]


def _closed(bases: Bases, parameters: Mapping[str, Value]) -> Bases:
    """Keep one direction of mutual pairs, and only bases whose own bases are bases too."""
    order: dict[Term, int] = {}
    for value in parameters.values():
        for term in value.axes:
            for leaf in leaves(term):
                order.setdefault(find(leaf), len(order))
    for leaf in list(bases):
        for base in list(bases.get(leaf, ())):
            if leaf in bases.get(base, ()) and order[leaf] < order[base]:
                _drop(bases, leaf, base)
    changed = True
    while changed:
        changed = False
        for leaf in list(bases):
            for base in list(bases.get(leaf, ())):
                if any(outer is leaf or outer not in bases[leaf] for outer in bases.get(base, ())):
                    _drop(bases, leaf, base)
                    changed = True
    return bases
