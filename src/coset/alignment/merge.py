"""Merge: align, average, and give the average's units the statistics that averaging took from them."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import nn

from coset.alignment.align import align_many
from coset.alignment.many import barycenter
from coset.alignment.method import AlignMethod
from coset.alignment.repair import repair
from coset.core.errors import CosetError, SymmetryError
from coset.core.progress import Event, Progress
from coset.core.state import StateLike
from coset.data import Data
from coset.solutions.as_solution import as_solution
from coset.solutions.dirac import Dirac
from coset.solutions.solution import Solution
from coset.symmetries.fold import fold
from coset.symmetries.symmetry import Symmetry

logger = logging.getLogger(__name__)


def merge(
    solutions: Sequence[StateLike],
    sym: Symmetry,
    weights: Sequence[float] | None = None,
    model: nn.Module | None = None,
    data: Data | None = None,
    *,
    reference: StateLike | int | None = None,
    method: str | AlignMethod = "auto",
    generator: torch.Generator | None = None,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
) -> Solution:
    """The weighted average of the aligned solutions: all units are matched, one to one.

    Of points the mean, of diagonal Gaussians the mean of means and of deviations, which is the W2 barycenter. With
    model and data, norm statistics are repaired on the data: batch norm's are recomputed, and nets without it get the
    average mean and deviation of their ends, unit by unit (REPAIR, Jordan et al. 2023). Keeping unmatched units apart
    (a wider merged net) is not done.

    Gains of norms are folded first (`coset.fold`) where the residual stream can then be rotated, so those of the merged
    network are one.

    Args:
        solutions: What is averaged: solutions, states or modules, of one kind.
        sym: The symmetry of their model.
        weights: One for each, not negative; equal ones if not given.
        model: The network, to repair statistics and for methods that run it; with data.
        data: Training data.
        reference: One that all are aligned to, or its number; if not given, they are aligned jointly.
        method: As in `align_many`.
        generator: Order of the groups and of the solutions; by default of seed 0.
        device: Where to compute; by default where the first lies.
        progress: Told of each `Event`: solutions, rounds over all of them, and the repair.

    Returns:
        A solution of the kind of the first.

    Raises:
        CosetError: If weights, model and data or solutions do not fit together.

    Example:
        >>> merged = coset.merge([a, b], sym, model=model, data=digits.train)
        >>> plain = coset.Dirac(coset.state.lerp(a, b, 0.5))
        >>> coset.evaluate(merged, model, digits.test).accuracy > coset.evaluate(plain, model, digits.test).accuracy
        True
    """
    every = [_folded(as_solution(one), sym) for one in solutions]
    if reference is not None and not isinstance(reference, int):
        reference = _folded(as_solution(reference), sym)
    if not every:
        raise CosetError("There are no solutions to merge.")
    shares = _shares(weights, len(every))
    if (model is None) != (data is None):
        raise CosetError("Repairing norm statistics needs both model and data.")
    match = align_many(
        every,
        sym,
        reference,
        method,
        model=model,
        data=data,
        generator=generator,
        device=device,
        progress=progress,
    )
    images = [sym.act(element, one) for one, element in zip(every, match.elements, strict=True)]
    merged = barycenter(images, shares)
    if model is None or data is None or not isinstance(merged, Dirac):
        return merged
    if progress is not None:
        progress(Event(0, None, "stage", "repairing the norm statistics"))
    ends = [one.mean for one in images]
    return Dirac(repair(model, merged.state, ends, sym, data, weights=shares, device=device), merged.noise)


def _folded(solution: Solution, sym: Symmetry) -> Solution:
    """The same function with gains of one, where a stream can then turn; as it is where they cannot be folded."""
    if not isinstance(solution, Dirac) or not any(group.gains for group in sym.matrices):
        return solution
    try:
        return Dirac(fold(solution.state, sym), solution.noise)
    except SymmetryError as error:
        logger.info("gains are left as they are: %s", error)
        return solution


def _shares(weights: Sequence[float] | None, n: int) -> list[float]:
    """The weights as multiples of the largest, so that their sum is finite."""
    shares = [1.0] * n if weights is None else [float(w) for w in weights]
    if len(shares) != n or not all(0 <= w < float("inf") for w in shares) or not sum(shares) > 0:
        raise CosetError(f"{n} solutions need {n} weights that are not negative and not all zero, not {shares}.")
    return [w / max(shares) for w in shares]
