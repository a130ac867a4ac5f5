"""Which matrices are symmetric whatever the weights: X X^T, A + A^T, and functions of their entries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from coset.symmetries.tape import Letter, Operand, Tape, Value


def is_symmetric(tape: Tape, value: Value, i: int, j: int) -> bool:
    """Whether a value stays as it is when two of its axes are exchanged; no if it is not known.

    Args:
        tape: What computes the value.
        value: The value.
        i: One axis.
        j: The other.
    """
    step = tape.producer(value)
    if step is None:
        # Of what no step makes only the identity has one term for two axes.
        return value.axes[i] is value.axes[j]
    letters = _letters(next(out for out in step.outs if out.value is value))
    operands = [_letters(one) for one in step.ins]
    if letters is None or any(one is None for one in operands) or step.lookups:
        return False
    a, b = letters[i], letters[j]
    if step.kind in ("move", "map"):
        source, own = step.ins[0].value, operands[0] or []
        alike = len(step.ins) == 1 and a in own and b in own and (a in step.over) == (b in step.over)
        return (
            alike
            and source.shape[own.index(a)] == value.shape[i]
            and is_symmetric(tape, source, own.index(a), own.index(b))
        )
    if step.kind == "add" and step.op != "add":
        return False
    powers = step.powers or [1.0] * len(step.ins)
    factors = [
        (*_origin(tape, one.value, own or []), power)
        for one, own, power in zip(step.ins, operands, powers, strict=True)
    ]
    exchange = {a: b, b: a}

    def reading(exchanged: bool) -> Counter[tuple[int, tuple[Letter, ...], float]]:
        return Counter(
            (id(source), _sorted(tape, source, [exchange.get(x, x) if exchanged else x for x in own], a, b), power)
            for source, own, power in factors
        )

    return reading(True) == reading(False)


def _letters(operand: Operand) -> list[Letter] | None:
    """One for each axis, if no axis is made of several."""
    axes = [segment.axis for segment in operand.segments]
    return [segment.letter for segment in operand.segments] if axes == list(range(len(operand.value.axes))) else None


def _origin(tape: Tape, value: Value, letters: Sequence[Letter]) -> tuple[Value, Sequence[Letter]]:
    """What a value was before its axes were put in another order, with its letters."""
    step = tape.producer(value)
    while step is not None and step.kind == "move" and len(step.ins) == 1 and not step.lookups:
        before, after = _letters(step.ins[0]), _letters(step.outs[0])
        if (
            before is None
            or after is None
            or len(set(after)) < len(after)
            or sorted(map(repr, before)) != sorted(map(repr, after))
        ):
            break
        value, letters = step.ins[0].value, [letters[after.index(x)] for x in before]
        step = tape.producer(value)
    return value, letters


def _sorted(tape: Tape, value: Value, letters: Sequence[Letter], a: Letter, b: Letter) -> tuple[Letter, ...]:
    """The letters, in one order where both stand on a value that is symmetric itself."""
    if a in letters and b in letters and is_symmetric(tape, value, letters.index(a), letters.index(b)):
        return (
            tuple(a if x == b else x if x != a else b for x in letters)
            if letters.index(b) < letters.index(a)
            else tuple(letters)
        )
    return tuple(letters)
