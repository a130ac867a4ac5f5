"""What was kept of networks trained together, as a population."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from coset import state as states
from coset.checks import finite_rows
from coset.inference.stepping import matmul_precision
from coset.populations.chunk import Chunk
from coset.populations.chunk_loss import measure
from coset.populations.population import Population
from coset.populations.population_file import once
from coset.solutions.ties import owners

MEASURED = 2048  # examples by which each kept iteration is measured; all of them would take longer than the training


def kept_population(chunk: Chunk, starts: Mapping[str, Tensor], seed: int, first: int) -> Population:
    """One run after the other, numbered from `first`, without those that diverged at any kept iteration.

    Labels are "run", "loss", "accuracy" of classifiers, and "iteration" if more than the end is kept. The examples
    that kept iterations are measured by are drawn from the seed.
    """
    split, settings, model = chunk.split, chunk.settings, chunk.model
    if settings.every:
        split = split.subset(min(MEASURED, len(split)), torch.Generator().manual_seed(seed))
    model.eval()
    how = split, chunk.likelihood, chunk.noise, chunk.batch_size, chunk.at_once
    with matmul_precision(settings.precision):
        found = [measure(chunk.outputs, kept, *how) for kept in chunk.kept]
    model.train()
    finite = torch.stack([loss.isfinite() for loss, _ in found]).all(0)
    for kept in chunk.kept:
        for x in kept.values():
            finite &= finite_rows(x)
    runs = finite.nonzero().flatten()

    times = len(chunk.kept)

    def left(x: Tensor) -> Tensor:
        """[n, ...] without those that diverged; not copied if none did."""
        return x if len(runs) == len(x) else x[runs]

    def joined(parts: list[Tensor]) -> Tensor:
        """[n, ...] of each kept iteration as [runs * iterations, ...]."""
        return left(parts[0]) if times == 1 else torch.stack([left(part) for part in parts], 1).flatten(0, 1)

    labels = {"run": (runs + first).float().repeat_interleave(times), "loss": joined([loss for loss, _ in found])}
    shares = [share for _, share in found if share is not None]
    if shares:
        labels["accuracy"] = joined(shares)
    if settings.every:
        labels["iteration"] = torch.tensor(chunk.iterations, device=runs.device).float().repeat(len(runs))
    tied = owners(states.of(model))
    return Population(
        once(tied, lambda name: joined([kept[name] for kept in chunk.kept])),
        once(tied, lambda name: left(starts[name]) if times == 1 else left(starts[name]).repeat_interleave(times, 0)),
        labels,
    )
