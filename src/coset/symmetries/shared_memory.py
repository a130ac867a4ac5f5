"""Tensors of the state that lie in one memory without being one: `dec.weight.data = enc.weight.data.t()`, slices.

Writing one of them into the model writes the others, so what moves one must move all.
"""

from __future__ import annotations

from torch import Tensor

from coset.symmetries.rules.cat_and_split import take_apart
from coset.symmetries.rules.reshape import reorder, reshape_to
from coset.symmetries.tape import NONLINEAR, Call, Tape, Value
from coset.symmetries.terms import Cause, freeze


def tie(tape: Tape, value: Value, x: Tensor, part: Value, y: Tensor) -> None:
    """Let two tensors in one memory move alike: fix both, if one is no plain view of the other.

    Args:
        tape: What the model computes.
        value: The larger tensor, seen through its axes.
        x: Its entries.
        part: The other.
        y: Its entries.
    """
    call = Call("shared memory", "", {}, [part.shape], True, tape, frozenset())
    view = _view(call, value, x, y)
    if view is not None:
        tape.broadcast("add", [view, part])
        return
    for each in (value, part):
        tape.map(each, NONLINEAR)
        for term in each.axes:
            freeze(term, Cause("", "lies in the memory of another tensor"))


def _view(call: Call, value: Value, x: Tensor, y: Tensor) -> Value | None:
    """`y` as a view of `x`: axes in another order and cut short, or regrouped."""
    same = x.numel() == y.numel() and x.storage_offset() == y.storage_offset()
    if same and x.is_contiguous() and y.is_contiguous():
        return call.as_value(reshape_to(call, value, y.shape))
    if x.dim() != y.dim() or len(set(x.stride())) < x.dim() or set(x.stride()) != set(y.stride()):
        return None
    order = [x.stride().index(step) for step in y.stride()]
    value = reorder(call, value, order)
    rest, steps = int(y.storage_offset()) - int(x.storage_offset()), y.stride()
    for axis in sorted(range(y.dim()), key=lambda d: -steps[d]):
        start, rest = divmod(rest, steps[axis])
        if start < 0 or start + y.shape[axis] > value.shape[axis]:
            return None
        if y.shape[axis] < value.shape[axis]:
            (value,) = take_apart(call, value, axis, [(start, start + y.shape[axis])])
    return None if rest else value
