"""Which tensors and units of the state matter to what the model computes on these inputs.

A loop that is run for one step multiplies its recurrent weights by the zeros it starts from. Nothing then says what
their columns index, though the next step would. So zeros are followed forward through the steps, and back from the
results what is asked for: units that only zeros meet are not reached.

Nothing is known of what a tensor reads that no example reaches, such as another head, an early exit or an expert that
is never asked, but its size. So the units that it may read are fixed: those on an axis of equal size; for an input axis
of which there is none, those that a flattened map of units may hold, or else a concatenation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from torch import nn

from coset.symmetries.fibres import Address, AxisSlot, SlotTable, addresses, cells
from coset.symmetries.tape import Operand, Primitive, Tape, Value
from coset.symmetries.terms import Cause, Term, find, freeze, leaves

# Letters under which a view tells that no correspondence is left.
LOST = "before"
WITH_OUTPUTS_FIRST = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""Layers whose weight has its outputs on the first axis, and its inputs on the second."""
WITHOUT_INPUTS = (nn.Embedding, nn.EmbeddingBag)
CHUNKS = range(2, 9)
"""How many chunks of as many units a layer may be asked for at once, such as gains and shifts."""


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


def unreached(parameters: Mapping[str, Value], read: Iterable[str], buffers: Iterable[str]) -> set[str]:
    """Names of tensors that no op reads; of buffers only those that are numbers along an axis.

    Args:
        parameters: The values of all tensors of the state.
        read: The names of those that ops read.
        buffers: The names of those that are not trained.
    """
    idle = {name for name in buffers if name in parameters and not any(leaves(t) for t in parameters[name].axes)}
    return parameters.keys() - set(read) - idle


def freeze_what_they_may_read(
    names: Iterable[str], parameters: Mapping[str, Value], tape: Tape, model: nn.Module
) -> None:
    """Fix all units that may be inputs or outputs of these tensors.

    Args:
        names: The tensors that no example reaches.
        parameters: The values of all tensors of the state.
        tape: What the examples compute; what is fixed has no factor either.
        model: Says which axes of the tensors are inputs.
    """
    names = list(names)
    reached = [value for name, value in parameters.items() if name not in set(names)]
    whole: dict[int, list[Term]] = {}
    units: set[Term] = set()
    for value in reached:
        for term in value.axes:
            whole.setdefault(term.size, []).extend(leaves(term))
            units.update(leaves(term))
    for name in names:
        cause = Cause("", f"may be read by {name}, which no example reaches")
        for axis, term in enumerate(parameters[name].axes):
            ends = _ends(model, name, axis, parameters[name].shape)
            shared = list(whole.get(term.size, [])) if ends and term.size > 1 else []
            if "inputs" in ends and not shared and term.size > 1:
                flat = [leaf for leaf in units if term.size % leaf.size == 0]
                shared = flat or [leaf for leaf in units if leaf.size <= term.size]
            if "chunks" in ends:
                shared += [leaf for leaf in units if term.size // leaf.size in CHUNKS and term.size % leaf.size == 0]
            for leaf in shared:
                freeze(leaf, cause)
                tape.unused.add(leaf)
            if "one number" in ends:
                # Added to units of any kind, it tells their factors.
                tape.unused |= units
    # A factor of all units at once would be seen, too.
    for value in reached:
        if any(leaf in tape.unused for term in value.axes for leaf in leaves(term)):
            tape.silent.add(value)


def _ends(model: nn.Module, name: str, axis: int, shape: tuple[int, ...]) -> set[str]:
    """What an axis of a tensor may be: inputs, outputs, several chunks of them, one number for all units."""
    alone = {"one number"} if math.prod(shape) == 1 else set()
    try:
        module = model.get_submodule(name.rpartition(".")[0])
    except AttributeError:
        return {"inputs", "outputs"} | alone
    if isinstance(module, WITH_OUTPUTS_FIRST):
        outputs = {"outputs", "chunks"} | ({"one number"} if shape[0] == 1 else set())
        return outputs if axis == 0 else {"inputs"} if axis == 1 else set()
    if isinstance(module, WITHOUT_INPUTS):
        return {"outputs", "chunks"} | ({"one number"} if shape[1] == 1 else set()) if axis else {"outputs"}
    return {"outputs"} | alone | ({"inputs"} if len(shape) > 1 else set())
