"""How differently the networks of a population predict."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from coset import state as states
from coset.checks import State
from coset.data import Data, as_split
from coset.errors import DataError
from coset.populations.pairs import draw_pairs
from coset.populations.predictions import predictions
from coset.solutions.device import resolve
from coset.solutions.likelihood import Classification, likelihood_of, log_softmax

PAIRS = 2048
ENTRIES = 2**23  # probabilities of pairs at once


@dataclass(frozen=True)
class Diversity:
    """Means over the examples; divergences in nats, from 0 where all networks predict the same.

    pairwise: the Jensen-Shannon divergence H((p + q) / 2) - (H(p) + H(q)) / 2 of two networks, at most log 2
    whole: that of all n networks, H(mean p) - mean H(p), at most log of the smaller of n and classes
    disagreement: the share of examples for which two networks choose another class
    The errors are standard errors from drawing finitely many pairs, zero if all `pairs` there are were taken.
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


def diversity(
    population: State,
    model: nn.Module,
    data: Data,
    pairs: int = PAIRS,
    *,
    seed: int = 0,
    device: str | torch.device | None = None,
) -> Diversity:
    """Compare the predicted classes and their probabilities; the targets do not count."""
    where = resolve(device, population)
    split = as_split(data)
    likelihood = likelihood_of(split.targets)
    if not isinstance(likelihood, Classification):
        raise DataError("Diversity compares predicted classes, but the targets are values: give int64 classes.")
    n = states.size(population)
    chosen = draw_pairs(n, pairs, seed).to(where)
    apart, unlike = torch.zeros(2, len(chosen), dtype=torch.float64, device=where)
    whole, examples = 0.0, 0
    for _, outputs in predictions(population, model, split.inputs, likelihood, where):
        # In float64, since the divergence of networks much alike is a small difference of entropies.
        probs = log_softmax(outputs.double()).exp().flatten(1, -2)
        own, guess = _entropy(probs), probs.argmax(-1)
        whole += float((_entropy(probs.mean(0)) - own.mean(0)).sum())
        examples += probs.shape[1]
        step = max(ENTRIES // probs[0].numel(), 1)
        for k in range(0, len(chosen), step):
            i, j = chosen[k : k + step].unbind(1)
            both = _entropy((probs[i] + probs[j]) / 2) - (own[i] + own[j]) / 2
            apart[k : k + step] += both.sum(1)
            unlike[k : k + step] += (guess[i] != guess[j]).sum(1)
    complete = len(chosen) == n * (n - 1) // 2
    return Diversity(
        *_mean(apart / examples, complete), max(whole / examples, 0.0), *_mean(unlike / examples, complete), len(chosen)
    )


def _entropy(probs: Tensor) -> Tensor:
    """-sum_c p_c log p_c over the last dimension."""
    found: Tensor = torch.special.entr(probs).sum(-1)
    return found


def _mean(x: Tensor, complete: bool) -> tuple[float, float]:
    """With its standard error; rounding below zero is cut off."""
    error = 0.0 if complete or len(x) == 1 else float(x.std()) / math.sqrt(len(x))
    return max(float(x.mean()), 0.0), error
