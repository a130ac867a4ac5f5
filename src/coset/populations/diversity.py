"""How differently the networks of a population predict."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from coset.core import state as states
from coset.core.errors import DataError
from coset.core.functional import resolve
from coset.core.progress import Progress
from coset.core.show import Shown, Table
from coset.data import Data, as_split
from coset.populations.pair_barriers import draw_pairs
from coset.populations.population import PopulationLike, states_of
from coset.populations.population_outputs import predictions
from coset.solutions.likelihood import Classification, likelihood_of, log_softmax

PAIRS = 2048
ENTRIES = 2**23  # probabilities of pairs at once


@dataclass(frozen=True, repr=False)
class Diversity(Shown):
    """How differently networks predict, as `coset.diversity` measures it: means over the examples.

    Divergences are in nats, from 0 where all networks predict the same. The errors are standard errors from drawing
    finitely many pairs, zero if all there are were taken.

    Args:
        pairwise: The Jensen-Shannon divergence H((p + q) / 2) - (H(p) + H(q)) / 2 of two networks, at most log 2.
        pairwise_error: Its standard error.
        whole: That of all n networks, H(mean p) - mean H(p), at most log of the smaller of n and classes.
        disagreement: The share of examples for which two networks choose another class.
        disagreement_error: Its standard error.
        pairs: How many pairs were compared.

    Example:
        >>> coset.diversity(population, model, digits.test).pairs
        28
    """

    pairwise: float
    pairwise_error: float
    whole: float
    disagreement: float
    disagreement_error: float
    pairs: int

    def to_json(self) -> str:
        """All numbers as one JSON object."""
        return json.dumps(asdict(self), allow_nan=False)

    def _shown(self) -> Table:
        rows: list[tuple[object, ...]] = [
            ("divergence of two networks, nats", self.pairwise, f"+- {self.pairwise_error:.2g}"),
            ("divergence of all networks, nats", self.whole),
            ("another class for", f"{self.disagreement:.2%}", f"+- {self.disagreement_error:.2%} of the examples"),
        ]
        return Table(f"Diversity, over {self.pairs:,} pairs of networks", rows)


def diversity(
    population: PopulationLike,
    model: nn.Module,
    data: Data,
    pairs: int = PAIRS,
    *,
    seed: int = 0,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
) -> Diversity:
    """Compare the predicted classes of networks and their probabilities.

    Args:
        population: A `Population`, tensors [n, ...] by name, or a list of states, modules or solutions.
        model: What the networks are states of; it is not changed.
        data: A classification, of which only the inputs count.
        pairs: How many random pairs to compare; all there are if they are not more.
        seed: Of the pairs.
        device: Where to work; by default where the population is.
        progress: Hears of the examples.

    Returns:
        Divergences of two networks and of all, and how often two choose another class.

    Raises:
        DataError: If the targets are values of a regression.

    Example:
        >>> diversity = coset.diversity(population, model, digits.test)
        >>> 0 < diversity.pairwise < 0.7
        True
    """
    population = states_of(population)
    where = resolve(device, population)
    split = as_split(data)
    likelihood = likelihood_of(split.targets)
    if not isinstance(likelihood, Classification):
        raise DataError("Diversity compares predicted classes, but the targets are values: give int64 classes.")
    n = states.size(population)
    places = draw_pairs(n, pairs, seed).to(where)
    divergence, unlike = torch.zeros(2, len(places), dtype=torch.float64, device=where)
    whole, examples = 0.0, 0
    for _, outputs in predictions(population, model, split.inputs, likelihood, where, progress):
        # In float64, since the divergence of networks much alike is a small difference of entropies.
        probs = log_softmax(outputs.double()).exp().flatten(1, -2)
        own, guess = _entropy(probs), probs.argmax(-1)
        whole += float((_entropy(probs.mean(0)) - own.mean(0)).sum())
        examples += probs.shape[1]
        step = max(ENTRIES // probs[0].numel(), 1)
        for k in range(0, len(places), step):
            i, j = places[k : k + step].unbind(1)
            both = _entropy((probs[i] + probs[j]) / 2) - (own[i] + own[j]) / 2
            divergence[k : k + step] += both.sum(1)
            unlike[k : k + step] += (guess[i] != guess[j]).sum(1)
    complete = len(places) == n * (n - 1) // 2
    pairwise, pairwise_error = _mean(divergence / examples, complete)
    disagreement, disagreement_error = _mean(unlike / examples, complete)
    return Diversity(
        pairwise, pairwise_error, max(whole / examples, 0.0), disagreement, disagreement_error, len(places)
    )


def _entropy(probs: Tensor) -> Tensor:
    """-sum_c p_c log p_c over the last dimension."""
    entropy: Tensor = torch.special.entr(probs).sum(-1)
    return entropy


def _mean(x: Tensor, complete: bool) -> tuple[float, float]:
    """With its standard error; rounding below zero is cut off."""
    error = 0.0 if complete or len(x) == 1 else float(x.std()) / math.sqrt(len(x))
    return max(float(x.mean()), 0.0), error
