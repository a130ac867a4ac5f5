"""Learning rates over a run, as a factor of the largest one. Without state, so a run can go on from any step."""

import math
from collections.abc import Callable, Mapping

WARM = 0.3  # of a one-cycle run, which starts at 1/25 as torch's does
COLD = 1 / 25


def constant(done: float) -> float:
    """1."""
    return 1.0


def cosine(done: float) -> float:
    """(1 + cos(pi done)) / 2, from 1 to 0."""
    return (1 + math.cos(math.pi * done)) / 2


def onecycle(done: float) -> float:
    """Up along a line from 1/25 to 1, then down along a cosine to 0 (Smith & Topin 2018)."""
    return COLD + (1 - COLD) * done / WARM if done < WARM else cosine((done - WARM) / (1 - WARM))


SCHEDULES: Mapping[str, Callable[[float], float]] = {"cosine": cosine, "constant": constant, "onecycle": onecycle}
"""By name: the share of steps done, from 0 to 1, to the factor."""
