"""How alike the mistakes of networks are: those of a sample and of its copy are the same (arXiv 2506.07998)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from coset.core import state as states
from coset.core.errors import DataError
from coset.core.functional import resolve
from coset.core.progress import Event, Progress
from coset.core.state import State, members
from coset.data import Data, as_split
from coset.populations.population_outputs import predictions
from coset.solutions.likelihood import Classification, likelihood_of

# Networks whose mistakes are compared at once: the fewer, the more examples a call of one of them can take.
ROWS = 1024


def overlaps(
    queries: State,
    training: State,
    model: nn.Module,
    data: Data,
    apart: Tensor,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
) -> Tensor:
    """[n] the `agreement` of each network with the one of `training` that it agrees with most, and is not apart from.

    progress: hears how many networks of `training` were compared.
    """
    where, total = resolve(device, training), states.size(training)
    own = mistakes(queries, model, data, device=where)
    best = torch.zeros(len(own), dtype=torch.float64)
    for k in range(0, total, ROWS):
        theirs = mistakes(members(training, slice(k, k + ROWS)), model, data, device=where)
        best = torch.maximum(best, agreement(own, theirs, apart - k))
        if progress is not None:
            progress(Event(k + len(theirs), total, "network"))
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
    """[n] the largest |A_i and B_j| / |A_i or B_j| over j, for the mistakes A_i of a network.

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
