"""The action of a symmetry by its definition: loops over positions, written without the library's own code.

Axes are in the form of the JSON spec: a name, a number, a list (product), {"concat": [...]}, {"interleave": [...]}.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor

from coset import Element

State = dict[str, Tensor]


def size_of(axis: Any, groups: dict[str, Any]) -> int:
    if isinstance(axis, str):
        return size_and_bases(groups[axis])[0]
    if isinstance(axis, int):
        return axis
    if isinstance(axis, list):
        return math.prod(size_of(part, groups) for part in axis)
    (parts,) = axis.values()
    return sum(size_of(part, groups) for part in parts)


def size_and_bases(group: Any) -> tuple[int, list[str]]:
    return (group, []) if isinstance(group, int) else (group["size"], group.get("over", []))


def decode(axis: Any, position: int, groups: dict[str, Any]) -> Any:
    """A position as the choices that lead to it: (block or lane, ...), lists for products, numbers for units."""
    if isinstance(axis, str | int):
        return position
    if isinstance(axis, list):
        out = []
        for part in reversed(axis):
            n = size_of(part, groups)
            out.append(decode(part, position % n, groups))
            position //= n
        return out[::-1]
    ((kind, parts),) = axis.items()
    if kind == "interleave":
        return (position % len(parts), decode(parts[position % len(parts)], position // len(parts), groups))
    for k, part in enumerate(parts):
        n = size_of(part, groups)
        if position < n:
            return (k, decode(part, position, groups))
        position -= n
    raise AssertionError


def encode(axis: Any, code: Any, groups: dict[str, Any]) -> int:
    if isinstance(axis, str | int):
        return code
    if isinstance(axis, list):
        position = 0
        for part, inner in zip(axis, code, strict=True):
            position = position * size_of(part, groups) + encode(part, inner, groups)
        return position
    ((kind, parts),) = axis.items()
    k, inner = code
    if kind == "interleave":
        return encode(parts[k], inner, groups) * len(parts) + k
    return sum(size_of(part, groups) for part in parts[:k]) + encode(parts[k], inner, groups)


def units_in(axis: Any, code: Any) -> list[tuple[str, int]]:
    if isinstance(axis, str):
        return [(axis, code)]
    if isinstance(axis, int):
        return []
    if isinstance(axis, list):
        return [unit for part, inner in zip(axis, code, strict=True) for unit in units_in(part, inner)]
    ((_, parts),) = axis.items()
    return units_in(parts[code[0]], code[1])


def replace_units(axis: Any, code: Any, new: Any) -> Any:
    if isinstance(axis, str):
        return new(axis, code)
    if isinstance(axis, int):
        return code
    if isinstance(axis, list):
        return [replace_units(part, inner, new) for part, inner in zip(axis, code, strict=True)]
    ((_, parts),) = axis.items()
    return (code[0], replace_units(parts[code[0]], code[1], new))


def copy_of(name: str, d: int, here: list[list[tuple[str, int]]], groups: dict[str, Any]) -> int:
    """Which fibre: the bases' units on the same axis, or else on another one."""
    copy = 0
    for base in size_and_bases(groups[name])[1]:
        rows = [here[d], *here]
        unit = next(unit for row in rows for other, unit in row if other == base)
        copy = copy * size_and_bases(groups[base])[0] + unit
    return copy


def occurrences(axis: Any, name: str) -> int:
    if isinstance(axis, str):
        return int(axis == name)
    if isinstance(axis, int):
        return 0
    parts = axis if isinstance(axis, list) else next(iter(axis.values()))
    return sum(occurrences(part, name) for part in parts)


def numbered(axis: Any, code: Any, counts: dict[str, int]) -> list[tuple[str, int, int]]:
    """Units at a position, each with the number of its place among the places of its group on the axis."""
    if isinstance(axis, str):
        counts[axis] = counts.get(axis, 0) + 1
        return [(axis, code, counts[axis] - 1)] if code is not None else []
    if isinstance(axis, int):
        return []
    if isinstance(axis, list):
        inner = code if code is not None else [None] * len(axis)
        return [u for part, c in zip(axis, inner, strict=True) for u in numbered(part, c, counts)]
    ((_, parts),) = axis.items()
    out = []
    for k, part in enumerate(parts):
        out += numbered(part, code[1] if code is not None and code[0] == k else None, counts)
    return out


def reference(spec: dict[str, Any], element: Element, state: State) -> State:
    """The action by its definition: entry by entry, unit i of the result is unit p[i] of the argument."""
    groups = spec["groups"]
    out: State = {}
    for name, tensor in state.items():
        axes = spec["tensors"][name]
        image = torch.empty_like(tensor)
        for position in itertools.product(*[range(n) for n in tensor.shape]):
            codes = [decode(axis, p, groups) for axis, p in zip(axes, position, strict=True)]
            here = [units_in(axis, code) for axis, code in zip(axes, codes, strict=True)]
            source = []
            for d, (axis, code) in enumerate(zip(axes, codes, strict=True)):

                def move(group: str, unit: int, d: int = d, here: Any = here) -> int:
                    p = element[group]
                    row = p[copy_of(group, d, here, groups)] if size_and_bases(groups[group])[1] else p
                    return int(row[unit])

                source.append(encode(axis, replace_units(axis, code, move), groups))
            value = tensor[tuple(source)].clone()
            for scaling, factors in element.scales.items():
                raw = spec["scalings"][scaling]
                for member in raw["members"]:
                    tensor_name, axis_number, power, offset, place = [*member, 0.0, 0][:5]
                    if tensor_name != name:
                        continue
                    if axis_number is None:
                        value = (value + offset) * float(factors.reshape(-1)[0]) ** power - offset
                        continue
                    for group, unit, number in numbered(axes[axis_number], codes[axis_number], {}):
                        if group == raw["units"] and number == place:
                            fibred = size_and_bases(groups[group])[1]
                            row = factors[copy_of(group, axis_number, here, groups)] if fibred else factors
                            value = (value + offset) * float(row[unit]) ** power - offset
            image[position] = value
        out[name] = image
    return out
