"""All random numbers of the networks that are trained together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

Row = tuple[int, ...]
"""Which network: (replica,), or (replica, copy) where a solution takes several."""


class Randomness:
    """A generator for each network, and torch's global ones as the networks see them.

    Starting points, the order of the data and the noise of weights come from a network's own generator, whoever is
    trained beside it. What a module draws by itself, as dropout does, comes from torch's global generators, which
    are set while the networks work and put back afterwards, so neither side disturbs the other.
    """

    def __init__(self, seed: int, rows: Sequence[Row], device: torch.device) -> None:
        """Networks of all seeds differ: seed 0, replica 1 is not seed 1, replica 0."""
        self._global = [torch.default_generator]
        if device.type == "cuda":
            self._global.append(torch.cuda.default_generators[device.index])
        self._is_active = False
        self.generators = [torch.Generator(device).manual_seed(_word(seed, row, 0)) for row in rows]
        self._outer = [torch.Generator(g.device).manual_seed(_word(seed, rows[0], 1)).get_state() for g in self._global]

    @property
    def states(self) -> list[Tensor]:
        """Where all generators stand."""
        return [*(_states(self._global) if self._is_active else self._outer), *_states(self.generators)]

    @states.setter
    def states(self, states: list[Tensor]) -> None:
        cpu = [state.cpu() for state in states]
        self._outer = cpu[: len(self._outer)]
        _restore(self.generators, cpu[len(self._outer) :])

    @contextmanager
    def active(self) -> Iterator[None]:
        """Let everything inside draw from these numbers."""
        outside = _states(self._global)
        _restore(self._global, self._outer)
        self._is_active = True
        try:
            yield
        finally:
            self._is_active = False
            self._outer = _states(self._global)
            _restore(self._global, outside)


@contextmanager
def seeded(seed: int, row: Row) -> Iterator[None]:
    """Torch's CPU generator as the starting point of one network sees it, the same on every device."""
    outside = torch.default_generator.get_state()
    torch.default_generator.manual_seed(_word(seed, row, 2))
    try:
        yield
    finally:
        torch.default_generator.set_state(outside)


def _word(seed: int, row: Row, purpose: int) -> int:
    return int(np.random.SeedSequence([seed, purpose, *row]).generate_state(1, np.uint64)[0]) >> 2


def _states(generators: list[torch.Generator]) -> list[Tensor]:
    return [generator.get_state() for generator in generators]


def _restore(generators: list[torch.Generator], states: list[Tensor]) -> None:
    for generator, state in zip(generators, states, strict=True):
        generator.set_state(state)
