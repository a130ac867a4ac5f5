"""All random numbers of one replica."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor


class Randomness:
    """Torch's global generators as one replica sees them: dropout draws from these and knows no other.

    They are set while the replica works and put back afterwards, so neither side disturbs the other.
    """

    def __init__(self, seed: int, replica: int, device: torch.device) -> None:
        """Replicas of all seeds differ: seed 0, replica 1 is not seed 1, replica 0."""
        self._generators = [torch.default_generator]
        if device.type == "cuda":
            self._generators.append(torch.cuda.default_generators[device.index])
        words = np.random.SeedSequence([seed, replica]).generate_state(1, np.uint64)
        self.states = [torch.Generator(g.device).manual_seed(int(words[0] >> 2)).get_state() for g in self._generators]

    @property
    def generator(self) -> torch.Generator:
        """The one on the replica's device, for data; to be used while `active`."""
        return self._generators[-1]

    @contextmanager
    def active(self) -> Iterator[None]:
        """Let everything inside draw from this replica's numbers."""
        outside = _states(self._generators)
        _restore(self._generators, self.states)
        try:
            yield
        finally:
            self.states = _states(self._generators)
            _restore(self._generators, outside)


def _states(generators: list[torch.Generator]) -> list[Tensor]:
    return [generator.get_state() for generator in generators]


def _restore(generators: list[torch.Generator], states: list[Tensor]) -> None:
    for generator, state in zip(generators, states, strict=True):
        generator.set_state(state)
