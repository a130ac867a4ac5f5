"""What reproducing a figure or table gives: its numbers, and what the paper says beside what they say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from matplotlib.figure import Figure

from coset_papers.settings import Settings


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper: what it published, what was found here, and whether the sentence holds.

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


@dataclass(frozen=True)
class Exhibit:
    """A figure or table: what it shows, how it is computed, and how `Outcome.data`, as read from JSON, is drawn."""

    title: str
    compute: Callable[[Settings], Outcome]
    draw: Callable[[Any], Figure]


def noted_once(claims: Sequence[Claim]) -> tuple[Claim, ...]:
    """The claims, with a note that several share on the first of them only."""
    firsts: dict[str, int] = {}
    for k, claim in enumerate(claims):
        firsts.setdefault(claim.note, k)
    return tuple(claim if firsts[claim.note] == k else replace(claim, note="") for k, claim in enumerate(claims))
