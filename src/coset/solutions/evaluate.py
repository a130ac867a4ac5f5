"""How good a solution is on data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from coset.core.errors import CosetError
from coset.core.state import State
from coset.data import Data, Split, as_split
from coset.solutions import metrics
from coset.solutions.as_solution import as_solution
from coset.solutions.dirac import Dirac
from coset.solutions.predictive import BATCH, predictive
from coset.solutions.solution import Solution

if TYPE_CHECKING:
    from coset.solutions.pgd import PGD


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
    attack: PGD | None = None,
) -> Evaluation:
    """Measure predictions against the targets, classes as by `coset.predict` or values as by `coset.moments`.

    Values need a solution with noise: log p(y | x) = log mean_s N(y; model(x; w_s), noise^2) with w_s ~ q.
    With an attack, which is on a Dirac, predictions are for the inputs that it finds.
    """
    given, split = as_solution(q), as_split(data)
    if attack is not None:
        split = attacked(one_network(given), attack, model, split, batch_size, generator, device)
    found = predictive(
        given,
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


def one_network(q: Solution) -> Dirac:
    """`q` itself, refused unless it is a Dirac: an attack follows the gradient of one network."""
    if isinstance(q, Dirac):
        return q
    raise CosetError(
        f"An attack is on one network, but this solution is a {type(q).__name__}: give a Dirac, such as "
        "coset.Dirac(q.mean)."
    )


def attacked(
    q: Dirac,
    attack: PGD,
    model: nn.Module,
    split: Split,
    batch_size: int,
    generator: torch.Generator | None,
    device: str | torch.device | None,
) -> Split:
    """The examples with inputs that the attack on `q` finds."""
    inputs = attack.on(model, q.state, split.inputs, split.targets, batch_size, generator, device)
    return Split(inputs, split.targets)
