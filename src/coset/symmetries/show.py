"""A symmetry in a few rows: groups, scalings and fixed axes of one repeated structure share one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from coset.core.names import gather, label, owner, pattern, span, tail
from coset.symmetries.group import MATRICES, FixedAxis, Group, MatrixGroup, Scaling

MEMBERS = 2  # of a group that are named
T = TypeVar("T")


def group_rows(groups: Sequence[Group]) -> list[tuple[str, int, str, str, str]]:
    """Name, number of groups, their units, their tensors and first members."""
    rows = []
    for same in gather(groups, lambda group: (pattern(group.name), tuple(map(pattern, group.over)))):
        tensors = span(len({tensor for tensor, _ in group.members}) for group in same)
        rows.append((label(group.name for group in same), len(same), _units(same), tensors, _members(same)))
    return rows


def scaling_rows(scalings: Sequence[Scaling]) -> list[tuple[str, str, int, str, str]]:
    """Kind, the units that take the factors, number of scalings, size, and whether they are exact."""
    rows: list[tuple[str, str, int, str, str]] = []
    for same in gather(scalings, lambda s: (s.kind, pattern(s.units), tuple(map(pattern, s.over)), s.precision)):
        first = same[0]
        name = label(scaling.units for scaling in same) or "(whole tensors)"
        rows.append((first.kind, name, len(same), _units(same), first.precision))
    return rows


def matrix_rows(matrices: Sequence[MatrixGroup]) -> list[tuple[str, int, str, str]]:
    """Name, number of groups, their units, and which matrices, with the gains that must be one."""
    rows = []
    for same in gather(matrices, lambda group: (group.kind, pattern(group.name), tuple(map(pattern, group.over)))):
        once = f", once {span(len(group.gains) for group in same)} gains are folded" if same[0].gains else ""
        rows.append((label(group.name for group in same), len(same), _units(same), MATRICES[same[0].kind] + once))
    return rows


def fixed_rows(fixed: Sequence[FixedAxis]) -> list[tuple[str, str, int, str]]:
    """Op, reason, number of axes that it fixes, and the first of them."""
    rows = []
    for same in gather(fixed, lambda axis: (axis.op, pattern(axis.reason))):
        first = same[0]
        rows.append((first.op, label(axis.reason for axis in same), len(same), f"{first.tensor}:{first.axis}"))
    return rows


def few(rows: Sequence[T], most: int | None, what: str) -> tuple[Sequence[T], list[tuple[str, str]]]:
    """The first rows, and one that counts the others; all where `most` is None."""
    if most is None or len(rows) <= most:
        return rows, []
    return rows[: most - 1], [("", f"... and {len(rows) - most + 1} more {what}")]


def _members(same: Sequence[Group]) -> str:
    """The first members of the first group; for several groups `.mlp.0.weight:0`, within their own block."""
    first = same[0]
    block = owner(first.name) if len(same) > 1 else ""
    members = [f"{tensor.removeprefix(block)}:{axis}" for tensor, axis in first.members]
    return ", ".join(members[:MEMBERS] + ["..."] * (len(members) > MEMBERS))


def _units(same: Sequence[Group] | Sequence[Scaling] | Sequence[MatrixGroup]) -> str:
    """`16`, `16 to 64`, or `4 x 16 over qkv[0]`."""
    sizes = span(each.size for each in same)
    over = ", ".join(map(tail, same[0].over))
    return f"{span(each.copies for each in same)} x {sizes} over {over}" if over else sizes
