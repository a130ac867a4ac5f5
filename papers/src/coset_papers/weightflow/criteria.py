"""When a sentence about generated networks holds. All thresholds of the image exhibits are here.

Accuracies are as good as others if they are less than `CLOSE` below. Two averaged predictions are equal if the
difference of their accuracies is at most `ERRORS` standard errors over the test examples, which both see: with b
examples that only the first has right and c that only the second has, |b - c| <= ERRORS sqrt(b + c) (McNemar). Samples
are as new as fresh runs if at most `MEMORISED` of them are closer to a training network than the closest 1 % of those.
"""

from __future__ import annotations

import math

from coset_papers.outcome import Claim

CLOSE, ERRORS, MEMORISED, MINUTES = 0.005, 2.0, 0.03, 20.0
TOO_SMALL = "Too few networks, and a flow learned too briefly, for a verdict."


def as_good(ours: float, others: float) -> bool:
    """Whether an accuracy is not below another but for little."""
    return ours >= others - CLOSE


def equal(better: int, worse: int) -> bool:
    """Whether two predictors of the same examples are equally accurate."""
    return abs(better - worse) <= ERRORS * math.sqrt(better + worse)


def claim(scale: str, text: str, published: str | float | None, ours: str, holds: bool | None, note: str = "") -> Claim:
    """A claim, with no verdict at scale smoke."""
    if scale == "smoke":
        return Claim(text, published, ours, None, TOO_SMALL)
    return Claim(text, published, ours, holds, note)
