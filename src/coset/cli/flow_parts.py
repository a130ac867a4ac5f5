"""Samples that are kept batch by batch, so that a command that is stopped goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from coset.core.errors import CosetError, StateError
from coset.populations.population import Population

ASKED, RANDOMNESS = "asked", "randomness"


@dataclass(frozen=True)
class Parts:
    """A folder with a population for each batch, and in it where the random numbers were at its end.

    asked: all that samples depend on but their number, as JSON gives it back. Whole batches are also those of a larger
    number.
    """

    folder: Path
    asked: Mapping[str, Any]

    def read(self, number: int, count: int, generator: torch.Generator) -> Population | None:
        """A batch of `count` networks if it was made before; then random numbers go on from its end."""
        file = self._file(number)
        if not file.exists():
            return None
        try:
            found = Population.load(file)
        except StateError as error:
            raise StateError(f"{error} Remove it to sample that batch again.") from error
        asked = found.about.get(ASKED)
        if not isinstance(asked, dict) or RANDOMNESS not in found.about:
            raise CosetError(f"{file} holds no samples of this command: choose another folder.")
        for key, value in self.asked.items():
            if asked.get(key) != value:
                raise CosetError(
                    f"{self.folder} holds samples with another {key} ({asked.get(key)}, not {value}): choose another "
                    "folder, or ask for the same samples."
                )
        if len(found) != count:
            return None
        state = bytes.fromhex(found.about[RANDOMNESS])
        generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
        return found

    def write(self, number: int, population: Population, generator: torch.Generator) -> None:
        """Keep a batch, after which the random numbers are where they are now."""
        self.folder.mkdir(parents=True, exist_ok=True)
        state = generator.get_state().numpy().tobytes().hex()
        replace(population, about={ASKED: dict(self.asked), RANDOMNESS: state}).save(self._file(number))

    def _file(self, number: int) -> Path:
        return self.folder / f"samples-{number:05d}.safetensors"


def batches(
    parts: Parts | None, count: int, at_once: int, generator: torch.Generator, make: Callable[[int], Population]
) -> Iterator[tuple[Population, bool]]:
    """`count` networks, `at_once` at a time as `make` makes them, on the CPU; and whether each batch was read."""
    for number, first in enumerate(range(0, count, at_once)):
        n = min(at_once, count - first)
        found = None if parts is None else parts.read(number, n, generator)
        if found is not None:
            yield found, True
            continue
        made = make(n).to("cpu")
        if parts is not None:
            parts.write(number, made, generator)
        yield made, False
