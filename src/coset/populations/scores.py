"""How good each network of a population is by itself."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coset.core.functional import resolve
from coset.core.progress import Progress
from coset.core.show import Shown, Table
from coset.data import Data, as_split
from coset.populations.population import PopulationLike, states_of
from coset.populations.population_outputs import predictions
from coset.solutions.likelihood import Classification, likelihood_of

LEVELS = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


@dataclass(frozen=True)
class Spread:
    """How numbers are spread, as `Scores.losses` is.

    Args:
        n: How many numbers there are.
        mean: Their mean.
        std: Their standard deviation; None for one number.
        least: The least of them.
        largest: The largest of them.
        quantiles: Their quantiles at 1, 5, 25, 50, 75, 95 and 99 percent.

    Example:
        >>> coset.scores(population, model, digits.test).losses.n
        8
    """

    n: int
    mean: float
    std: float | None
    least: float
    largest: float
    quantiles: tuple[float, ...]

    def record(self) -> dict[str, object]:
        """For JSON; what is not finite is None."""
        return {
            "n": self.n,
            "mean": finite(self.mean),
            "std": finite(self.std),
            "least": finite(self.least),
            "largest": finite(self.largest),
            "quantiles": {f"{level:g}": finite(x) for level, x in zip(LEVELS, self.quantiles, strict=True)},
        }


SPREAD_HEADER: tuple[object, ...] = ("", "mean", "deviation", "least", "largest")


def spread_row(label: str, one: Spread) -> tuple[object, ...]:
    """Of a table with `SPREAD_HEADER`."""
    return label, one.mean, "" if one.std is None else one.std, one.least, one.largest


def spread(values: Tensor) -> Spread:
    """The spread of values [n]; quantiles are linear between the values next to them."""
    x = values.double().cpu()
    return Spread(
        n=len(x),
        mean=float(x.mean()),
        std=float(x.std()) if len(x) > 1 else None,
        least=float(x.min()),
        largest=float(x.max()),
        quantiles=tuple(torch.quantile(x, torch.tensor(LEVELS, dtype=torch.float64)).tolist()),
    )


def finite(x: float | None) -> float | None:
    """`x`, or None if JSON has no such number."""
    return x if x is not None and math.isfinite(x) else None


@dataclass(frozen=True, eq=False, repr=False)
class Scores(Shown):
    """How good each of n networks is by itself, as `coset.scores` measures it.

    Args:
        loss: [n] float64, -mean_i log p(y_i | x_i) in nats.
        accuracy: [n] float64; None for a regression.

    Example:
        >>> scores = coset.scores(population, model, digits.test)
        >>> scores.accuracy.shape
        torch.Size([8])
    """

    loss: Tensor
    accuracy: Tensor | None

    @property
    def losses(self) -> Spread:
        """How the losses are spread."""
        return spread(self.loss)

    @property
    def accuracies(self) -> Spread | None:
        """How the accuracies are spread; None for a regression."""
        return None if self.accuracy is None else spread(self.accuracy)

    def to_json(self) -> str:
        """How both are spread, as one JSON object."""
        accuracies = self.accuracies
        record = {"loss": self.losses.record(), "accuracy": None if accuracies is None else accuracies.record()}
        return json.dumps(record, allow_nan=False)

    def _shown(self) -> Table:
        rows = [SPREAD_HEADER, spread_row("loss", self.losses)]
        if (accuracies := self.accuracies) is not None:
            rows.append(spread_row("accuracy", accuracies))
        return Table(f"Scores of {len(self.loss):,} networks", rows)


def scores(
    population: PopulationLike,
    model: nn.Module,
    data: Data,
    noise: float | None = None,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
) -> Scores:
    """Evaluate every network of a population alone.

    Args:
        population: A `Population`, tensors [n, ...] by name, or a list of states, modules or solutions.
        model: What the networks are states of; it is not changed.
        data: Classes, or values of a regression, in evaluation mode of the model.
        noise: The standard deviation of the targets of a regression.
        device: Where to work; by default where the population is.
        progress: Hears of the examples.

    Returns:
        The loss and the accuracy of each.

    Raises:
        StateError: If the networks are none of this model, or there are none.
        DataError: If the targets do not belong to the outputs.

    Example:
        >>> scores = coset.scores(population, model, digits.test)
        >>> scores.accuracies.mean > 0.3
        True
    """
    population = states_of(population)
    where = resolve(device, population)
    split = as_split(data)
    likelihood, targets = likelihood_of(split.targets), split.targets.to(where)
    likelihood.check_noise(noise)
    losses: list[Tensor] = []
    hits: list[Tensor] = []
    for examples, outputs in predictions(population, model, split.inputs, likelihood, where, progress):
        likelihood.check(outputs[0], targets)
        part = likelihood.log_prob(outputs, targets[examples], noise)
        losses.append(-part.flatten(1).sum(1, dtype=torch.float64))
        if isinstance(likelihood, Classification):
            hits.append((outputs.argmax(-1) == targets[examples]).flatten(1).sum(1, dtype=torch.float64))
    # A value has several coordinates, a class is one: examples are what remains.
    count = targets.numel() if hits else len(targets)
    return Scores(torch.stack(losses).sum(0).cpu() / count, torch.stack(hits).sum(0).cpu() / count if hits else None)
