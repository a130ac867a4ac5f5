"""Is one method better than another, run by run? Runs of the same number share start, order of the data and noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

LEVEL = 0.05


@dataclass(frozen=True)
class PairedDifference:
    """Mean and standard error of second - first, and the two-sided p-values that both are alike.

    t: Student's test of the mean difference; wilcoxon: the signed rank test, which with n runs is never below
    2^(1 - n).
    """

    difference: float
    error: float
    t: float
    wilcoxon: float


def paired(first: Sequence[float], second: Sequence[float]) -> PairedDifference:
    """Compare runs pair by pair; where all are the same, p is 1."""
    differences = np.subtract(second, first)
    mean, error = float(differences.mean()), float(differences.std(ddof=1)) / math.sqrt(len(differences))
    if not differences.any():
        return PairedDifference(0.0, 0.0, 1.0, 1.0)
    t = float(stats.ttest_1samp(differences, 0.0).pvalue) if error > 0 else 0.0
    return PairedDifference(mean, error, t, float(stats.wilcoxon(differences).pvalue))


def holm(values: Sequence[float]) -> list[float]:
    """p-values corrected for their number n: the k-th smallest times n - k + 1, not decreasing (Holm 1979)."""
    corrected = [1.0] * len(values)
    least = 0.0
    for rank, k in enumerate(sorted(range(len(values)), key=lambda k: values[k])):
        least = max(least, min(1.0, values[k] * (len(values) - rank)))
        corrected[k] = least
    return corrected
