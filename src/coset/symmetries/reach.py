"""Which units of the state matter to what the model computes on these inputs.

A loop that is run for one step multiplies its recurrent weights by the zeros it starts from. Nothing then says what
their columns index, though the next step would. So zeros are followed forward through the steps, and back from the
results what is asked for: units that only zeros meet are not reached.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from coset.symmetries.fibres import Address, AxisSlot, SlotTable, addresses, cells
from coset.symmetries.tape import Operand, Primitive, Tape, Value
from coset.symmetries.terms import Term, find

# Letters under which a view tells that no correspondence is left.
LOST = "before"


@dataclass(frozen=True)
class Reach:
    """What the steps of a tape read of the state.

    Args:
        used: Units that enter a result.
        zeroed: Those of them that meet zeros wherever they do.
        values: Tensors that enter a result, other than times zero.
        operands: All tensors.
        holes: Where they are zero.
    """

    used: frozenset[Term]
    zeroed: frozenset[Term]
    values: frozenset[Value]
    operands: tuple[Value, ...]
    holes: _Holes

    def incomplete(self) -> Iterator[tuple[Value, list[Term]]]:
        """Tensors of which only zeros meet a part, with its units: those of its other axes may go with it later on."""
        for value in self.operands if self.zeroed else ():
            empty = self.holes.slots.get(value, set())
            part = {slot for slot in SlotTable.of(value).slots if slot.leaf in self.zeroed} - empty
            if part and value not in self.holes.values:
                yield value, [slot.leaf for cell in cells(value) if not part.isdisjoint(cell) for slot in cell]


@dataclass
class _Holes:
    """Where values are zero: all of them, or in the blocks of some slots."""

    values: set[Value] = field(default_factory=set)
    slots: dict[Value, set[AxisSlot]] = field(default_factory=dict)

    @classmethod
    def of(cls, tape: Tape) -> _Holes:
        holes = cls(values=tape.vanishing)
        for step in tape.steps:
            holes._read(step)
        return holes

    def at(self, operand: Operand) -> dict[Address, bool]:
        """Whether an operand is zero at each of its addresses."""
        blank, own = operand.value in self.values, self.slots.get(operand.value, ())
        return {address: blank or slot in own for address, slot in addresses(operand)}

    def absorbed(self, step: Primitive) -> set[Address]:
        """Addresses of a product where one of its operands is zero."""
        if step.kind != "multiply":
            return set()
        pairs = zip(step.ins, step.powers, strict=True)
        return {a for operand, power in pairs if power > 0 for a, empty in self.at(operand).items() if empty}

    def _read(self, step: Primitive) -> None:
        tables = [self.at(operand) for operand in step.ins]
        if not any(any(table.values()) for table in tables):
            return
        if step.kind == "multiply":
            empty = self.absorbed(step)
        else:
            every = set().union(*tables)
            everywhere = step.kind == "add"
            empty = {a for a in every if all(table.get(a, not everywhere) for table in tables)}
            if step.kind == "map":
                empty = {a for a in empty if step.keeps_zero and a[0] not in step.over}
        for operand in step.outs:
            self.slots[operand.value] = {slot for address, slot in addresses(operand) if address in empty}


class _Demand:
    """Reads the tape backwards: what of each value enters a result.

    A step that computes and whose result nobody reads is there to be minded: all of it counts.
    """

    def __init__(self, tape: Tape, holes: _Holes) -> None:
        self.holes = holes
        self.used: set[Term] = set()
        self.values: set[Value] = set()
        self.slots: dict[Value, set[AxisSlot]] = {}
        self.readers = {operand.value for step in tape.steps for operand in step.ins}
        for step in reversed(tape.steps):
            self._read(step)

    def _read(self, step: Primitive) -> None:
        outs = {address for operand in step.outs for address, _ in addresses(operand)}
        demand = self._demand(step)
        if demand is None:
            return
        absorbed = self.holes.absorbed(step)
        for operand in step.ins:
            if operand.value in self.holes.values:
                continue
            self.values.add(operand.value)
            empty = self.holes.at(operand)
            slots = self.slots.setdefault(operand.value, set())
            for address, slot in addresses(operand):
                summed = address not in outs and (
                    step.kind != "move" or address[0] in step.lookups or address[0] == LOST
                )
                if (address in demand or summed) and not empty[address] and address not in absorbed:
                    slots.add(slot)
                    if step.kind != "move":
                        self.used.add(find(address[1]))

    def _demand(self, step: Primitive) -> set[Address] | None:
        """Addresses of the results that matter; None where no result does."""
        demand: set[Address] = set()
        matters = False
        for operand in step.outs:
            if operand.value in self.holes.values:
                continue
            final = operand.value not in self.readers and step.kind != "move"
            if final or operand.value in self.values:
                matters = True
                slots = self.slots.get(operand.value, ())
                demand |= {address for address, slot in addresses(operand) if final or slot in slots}
        return demand if matters else None


def reach(tape: Tape) -> Reach:
    holes = _Holes.of(tape)
    regardless = _Demand(tape, _Holes())
    aware = _Demand(tape, holes) if tape.vanishing else regardless
    zeroed = frozenset(regardless.used - aware.used)
    operands = dict.fromkeys(operand.value for step in tape.steps for operand in step.ins)
    return Reach(frozenset(regardless.used), zeroed, frozenset(aware.values), tuple(operands), holes)
