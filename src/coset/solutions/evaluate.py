"""How good a solution is on data."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from coset.checks import State
from coset.data import Data, as_split
from coset.solutions import metrics
from coset.solutions.load import as_solution
from coset.solutions.predictive import BATCH, predictive
from coset.solutions.solution import Solution


@dataclass(frozen=True)
class Evaluation:
    """Averages over the examples.

    nll: -log p(y | x) in nats; accuracy: of the most probable class; ece: expected calibration error in 15 bins;
    brier: from 0 to 2; nll_error: standard error of nll from drawing finitely many states, zero for a Dirac and
    None if unknown since one state was drawn.
    """

    nll: float
    accuracy: float
    ece: float
    brier: float
    nll_error: float | None


def evaluate(
    q: State | Solution,
    model: nn.Module,
    data: Data,
    samples: int = 128,
    *,
    batch_size: int = BATCH,
    generator: torch.Generator | None = None,
    device: str | torch.device | None = None,
) -> Evaluation:
    """Measure the predictions of `coset.predict` against the targets, which are classes."""
    split = as_split(data)
    found = predictive(
        as_solution(q),
        model,
        split.inputs,
        samples,
        targets=split.targets,
        batch_size=batch_size,
        generator=generator,
        device=device,
    )
    log_probs, targets = found.log_probs, split.targets.to(found.log_probs.device)
    return Evaluation(
        metrics.nll(log_probs, targets),
        metrics.accuracy(log_probs, targets),
        metrics.ece(log_probs, targets),
        metrics.brier(log_probs, targets),
        found.loss_error,
    )
