"""Merge: align, average, and give the average's units the statistics that averaging took from them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from coset.alignment.align import Method, align_many
from coset.alignment.driver import Progress
from coset.alignment.many import ManyMatch, barycenter
from coset.alignment.repair import repair
from coset.core.errors import CosetError
from coset.core.state import State
from coset.data import Data
from coset.solutions.dirac import Dirac
from coset.solutions.load import as_solution
from coset.solutions.solution import Solution
from coset.symmetries.symmetry import Symmetry


def merge(
    solutions: Sequence[Solution | State],
    sym: Symmetry,
    weights: Sequence[float] | None = None,
    model: nn.Module | None = None,
    data: Data | None = None,
    *,
    reference: Solution | State | int | None = None,
    method: Method = "auto",
    generator: torch.Generator | None = None,
    device: str | torch.device | None = None,
    progress: Progress = lambda text: None,
) -> Solution:
    """The weighted average of the aligned solutions: all units are matched, one to one.

    With model and data, norm statistics are repaired on the data: batch norm's are recomputed, and nets without it
    get the average mean and deviation of their ends, unit by unit (REPAIR, Jordan et al. 2023). Keeping unmatched
    units apart (a wider merged net) is not done.
    """
    given = [as_solution(one) for one in solutions]
    if not given:
        raise CosetError("There are no solutions to merge.")
    weights = _weights(weights, len(given))
    if (model is None) != (data is None):
        raise CosetError("Repairing norm statistics needs both model and data.")
    match = align_many(given, sym, reference, method, model, data, generator, device=device, progress=progress)
    assert isinstance(match, ManyMatch)
    moved = [sym.act(element, one) for one, element in zip(given, match.elements, strict=True)]
    merged = barycenter(moved, weights)
    if model is None or data is None or not isinstance(merged, Dirac):
        return merged
    progress("repairing the norm statistics")
    ends = [one.mean for one in moved]
    return Dirac(repair(model, merged.state, ends, sym, data, weights=weights, device=device), merged.noise)


def _weights(weights: Sequence[float] | None, n: int) -> list[float]:
    found = [1.0] * n if weights is None else [float(w) for w in weights]
    if len(found) != n or not all(0 <= w < float("inf") for w in found) or not sum(found) > 0:
        raise CosetError(f"{n} solutions need {n} weights that are not negative and not all zero, not {found}.")
    return [w / max(found) for w in found]  # so that their sum is finite
