"""When a sentence about curves holds. All thresholds of this paper are here.

Two kinds of curves connect the same pairs of networks, so their numbers are compared pair by pair: one is above the
other if the mean difference is more than `ERRORS` of its standard errors over pairs. A single pair has no such error,
and then the sign alone decides, as the note says. Accuracies are comparable within `CLOSE`. An accuracy barrier is a
drop of more than `NOTICEABLE` below the ends; it is greatly reduced if at most `SHARE` of it is left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from coset_papers.outcome import Claim

ERRORS, CLOSE, NOTICEABLE, SHARE = 2.0, 0.005, 0.01, 0.5
TOO_SMALL = "Too small a network, trained too briefly, for a verdict."


def mean(values: Sequence[float]) -> float:
    """Their mean."""
    return sum(values) / len(values)


def deviation(values: Sequence[float]) -> float | None:
    """The standard deviation over pairs; None for a single one."""
    if len(values) < 2:
        return None
    centre = mean(values)
    return math.sqrt(sum((x - centre) ** 2 for x in values) / (len(values) - 1))


def above(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether the first is larger, over the same pairs."""
    differences = [x - y for x, y in zip(one, other, strict=True)]
    spread = deviation(differences)
    error = 0.0 if spread is None else spread / math.sqrt(len(differences))
    return mean(differences) > ERRORS * error


def comparable(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether two mean accuracies are the same but for little."""
    return abs(mean(one) - mean(other)) <= CLOSE


def judged_by(pairs: int) -> str:
    """The note on how verdicts are made."""
    if pairs == 1:
        return "One pair of networks: the sign alone, with no word on significance."
    return f"Above: by more than {ERRORS:g} standard errors of the difference over {pairs} pairs."


def with_deviation(values: Sequence[float], form: str = ".3f") -> str:
    """Mean and standard deviation in words."""
    spread = deviation(values)
    return f"{mean(values):{form}}" if spread is None else f"{mean(values):{form}} ± {spread:{form}}"


def percent(values: Sequence[float]) -> str:
    """Mean and standard deviation of shares in words, in percent."""
    return with_deviation([100 * x for x in values], ".1f")


def claim(scale: str, text: str, published: str | float | None, ours: str, holds: bool | None, note: str) -> Claim:
    """A claim, with no verdict at scale smoke."""
    if scale == "smoke":
        return Claim(text, published, ours, None, TOO_SMALL)
    return Claim(text, published, ours, holds, note)
