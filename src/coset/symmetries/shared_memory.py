"""Tensors of the state that lie in one memory without being one: `dec.weight.data = enc.weight.data.t()`, slices.

Writing one of them into the model writes the others, so what moves one must move all.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import torch
from torch import Tensor

from coset.symmetries.rules.cat_and_split import take_apart
from coset.symmetries.rules.reshape import reorder, reshape_to
from coset.symmetries.tape import NONLINEAR, Call, Tape, Value
from coset.symmetries.terms import Cause, freeze

# Numbers up to which it is looked up whether two tensors really meet; larger ones whose ranges do are taken to.
LARGEST_EXACT = 1_000_000


def pairs_in_one_memory(tensors: Mapping[str, Tensor]) -> list[tuple[str, str]]:
    """Pairs of names of tensors that have entries in common, the larger tensor first.

    Args:
        tensors: The tensors of a state, one name for each.
    """
    by_memory: dict[int, list[str]] = {}
    for name, x in tensors.items():
        if x.layout == torch.strided and x.numel() and not x.is_quantized:
            by_memory.setdefault(x.untyped_storage()._cdata, []).append(name)
    return [
        (a, b) if tensors[a].numel() >= tensors[b].numel() else (b, a)
        for names in by_memory.values()
        for a, b in combinations(names, 2)
        if _meet(tensors[a], tensors[b])
    ]


def _meet(x: Tensor, y: Tensor) -> bool:
    first, last = max(int(x.storage_offset()), int(y.storage_offset())), min(_last(x), _last(y))
    if first > last or max(_last(x), _last(y)) > LARGEST_EXACT:
        return first <= last
    places = torch.arange(max(_last(x), _last(y)) + 1)
    a, b = (places.as_strided(z.shape, z.stride(), z.storage_offset()).flatten() for z in (x, y))
    return bool(torch.isin(a, b).any())


def _last(x: Tensor) -> int:
    """The last place in memory that a tensor has."""
    return int(x.storage_offset()) + sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))


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
