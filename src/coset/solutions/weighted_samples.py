"""States drawn from a solution, and how much each counts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from coset.core import state as states
from coset.core.errors import CosetError
from coset.core.state import State
from coset.solutions.solution import Solution
from coset.solutions.symmetrized import Symmetrized

BLOCK = 8  # states that are drawn in one go


@dataclass(frozen=True, eq=False)
class WeightedSamples:
    """How the samples are shared out: a component k of weight w_k gets d_k states, which count w_k / d_k each."""

    components: tuple[tuple[float, Solution], ...]
    counts: tuple[int, ...]

    @property
    def weights(self) -> Tensor:
        """Of each state, (draws,) float64; they sum to one."""
        each = [w / d for (w, _), d in zip(self.components, self.counts, strict=True)]
        return torch.tensor(each, dtype=torch.float64).repeat_interleave(torch.tensor(self.counts))

    @property
    def noise(self) -> Tensor | None:
        """The observation noise of each state, (draws,) float64; None for classifiers."""
        noises = [component.noise for _, component in self.components if component.noise is not None]
        if not noises:
            return None
        if len(noises) < len(self.components):
            raise CosetError("Some parts of this mixture have noise and some have none: give it to all or to none.")
        return torch.tensor(noises, dtype=torch.float64).repeat_interleave(torch.tensor(self.counts))

    def states(self, seed: int, device: torch.device, at_once: int) -> Iterator[State]:
        """The states on `device`, at most `at_once` in memory.

        Component k has a stream of noise of its own, seed + k. Whole blocks are drawn from it, so that the noise of a
        state does not depend on how many are drawn after it: along a path it is the same at every point.
        """
        block = min(BLOCK, at_once)
        for k, ((_, component), count) in enumerate(zip(self.components, self.counts, strict=True)):
            if not component.is_random:
                yield states.to(component.mean, device)
                continue
            own, generator = component.to(device), torch.Generator(device).manual_seed(seed + k)
            for done in range(0, count, block):
                yield from states.unstack(own.sample(block, generator))[: count - done]


def _computing(q: Solution) -> list[tuple[float, Solution]]:
    """The components of `q`; a symmetrized one computes what the solution it is made of does."""
    components: list[tuple[float, Solution]] = []
    for w, part in q.components():
        inner = _computing(part.q) if isinstance(part, Symmetrized) else [(1.0, part)]
        components += [(w * share, component) for share, component in inner]
    return components


def weighted_samples(q: Solution, samples: int) -> WeightedSamples:
    """Each component gets its share of the samples, at least two so that their spread is seen; a point gets one."""
    if samples < 1:
        raise CosetError(f"Cannot predict with {samples} samples: ask for one or more.")
    components = tuple(_computing(q))
    counts = tuple(max(math.ceil(w * samples), min(2, samples)) if part.is_random else 1 for w, part in components)
    return WeightedSamples(components, counts)
