"""Families of repeated groups: a hue for each family, a shade for each group of it."""

from __future__ import annotations

import colorsys
from dataclasses import dataclass

from coset.core.names import gather, label, pattern
from coset.plot.palette import HUES
from coset.symmetries.group import Group
from coset.symmetries.symmetry import Symmetry

RGB = tuple[float, float, float]
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
    repeats = gather(sym.groups, lambda group: pattern(group.name))
    repeats.sort(key=lambda groups: -sum(group.size * group.copies * len(group.members) for group in groups))
    return [
        Family(
            label(group.name for group in groups),
            tuple(groups),
            {group.name: _shade(_hue(k), j, len(groups)) for j, group in enumerate(groups)},
        )
        for k, groups in enumerate(repeats)
    ]


def _hue(number: int) -> RGB:
    if number < len(HUES):
        red, green, blue = bytes.fromhex(HUES[number].removeprefix("#"))
        return red / 255, green / 255, blue / 255
    return colorsys.hls_to_rgb(number * GOLDEN % 1.0, 0.45, 0.55)


def _shade(colour: RGB, number: int, count: int) -> str:
    """From darker to lighter over the family; a family of one keeps its colour."""
    amount = DARKER + (LIGHTER - DARKER) * number / (count - 1) if count > 1 else 0.0
    towards = 1.0 if amount > 0 else 0.0
    return "#" + bytes(round(255 * (part + abs(amount) * (towards - part))) for part in colour).hex()
