"""How good a solution is on data."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import nn

from coset.core.errors import CosetError
from coset.core.show import Shown, Table
from coset.core.state import StateLike
from coset.data import Data, Split, as_split
from coset.solutions import metrics
from coset.solutions.as_solution import as_solution
from coset.solutions.dirac import Dirac
from coset.solutions.pgd import PGD
from coset.solutions.predictive import BATCH, predictive
from coset.solutions.solution import Solution


@dataclass(frozen=True, repr=False)
class Evaluation(Shown):
    """Averages over the examples; what classes or values do not have is None.

    Args:
        nll: -log p(y | x) in nats.
        accuracy: the share of examples whose most probable class is the target.
        ece: expected calibration error in 15 bins (Guo et al. 2017).
        brier: the mean squared distance of probabilities from the truth, from 0 to 2 (Brier 1950).
        nll_error: standard error of `nll` from drawing finitely many states, zero for a Dirac and None if unknown since
            one state was drawn.
        rmse: root of the mean squared error of the predictive mean.
        spread: standard deviation over the drawn states of the nll of each alone, None if there is but one.

    Example:
        >>> report = coset.evaluate(a, model, digits.test)
        >>> 0 < report.accuracy < 1, report.rmse is None
        (True, True)
    """

    nll: float
    accuracy: float | None
    ece: float | None
    brier: float | None
    nll_error: float | None
    rmse: float | None = None
    spread: float | None = None

    def _shown(self) -> Table:
        values = [(field.name, getattr(self, field.name)) for field in fields(self)]
        return Table("Evaluation", [(name, float(value)) for name, value in values if value is not None])


def evaluate(
    q: StateLike,
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

    Args:
        q: a solution, a state or a module.
        model: returns logits (n, ..., classes) or values (n, k). It runs in evaluation mode and is not changed.
        data: `(inputs, targets)` tensors, a `Split` or a DataLoader.
        samples: states drawn from `q`; a Dirac needs one evaluation, whatever their number.
        batch_size: inputs in a call of the model.
        generator: what the states are drawn from; without one they are the same at each call.
        device: where the model runs, the solution's own by default.
        attack: predictions are for the inputs that it finds for this very network, which must be a Dirac.

    Returns:
        The averages.

    Raises:
        CosetError: the solution has noise and the targets are classes, or the other way round, or there is an attack
            and the solution is no Dirac.
        ModelError: the model returns something else than the targets need, or NaN.

    Example:
        >>> report = coset.evaluate(posterior, model, digits.test, samples=8)
        >>> report.nll_error > 0
        True
    """
    solution, split = as_solution(q), as_split(data)
    if attack is not None:
        split = attack_inputs(one_network(solution), attack, model, split, batch_size, generator, device)
    prediction = predictive(
        solution,
        model,
        split.inputs,
        split.targets,
        samples,
        batch_size=batch_size,
        generator=generator,
        device=device,
    )
    logs, mean = prediction.log_probs, prediction.mean
    targets = split.targets
    return Evaluation(
        nll=prediction.loss,
        accuracy=None if logs is None else metrics.accuracy(logs, targets.to(logs.device)),
        ece=None if logs is None else metrics.ece(logs, targets.to(logs.device)),
        brier=None if logs is None else metrics.brier(logs, targets.to(logs.device)),
        nll_error=prediction.loss_error,
        rmse=None if mean is None else metrics.rmse(mean, targets.to(mean.device)),
        spread=prediction.spread,
    )


def one_network(q: Solution) -> Dirac:
    """`q` itself, refused unless it is a Dirac: an attack follows the gradient of one network."""
    if isinstance(q, Dirac):
        return q
    raise CosetError(
        f"An attack is on one network, but this solution is a {type(q).__name__}: give a Dirac, such as "
        "coset.Dirac(q.mean)."
    )


def attack_inputs(
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
