"""The loss of many networks on the same examples."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from coset import state as states
from coset.data import Split
from coset.populations.members import members
from coset.solutions.likelihood import Classification, Likelihood

Tensors = dict[str, Tensor]
Outputs = Callable[[Tensors, Tensor], Tensor]
"""Those (n, m, ...) of n networks on inputs (m, ...)."""


def per_example(likelihood: Likelihood, outputs: Tensor, targets: Tensor, noise: Tensor) -> Tensor:
    """-log p(y | x, w) of outputs (n, m, ...) for the same targets (m, ...): (n, m, ...)."""
    if not isinstance(likelihood, Classification):
        return -likelihood.log_prob(outputs, targets, noise)
    # The same as log_prob; classes are few, and along the examples, which lie last in memory, this is faster.
    wide = outputs.float() if outputs.element_size() < 4 else outputs
    return F.cross_entropy(wide.movedim(-1, 1), targets.expand(len(outputs), *targets.shape), reduction="none")


@torch.no_grad()
def measure(
    outputs: Outputs,
    population: Tensors,
    split: Split,
    likelihood: Likelihood,
    noise: Tensor,
    batch_size: int,
    at_once: int,
) -> tuple[Tensor, Tensor | None]:
    """The mean loss of each network over a split, (n,), and the accuracy of classifiers; `at_once` at a time."""
    groups = [members(population, slice(k, k + at_once)) for k in range(0, states.size(population), at_once)]
    found = [_measured(outputs, group, split, likelihood, noise, batch_size) for group in groups]
    shares = [share for _, share in found if share is not None]
    return torch.cat([loss for loss, _ in found]), torch.cat(shares) if shares else None


def _measured(
    outputs: Outputs, population: Tensors, split: Split, likelihood: Likelihood, noise: Tensor, batch_size: int
) -> tuple[Tensor, Tensor | None]:
    n, device = states.size(population), split.inputs.device
    loss, right = (torch.zeros(n, dtype=torch.float64, device=device) for _ in range(2))
    for inputs, targets in split.minibatches(batch_size, shuffle=False):
        found = outputs(population, inputs)
        loss += per_example(likelihood, found, targets, noise).flatten(1).sum(1)
        if isinstance(likelihood, Classification):
            right += (found.argmax(-1) == targets).flatten(1).sum(1)
    count = len(split) * split.targets[0].numel()
    if isinstance(likelihood, Classification):
        return (loss / count).float(), (right / count).float()
    return (loss / len(split)).float(), None
