"""Where positions are told by rank, can equal scores let the position of a unit decide?

`argmax`, `topk` and their kin break ties by position, so the units that they rank are interchangeable only where the
scores differ. The tape is read forwards. Each axis of each value gets one of four levels, for weights in general
position:

    APART     at every input, entries of different units differ: a bias of their own, a codebook, a table of embeddings
    RARELY    they differ but for special inputs: a linear map without bias has equal scores on an all-zero row
    AT_ZERO   inputs of every kind have units that are equal, at zero: ReLU, a mask
    OFTEN     the same at other numbers: a clamp, a rounded number, copies, and whatever is not known here

and each value one for how its entries vanish: APART never, RARELY at special inputs, AT_ZERO at ordinary ones.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from coset.core.errors import SymmetryError
from coset.symmetries.fibres import Address, AxisSlot, SlotTable, addresses
from coset.symmetries.tape import HOMOGENEOUS, LINEAR, Operand, Primitive, Ranking, Tape, Value
from coset.symmetries.terms import Cause, Term, freeze, leaves


class Level(IntEnum):
    """How often two units have equal scores."""

    APART = 0
    RARELY = 1
    AT_ZERO = 2
    OFTEN = 3


# So many units are hardly ever zero all at once.
MANY = 16
# Functions without a flat piece: equal results have measure zero where equal arguments have.
NEVER_FLAT = frozenset({
    "neg", "real", "imag", "leaky_relu", "rrelu", "tanh", "erf", "sin", "asinh", "atan", "arctan", "tan", "sinh", "cos",
    "cosh", "abs", "gelu", "silu", "sigmoid", "exp", "expm1", "exp2", "log", "log2", "log10", "log1p", "softplus",
    "mish", "elu", "selu", "celu", "log_sigmoid", "log_sigmoid_forward", "logit", "lgamma", "digamma", "erfinv", "acos",
    "asin", "acosh", "atanh", "erfc", "i0", "sinc", "sqrt", "rsqrt", "reciprocal", "square", "pow", "prelu",
    "_prelu_kernel", "add", "sub", "rsub", "mul", "div", "softmax", "_softmax", "log_softmax", "_log_softmax",
    "_safe_softmax", "logcumsumexp", "cumsum", "cumprod", "layer_norm", "native_layer_norm", "rms_norm",
    "_fused_rms_norm", "group_norm", "native_group_norm", "batch_norm", "instance_norm", "sum", "mean", "nansum",
    "nanmean", "amax", "amin", "aminmax", "quantile", "std", "var", "norm", "linalg_vector_norm", "logsumexp", "prod",
    "max", "min", "topk", "sort", "median", "kthvalue", "maximum", "minimum", "fmax", "fmin", "glu", "lerp", "hypot",
    "logaddexp", "logaddexp2", "atan2", "cosine_similarity", "cdist", "_cdist_forward", "pairwise_distance", "lstm",
    "gru", "rnn_tanh", "scaled_dot_product_attention", "normalize", "_weight_norm", "_weight_norm_interface", "copy",
    "addcmul", "addcdiv", "linear", "addmm", "addmv", "baddbmm",
})  # fmt: skip
# Of these, no result is zero.
NEVER_ZERO = frozenset({
    "sigmoid", "exp", "exp2", "softplus", "softmax", "_softmax", "log_softmax", "_log_softmax", "_safe_softmax", "cos",
    "cosh", "log_sigmoid", "log_sigmoid_forward", "logsumexp", "erfc", "i0",
})  # fmt: skip
# Zero goes to zero, and a flat piece is zero as well.
FLAT_AT_ZERO = frozenset({"relu", "hardswish", "softshrink", "hardshrink"})
ZERO_TO_ZERO = frozenset({
    "neg", "real", "leaky_relu", "rrelu", "tanh", "erf", "sin", "asinh", "atan", "arctan", "tan", "sinh", "abs", "gelu",
    "silu", "expm1", "log1p", "mish", "elu", "selu", "celu", "sqrt", "square", "mul", "div", "prelu", "_prelu_kernel",
    "rms_norm", "_fused_rms_norm", "sum", "mean", "amax", "maximum", "max", "topk", "sort",
}) | FLAT_AT_ZERO  # fmt: skip
CHOICES = frozenset({"where", "masked_fill"})
EXTREMA = frozenset({"maximum", "minimum", "fmax", "fmin", "max", "min"})
BY_RANK = frozenset({"scatter", "one_hot"})
OF_MASKS = frozenset({
    "where", "masked_fill", "logical_not", "bitwise_not", "to", "_to_copy", "gt", "ne", "eq", "lt", "sum",
    "logical_and", "any",
})  # fmt: skip


def break_ties(parameters: Mapping[str, Value], buffers: Collection[str], tape: Tape, strict: bool) -> None:
    """Fix units whose scores are often equal; say of the others under which condition they are interchangeable.

    Args:
        parameters: The tensors of the state.
        buffers: Names of those that are not trained: they may hold equal numbers.
        tape: With the rankings that it knows of.
        strict: Whether a condition is refused.

    Raises:
        SymmetryError: If units are interchangeable under a condition only, and `strict` is set.
    """
    if not any(_free(ranking) for ranking in tape.rankings):
        return
    reader = _Reader(tape, {value: name in buffers for name, value in parameters.items()})
    for ranking in tape.rankings:
        level = reader.along(ranking.scores, ranking.axis)
        if ranking.harmless and level is Level.AT_ZERO:
            continue
        if level >= Level.AT_ZERO:
            freeze(ranking.scores.axes[ranking.axis], Cause(ranking.op, "equal scores are told apart by position"))
    for ranking in tape.rankings:
        units = _free(ranking)
        if units and reader.along(ranking.scores, ranking.axis) is Level.RARELY:
            note = _condition(parameters, units[0], ranking.op)
            if strict:
                raise SymmetryError(f"{note[:-1]}; without strict=True this is a note")
            tape.notes.append(note)
            tape.conditional.update(units)


def _free(ranking: Ranking) -> list[Term]:
    return [leaf for leaf in leaves(ranking.scores.axes[ranking.axis]) if not leaf.frozen]


def _condition(parameters: Mapping[str, Value], leaf: Term, op: str) -> str:
    names = [name for name, value in parameters.items() if any(leaf in leaves(term) for term in value.axes)]
    owner = f" of {names[0]!r}" if names else ""
    return (
        f"The {leaf.size} units{owner} are interchangeable where the scores that {op} ranks differ: equal scores, as "
        "of an all-zero row, are told apart by position."
    )


@dataclass
class _Reader:
    """Levels of all values of a tape, read in order; `state` says of its tensors whether they are buffers."""

    tape: Tape
    state: Mapping[Value, bool]
    levels: dict[Value, dict[AxisSlot, Level]] = field(default_factory=dict)
    zeros: dict[Value, Level] = field(default_factory=dict)
    branches: set[Value] = field(default_factory=set)
    filled: dict[Value, Level] = field(default_factory=dict)
    masks: set[Value] = field(default_factory=set)

    def __post_init__(self) -> None:
        for value, is_buffer in self.state.items():
            own = Level.RARELY if is_buffer else Level.APART
            self.zeros[value] = own
            self.levels[value] = dict.fromkeys(SlotTable.of(value).slots, own)
        for value in self.tape.zeros:
            self.zeros[value] = Level.AT_ZERO
        for value in self.tape.padded:
            self.zeros[value] = Level.RARELY
        for step in self.tape.steps:
            self._read(step)

    def along(self, value: Value, axis: int) -> Level:
        """How often entries of one axis are equal; those of a fixed order among themselves, too."""
        levels = self.levels.get(value, {})
        slots = [slot for slot in SlotTable.of(value).slots if slot.axis == axis]
        return max((levels.get(slot, Level.OFTEN) for slot in slots), default=Level.OFTEN)

    def _read(self, step: Primitive) -> None:
        ins = [self._of(operand) for operand in step.ins]
        for operand in step.outs:
            value = operand.value
            if step.kind == "map":
                zero = self._vanishes_after(step)
            elif step.kind == "multiply":
                zero = self._vanishes_in_product(step)
            else:
                inside = [self._zero(one.value) for one in step.ins]
                zero = max(inside) if step.kind == "move" or step.op in CHOICES | EXTREMA else min(inside)
            if value not in self.tape.padded:
                self.zeros[value] = max(zero, self.zeros.get(value, zero))
            self.levels[value] = {slot: self._level(step, address, ins) for address, slot in addresses(operand)}
            self._remember(step, value)

    def _of(self, operand: Operand) -> dict[Address, Level]:
        levels = self.levels.get(operand.value, {})
        return {address: levels.get(slot, Level.OFTEN) for address, slot in addresses(operand)}

    def _zero(self, value: Value) -> Level:
        return self.zeros.get(value, Level.RARELY)

    def _remember(self, step: Primitive, value: Value) -> None:
        """What belongs to a choice: its branches, what fills it, and whether its mask keeps what has a high rank."""
        if step.op in CHOICES and step.kind == "add":
            self.branches.add(value)
        source = step.ins[0].value
        if step.op in CHOICES and step.kind == "map" and source not in self.branches:
            self.filled[value] = Level.AT_ZERO if step.law == LINEAR else Level.OFTEN
        if step.op in BY_RANK and step.kind == "multiply":
            self.masks.add(value)
        if (step.kind == "move" or step.op in OF_MASKS) and all(one.value in self.masks for one in step.ins):
            self.masks.add(value)

    def _level(self, step: Primitive, address: Address, ins: list[dict[Address, Level]]) -> Level:
        here = [levels[address] for levels in ins if address in levels]
        if not here:
            return Level.OFTEN
        if step.kind == "move":
            return max(here)
        if step.kind == "add":
            absent = [
                Level.AT_ZERO if one.value in self.tape.zeros else Level.OFTEN
                for one, levels in zip(step.ins, ins, strict=True)
                if address not in levels
            ]
            if step.op in CHOICES | EXTREMA:
                return max(here + absent)
            return _elsewhere(min(here)) if Level.OFTEN in absent else min(here)
        if step.kind == "map":
            return self._level_after(step, here[0])
        return self._level_of_product(step, address, ins)

    def _level_after(self, step: Primitive, level: Level) -> Level:
        if step.op in CHOICES:
            return level
        if step.op in FLAT_AT_ZERO or (
            step.op.startswith("clamp") and step.law == HOMOGENEOUS and not step.approximate
        ):
            return max(level, Level.AT_ZERO)
        if step.op not in NEVER_FLAT or (step.op == "div" and step.law != LINEAR):
            return Level.OFTEN
        return level if step.op in ZERO_TO_ZERO and step.powers[0] > 0 else _elsewhere(level)

    def _level_of_product(self, step: Primitive, address: Address, ins: list[dict[Address, Level]]) -> Level:
        if step.op in CHOICES:
            fill = self.filled.get(step.ins[0].value, Level.APART)
            if fill and step.ins[1].value in self.masks:
                fill = Level.RARELY
            return max(ins[0].get(address, Level.OFTEN), fill)
        rows = step.ins[:1] if step.lookups else step.ins
        best = Level.OFTEN
        for k, levels in enumerate(ins[: len(rows)]):
            if address in levels:
                others = [self._share(step, j) for j in range(len(rows)) if j != k]
                own = levels[address] if step.powers[k] > 0 else _elsewhere(levels[address])
                best = min(best, max([own, *others]))
        return best

    def _share(self, step: Primitive, k: int) -> Level:
        """How often a factor of a product vanishes, which makes all units equal; of many summed up, not all do."""
        zero = self._zero(step.ins[k].value)
        if _summed(step, step.ins[k]) >= MANY:
            return min(zero, Level.RARELY)
        return zero if step.powers[k] > 0 else _elsewhere(zero)

    def _vanishes_after(self, step: Primitive) -> Level:
        zero = self._zero(step.ins[0].value)
        if step.op in CHOICES:
            return zero
        if step.op in NEVER_ZERO or (_is_clamp(step) and step.approximate):
            return Level.APART
        if step.op not in NEVER_FLAT or (step.op == "div" and step.law != LINEAR):
            return Level.AT_ZERO
        return min(zero, Level.RARELY) if _summed(step, step.ins[0]) >= MANY else zero

    def _vanishes_in_product(self, step: Primitive) -> Level:
        if step.op in CHOICES:
            return max(self._zero(step.ins[0].value), self.filled.get(step.ins[0].value, Level.APART))
        rows = step.ins[:1] if step.lookups else step.ins
        return max(self._share(step, k) for k in range(len(rows)))


def _elsewhere(level: Level) -> Level:
    """Of what was equal at zero, and is now somewhere else."""
    return Level.OFTEN if level is Level.AT_ZERO else level


def _is_clamp(step: Primitive) -> bool:
    return step.op.startswith("clamp") or step.op == "threshold"


def _summed(step: Primitive, operand: Operand) -> int:
    """How many entries of an operand are added up to one of the result."""
    left = {segment.letter for out in step.outs for segment in out.segments}
    return math.prod(segment.term.size for segment in operand.segments if segment.letter not in left)
