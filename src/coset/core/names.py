"""Names of repeated structure: `blocks.0.mlp.0`, ..., `blocks.3.mlp.0` is one row, `blocks.{0-3}.mlp.0`."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")

_NUMBER = re.compile(r"\d+(\[\d+\])?")
_TRAILING = re.compile(r"\d+$")
_LISTED = 4


def pattern(name: str) -> str:
    """The dotted name with `*` for the numbers that count repeated blocks.

    Those are the numbers that end a component before the last word: in `stages.1.0.conv2` they count blocks,
    while in `mlp.0` the number says which layer of `mlp` it is, and in `conv2` it belongs to the word.
    """
    head, tail = _split(name)
    return ".".join([_TRAILING.sub("*", part) for part in head] + tail)


def tail(name: str) -> str:
    """The name from its last word on: `qkv[1]` of `blocks.0.attention.qkv[1]`."""
    return ".".join(_split(name)[1])


def owner(name: str) -> str:
    """The repeated block a name lies in, `stages.1.0` of `stages.1.0.conv2`; empty if it lies in none."""
    head, _ = _split(name)
    while head and not _TRAILING.search(head[-1]):
        head.pop()
    return ".".join(head)


def label(names: Iterable[str]) -> str:
    """One name for several of the same pattern: the numbers in which they differ are written as `{0-3}`."""
    names = list(dict.fromkeys(names))
    columns = list(zip(*(_numbers(name) for name in names), strict=True))
    numbers = iter([_range([int(number) for number in column]) for column in columns])
    return re.sub(r"\*", lambda _: next(numbers), pattern(names[0]))


def span(numbers: Iterable[int]) -> str:
    """`16`, or `16 to 64` for several."""
    values = sorted(set(numbers))
    return str(values[0]) if len(values) == 1 else f"{values[0]} to {values[-1]}"


def plural(count: int, noun: str, several: str = "") -> str:
    """`1 group`, `2 groups`; `several` is an irregular plural."""
    return f"{count} {noun}" if count == 1 else f"{count} {several or f'{noun}s'}"


def gather(items: Iterable[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    """The items of equal keys together, in the order in which the keys first come."""
    by_key: dict[Hashable, list[T]] = {}
    for item in items:
        by_key.setdefault(key(item), []).append(item)
    return list(by_key.values())


def _split(name: str) -> tuple[list[str], list[str]]:
    """The components before the last word, and those from it on."""
    parts = name.split(".")
    words = [k for k, part in enumerate(parts) if not _NUMBER.fullmatch(part)]
    last = words[-1] if words else 0
    return parts[:last], parts[last:]


def _numbers(name: str) -> list[str]:
    head, _ = _split(name)
    return [match.group() for part in head if (match := _TRAILING.search(part))]


def _range(numbers: Sequence[int]) -> str:
    values = sorted(set(numbers))
    if len(values) == 1:
        return str(values[0])
    if len(values) == values[-1] - values[0] + 1:
        return f"{{{values[0]}-{values[-1]}}}"
    shown = ",".join(str(value) for value in values[:_LISTED])
    return f"{{{shown}{',...' if len(values) > _LISTED else ''}}}"
