"""How differently the networks of a population predict."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from coset.core import state as states
from coset.core.device import resolve
from coset.core.errors import DataError
from coset.core.progress import Counted
from coset.core.state import State, members
from coset.data import Data, as_split
from coset.populations.pair_barriers import draw_pairs
from coset.populations.population import PopulationLike, states_of
from coset.populations.predictions import predictions
from coset.solutions.likelihood import Classification, likelihood_of, log_softmax

# Networks whose mistakes are found, and compared, at once: the fewer, the more examples a call of one of them can take.
ROWS = 1024


def overlaps(
    queries: State,
    training: State,
    model: nn.Module,
    data: Data,
    apart: Tensor,
    *,
    device: str | torch.device | None = None,
    progress: Counted | None = None,
) -> Tensor:
    """[n] the `agreement` of each network with the one of `training` that it agrees with most, and is not apart from.

    progress hears how many networks of `training` were compared.
    """
    where, total = resolve(device, training), states.size(training)
    own = mistakes(queries, model, data, device=where)
    best = torch.zeros(len(own), dtype=torch.float64)
    for k in range(0, total, ROWS):
        theirs = mistakes(members(training, slice(k, k + ROWS)), model, data, device=where)
        best = torch.maximum(best, agreement(own, theirs, apart - k))
        if progress is not None:
            progress(k + len(theirs), total)
    return best


def mistakes(population: State, model: nn.Module, data: Data, *, device: str | torch.device | None = None) -> Tensor:
    """[n, examples] bool: which examples each network puts into a wrong class."""
    where = resolve(device, population)
    split = as_split(data)
    likelihood, targets = likelihood_of(split.targets), split.targets.to(where)
    if not isinstance(likelihood, Classification):
        raise DataError("Only classes are right or wrong, but the targets are values: give int64 classes.")
    wrong: list[Tensor] = []
    for examples, outputs in predictions(population, model, split.inputs, likelihood, where):
        likelihood.check(outputs[0], targets)
        wrong.append((outputs.argmax(-1) != targets[examples]).flatten(1))
    return torch.cat(wrong, 1)


def agreement(a: Tensor, b: Tensor, apart: Tensor | None = None) -> Tensor:
    """[n] the largest |A_i and B_j| / |A_i or B_j| over j, for the mistakes A_i of a network (arXiv 2506.07998).

    a: [n, examples] bool; b: [m, examples]; apart: [n], the network j that i is not compared with, -1 for none. Two
    networks without any mistake agree, by 1. The intersections are a product of matrices of zeros and ones, exact in
    float32 for less than 2^24 examples.
    """
    both = a.float() @ b.float().mT
    either = a.sum(1).unsqueeze(1) + b.sum(1) - both
    share = torch.where(either > 0, both / either.clamp(min=1), 1.0)
    if apart is not None:
        numbers = torch.arange(len(b), device=b.device)
        share = share.masked_fill(apart.to(b.device).unsqueeze(1) == numbers, 0.0)
    return share.amax(1).double().cpu()


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
    population: PopulationLike,
    model: nn.Module,
    data: Data,
    pairs: int = PAIRS,
    *,
    seed: int = 0,
    device: str | torch.device | None = None,
) -> Diversity:
    """Compare the predicted classes and their probabilities; the targets do not count."""
    population = states_of(population)
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
