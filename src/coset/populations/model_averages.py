"""Bayesian model averaging: how good the averaged predictions of 1, 2, 4, ... networks are."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from coset.core import state as states
from coset.core.functional import resolve
from coset.core.progress import Progress
from coset.core.show import Shown, Table
from coset.data import Data, as_split
from coset.populations.population import PopulationLike, states_of
from coset.populations.population_outputs import predictions
from coset.populations.scores import finite
from coset.solutions.likelihood import Classification, likelihood_of, log_softmax, of_targets
from coset.solutions.metrics import BINS


@dataclass(frozen=True)
class ModelAverage:
    """How good p(y | x) = (1/count) sum_k p(y | x, w_k) is, on the average over disjoint sets of networks.

    The errors are standard errors from the choice of networks, None for one set; test examples are the same for all.

    Args:
        count: How many networks are averaged.
        sets: How many sets of so many there are.
        nll: Negative log-likelihood in nats per example.
        nll_error: Its standard error.
        accuracy: Of classes; None for a regression.
        accuracy_error: Its standard error.
        ece: The expected calibration error of classes, in 15 bins.
        ece_error: Its standard error.
        rmse: The root mean square error of the averaged values of a regression.
        rmse_error: Its standard error.

    Example:
        >>> coset.model_averages(population, model, digits.test).rows[-1].count
        8
    """

    count: int
    sets: int
    nll: float
    nll_error: float | None
    accuracy: float | None = None
    accuracy_error: float | None = None
    ece: float | None = None
    ece_error: float | None = None
    rmse: float | None = None
    rmse_error: float | None = None


@dataclass(frozen=True, repr=False)
class ModelAverages(Shown):
    """How good the averaged predictions of 1, 2, 4, ... networks are, as `coset.model_averages` measures it.

    Args:
        rows: One `ModelAverage` for each number of networks, rising.

    Example:
        >>> [row.count for row in coset.model_averages(population, model, digits.test).rows]
        [1, 2, 4, 8]
    """

    rows: tuple[ModelAverage, ...]

    def to_json(self) -> str:
        """A list of objects; what is not finite is null."""
        rows = [{name: finite(x) for name, x in asdict(row).items()} for row in self.rows]
        return json.dumps(rows, allow_nan=False)

    def _shown(self) -> Table:
        names = [
            name for name in ("nll", "accuracy", "ece", "rmse") if any(getattr(x, name) is not None for x in self.rows)
        ]
        numbers = [(row.count, *(getattr(row, name) for name in names)) for row in self.rows]
        return Table("Averaged predictions", [("networks", *names), *numbers])


def model_averages(
    population: PopulationLike,
    model: nn.Module,
    data: Data,
    noise: float | None = None,
    *,
    seed: int = 0,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
) -> ModelAverages:
    """Bayesian model averaging: average the predictions of 1, 2, 4, ... and of all n networks, in one pass over them.

    The networks are put in random order, so that neighbours, which may be of one run, do not end up in one set. Sets
    of 2k networks are joined from two of k.

    Args:
        population: A `Population`, tensors [n, ...] by name, or a list of states, modules or solutions.
        model: What the networks are states of; it is not changed.
        data: Classes, or values of a regression.
        noise: The standard deviation of the targets of a regression.
        seed: Of the order of the networks.
        device: Where to work; by default where the population is.
        progress: Hears of the examples.

    Returns:
        A row for each number of networks.

    Example:
        >>> one, *_, all_of_them = coset.model_averages(population, model, digits.test).rows
        >>> all_of_them.nll < one.nll
        True
    """
    population = states_of(population)
    where = resolve(device, population)
    split = as_split(data)
    likelihood, targets = likelihood_of(split.targets), split.targets.to(where)
    likelihood.check_noise(noise)
    n = states.size(population)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    sums = {count: _Sums(sets, where) for count, sets in _counts(n)}
    for examples, outputs in predictions(population, model, split.inputs, likelihood, where, progress):
        likelihood.check(outputs[0], targets)
        outputs, truth = outputs[order.to(where)], targets[examples]
        if isinstance(likelihood, Classification):
            logs = log_softmax(outputs)
            likely, said, truth = of_targets(logs, truth).flatten(1), logs.exp().flatten(1, -2), truth.flatten()
        else:
            likely, said = likelihood.log_prob(outputs, truth, noise), outputs
        for count, averaged in _averaged(likely, said):
            sums[count].add(*averaged, truth)
    return ModelAverages(tuple(one.average(count) for count, one in sums.items()))


def _counts(n: int) -> Iterator[tuple[int, int]]:
    """(networks in a set, sets): powers of two, and all."""
    count = 1
    while count < n:
        yield count, n // count
        count *= 2
    yield n, 1


def _averaged(likely: Tensor, said: Tensor) -> Iterator[tuple[int, tuple[Tensor, Tensor]]]:
    """(count, averages over the sets of so many networks): log-likelihoods [sets, m] and predictions [sets, m, k].

    Likelihoods are averaged as logarithms, since those of one network may be too small for a float.
    """
    n = len(likely)
    whole = likely.logsumexp(0, keepdim=True) - math.log(n), said.mean(0, keepdim=True)
    for count, sets in _counts(n):
        yield count, whole if count == n else (likely, said)
        pairs = 2 * (sets // 2)
        likely = torch.logaddexp(likely[0:pairs:2], likely[1:pairs:2]) - math.log(2)
        said = (said[0:pairs:2] + said[1:pairs:2]) / 2


class _Sums:
    """Sums over examples for each of some sets, in float64."""

    def __init__(self, sets: int, device: torch.device) -> None:
        self.sets, self.classes, self.examples = sets, False, 0
        self.nll, self.hits, self.squares = torch.zeros(3, sets, dtype=torch.float64, device=device)
        self.gaps = torch.zeros(sets * BINS, dtype=torch.float64, device=device)  # of confidence and accuracy

    def add(self, likely: Tensor, said: Tensor, truth: Tensor) -> None:
        """likely: [sets, m]; said: probabilities [sets, m, classes] or values [sets, m, k]; truth: [m] or [m, k]."""
        self.examples += likely.shape[1]
        self.nll -= likely.sum(1, dtype=torch.float64)
        self.classes = not truth.is_floating_point()
        if not self.classes:
            self.squares += (said - truth).square().mean(-1).sum(1, dtype=torch.float64)
            return
        confidence, guess = said.max(-1)
        hit = guess == truth
        self.hits += hit.sum(1)
        # As in `coset.solutions.metrics.ece`: bins are open below.
        which = (confidence.double() * BINS).ceil().long().clamp(1, BINS) - 1
        which += BINS * torch.arange(self.sets, device=which.device).unsqueeze(1)
        self.gaps.index_add_(0, which.flatten(), (confidence.double() - hit.double()).flatten())

    def average(self, count: int) -> ModelAverage:
        nll = _mean(self.nll / self.examples)
        if not self.classes:
            rmse = _mean((self.squares / self.examples).sqrt())
            return ModelAverage(count, self.sets, *nll, rmse=rmse[0], rmse_error=rmse[1])
        ece = self.gaps.reshape(self.sets, BINS).abs().sum(1) / self.examples
        return ModelAverage(count, self.sets, *nll, *_mean(self.hits / self.examples), *_mean(ece))


def _mean(x: Tensor) -> tuple[float, float | None]:
    """With its standard error."""
    return float(x.mean()), float(x.std()) / math.sqrt(len(x)) if len(x) > 1 else None
