"""Colours of groups: a hue for each family of repeated groups, a shade for each group of the family."""

from __future__ import annotations

import colorsys
from dataclasses import dataclass

from matplotlib.colors import to_hex, to_rgb

from coset.core.names import gather, label, pattern
from coset.symmetries.group import Group
from coset.symmetries.symmetry import Symmetry

FIXED = "#c9c9c9"
# Far apart in hue and alike in weight; the families that move most come first.
HUES = (
    "#2f6db3",
    "#e0762f",
    "#2e9a63",
    "#c43d4b",
    "#8a5fc0",
    "#1fa3b5",
    "#d9a514",
    "#d0609f",
    "#7d9b2b",
    "#8c5a3c",
)
GOLDEN = 0.618034  # successive multiples modulo one stay far apart
DARKER, LIGHTER = -0.28, 0.42


@dataclass(frozen=True)
class Family:
    """Groups that are one structure repeated, and the colour of each."""

    label: str
    groups: tuple[Group, ...]
    colours: dict[str, str]


def families(sym: Symmetry) -> list[Family]:
    """The families of a symmetry's groups, those that move most first."""
    found = gather(sym.groups, lambda group: pattern(group.name))
    found.sort(key=lambda groups: -sum(group.size * group.copies * len(group.members) for group in groups))
    return [
        Family(
            label(group.name for group in groups),
            tuple(groups),
            {group.name: _shade(_hue(k), j, len(groups)) for j, group in enumerate(groups)},
        )
        for k, groups in enumerate(found)
    ]


def _hue(number: int) -> tuple[float, float, float]:
    if number < len(HUES):
        return to_rgb(HUES[number])
    return colorsys.hls_to_rgb(number * GOLDEN % 1.0, 0.45, 0.55)


def _shade(colour: tuple[float, float, float], number: int, count: int) -> str:
    """From darker to lighter over the family; a family of one keeps its colour."""
    amount = DARKER + (LIGHTER - DARKER) * number / (count - 1) if count > 1 else 0.0
    towards = 1.0 if amount > 0 else 0.0
    red, green, blue = (part + abs(amount) * (towards - part) for part in colour)
    return to_hex((red, green, blue))
