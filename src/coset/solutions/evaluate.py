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
    """Averages over the examples; what classes or values do not have is None.

    nll: -log p(y | x) in nats; accuracy: of the most probable class; ece: expected calibration error in 15 bins;
    brier: from 0 to 2; nll_error: standard error of nll from drawing finitely many states, zero for a Dirac and
    None if unknown since one state was drawn; rmse: root of the mean squared error of the predictive mean; spread:
    standard deviation over the drawn states of the nll of each alone, None if there is but one.
    """

    nll: float
    accuracy: float | None
    ece: float | None
    brier: float | None
    nll_error: float | None
    rmse: float | None = None
    spread: float | None = None


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
    """Measure predictions against the targets, classes as by `coset.predict` or values as by `coset.moments`.

    Values need a solution with noise: log p(y | x) = log mean_s N(y; model(x; w_s), noise^2) with w_s ~ q.
    """
    split = as_split(data)
    found = predictive(
        as_solution(q),
        model,
        split.inputs,
        split.targets,
        samples,
        batch_size=batch_size,
        generator=generator,
        device=device,
    )
    logs, mean = found.log_probs, found.mean
    targets = split.targets
    return Evaluation(
        nll=found.loss,
        accuracy=None if logs is None else metrics.accuracy(logs, targets.to(logs.device)),
        ece=None if logs is None else metrics.ece(logs, targets.to(logs.device)),
        brier=None if logs is None else metrics.brier(logs, targets.to(logs.device)),
        nll_error=found.loss_error,
        rmse=None if mean is None else metrics.rmse(mean, targets.to(mean.device)),
        spread=found.spread,
    )
