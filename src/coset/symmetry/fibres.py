"""Which units may be permuted independently for each value of another index.

The units of an attention head can be reordered head by head: the group is a wreath product. Units ``i`` are
*fibred* over ``h`` when every tensor that has an ``i`` axis, intermediate results included, also has the
``h`` axis that goes with it, and every step matches both together.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from coset.symmetry.slots import Address, Slot, SlotTable, addresses
from coset.symmetry.tape import Operand, Step, Tape, Value
from coset.symmetry.terms import Term, find, leaves

Bases = dict[Term, list[Term]]


def fibres(parameters: Mapping[str, Value], tape: Tape, wanted: Container[Term]) -> Bases:
    """Units of interest -> the units they are fibred over, outermost first."""
    bases = {leaf: found for leaf, found in _candidates(parameters).items() if not leaf.frozen or leaf in wanted}
    tables: dict[Value, SlotTable] = {}
    for step in tape.steps:
        for operand in (*step.ins, *step.outs):
            content = operand.value.content
            for leaf in leaves(content) if content is not None else []:
                # A unit's number is only meaningful if it is the same in every fibre.
                bases.pop(leaf, None)
        if bases:
            _check(step, bases, tables)
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
            found = {leaf for leaf in partners if table.companion(slot, leaf) is not None}
            together[slot.leaf] = together[slot.leaf] & found if slot.leaf in together else found
    return {leaf: sorted(found, key=order.__getitem__) for leaf, found in together.items() if found}


def _check(step: Step, bases: Bases, tables: dict[Value, SlotTable]) -> None:
    agreed: dict[tuple[Address, Term], Address | None] = {}
    for operand in (*step.ins, *step.outs):
        for address, base, companion in _companions(operand, bases, tables):
            key = (address, base)
            if companion is None or agreed.setdefault(key, companion) != companion:
                _drop(bases, address[1], base)
            elif address[0] not in step.over and companion[0] in step.over:
                # A statistic over the base at fixed i, as a softmax over heads takes, mixes the fibres.
                _drop(bases, address[1], base)


def _companions(
    operand: Operand, bases: Bases, tables: dict[Value, SlotTable]
) -> list[tuple[Address, Term, Address | None]]:
    pairs = list(addresses(operand))
    if not any(address[1] in bases for address, _ in pairs):
        return []
    if operand.value not in tables:
        tables[operand.value] = SlotTable.of(operand.value)
    table = tables[operand.value]
    by_slot: dict[Slot, Address] = {slot: address for address, slot in pairs}
    out: list[tuple[Address, Term, Address | None]] = []
    for address, slot in pairs:
        for base in bases.get(address[1], ()):
            companion = table.companion(slot, base)
            out.append((address, base, by_slot.get(companion) if companion is not None else None))
    return out


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
