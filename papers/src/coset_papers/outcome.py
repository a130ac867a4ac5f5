"""What reproducing a figure or table gives: its numbers, and what the paper says beside what they say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

Record = dict[str, Any]
"""An object as JSON has it: of a figure, or of what was measured for one."""


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper: what it published, our number, and whether the sentence holds.

    holds is None where the two cannot be compared. published is None for what the paper does not give. note: why they
    differ, or what the number means.
    """

    text: str
    published: str | float | None
    ours: str | float
    holds: bool | None
    note: str = ""


@dataclass(frozen=True)
class Outcome:
    """`data` is all that the picture shows, as JSON can hold it."""

    data: Mapping[str, Any]
    claims: tuple[Claim, ...]


def without_repeated_notes(claims: Sequence[Claim]) -> tuple[Claim, ...]:
    """The claims, with a note that several share on the first of them only."""
    firsts: dict[str, int] = {}
    for k, claim in enumerate(claims):
        firsts.setdefault(claim.note, k)
    return tuple(claim if firsts[claim.note] == k else replace(claim, note="") for k, claim in enumerate(claims))
