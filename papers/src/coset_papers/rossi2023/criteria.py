"""When a sentence about barriers holds. All thresholds of this paper are here; plots give no numbers to compare with.

A barrier of `ZERO` nats or less per example is no noticeable one, one of `SHARE` of the naive barrier or less is nearly
zero. Two barriers differ, and a trend is one, if they are further apart than `ERRORS` standard errors, those of the
mean over pairs of networks. A single pair has no such error, and then there is no verdict on a trend.
"""

from __future__ import annotations

import math
from typing import Any

from coset_papers.rossi2023.barriers import heights, mean

ZERO, SHARE, ERRORS = 0.05, 0.1, 2.0
TOO_SMALL = "Too small a network, trained too briefly, for a verdict."


def noticeable(height: float) -> bool:
    """Whether there is a barrier at all."""
    return height > ZERO


def nearly_zero(aligned: float, naive: float) -> bool:
    """Whether alignment has removed all but little of a barrier."""
    return aligned <= max(ZERO, SHARE * naive)


def standard_error(values: list[float]) -> float | None:
    """Of the mean; None for a single value."""
    if len(values) < 2:
        return None
    centre = mean(values)
    return math.sqrt(sum((x - centre) ** 2 for x in values) / (len(values) - 1) / len(values))


def difference(first: list[float], second: list[float]) -> tuple[float, float | None]:
    """mean(second) - mean(first) and its standard error."""
    errors = standard_error(first), standard_error(second)
    error = None if errors[0] is None or errors[1] is None else math.hypot(errors[0], errors[1])
    return mean(second) - mean(first), error


def falls(first: list[float], second: list[float]) -> bool | None:
    """Whether the second barriers are lower; None if that cannot be said."""
    change, error = difference(first, second)
    return None if error is None else change < -ERRORS * error


def differ(first: list[float], second: list[float]) -> bool | None:
    """Whether they are apart, either way."""
    change, error = difference(first, second)
    return None if error is None else abs(change) > ERRORS * error


def with_error(rows: list[dict[str, Any]], split: str) -> str:
    """The mean barrier of a split in words, with its error over pairs, or over the networks drawn for a single one."""
    values = heights(rows, split)
    error = standard_error(values) if len(values) > 1 else rows[0][split]["height_error"]
    return f"{mean(values):.3f}" if error is None else f"{mean(values):.3f} ± {error:.3f}"
