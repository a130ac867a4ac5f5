"""Samples that are kept batch by batch, so that a command that is stopped goes on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from coset.core.errors import CosetError, StateError
from coset.populations.population import Population

REQUEST, RANDOMNESS = "asked", "randomness"


@dataclass(frozen=True)
class SampleBatches:
    """A folder with a population for each batch, and in it where the random numbers were at its end.

    request: all that samples depend on but their number, as JSON gives it back. Whole batches are also those of a
    larger number.
    """

    folder: Path
    request: Mapping[str, Any]

    @classmethod
    def of(cls, folder: Path, request: Mapping[str, Any], flow: Path) -> SampleBatches:
        """The batches of a request to the flow of a file."""
        content = hashlib.sha256(flow.read_bytes()).hexdigest()[:16]
        return cls(folder, json.loads(json.dumps({**request, "flow": content})))

    def read(self, number: int, count: int, generator: torch.Generator) -> Population | None:
        """A batch of `count` networks if it was made before; then random numbers go on from its end."""
        file = self._file(number)
        if not file.exists():
            return None
        try:
            batch = Population.load(file)
        except StateError as error:
            raise StateError(f"{error} Remove it to sample that batch again.") from error
        request = batch.about.get(REQUEST)
        if not isinstance(request, dict) or RANDOMNESS not in batch.about:
            raise CosetError(f"{file} holds no samples of this command: choose another folder.")
        for key, value in self.request.items():
            if request.get(key) != value:
                raise CosetError(
                    f"{self.folder} holds samples with another {key} ({request.get(key)}, not {value}): choose another "
                    "folder, or ask for the same samples."
                )
        if len(batch) != count:
            return None
        state = bytes.fromhex(batch.about[RANDOMNESS])
        generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
        return batch

    def write(self, number: int, population: Population, generator: torch.Generator) -> None:
        """Keep a batch, after which the random numbers are where they are now."""
        self.folder.mkdir(parents=True, exist_ok=True)
        state = generator.get_state().numpy().tobytes().hex()
        replace(population, about={REQUEST: dict(self.request), RANDOMNESS: state}).save(self._file(number))

    def _file(self, number: int) -> Path:
        return self.folder / f"samples-{number:05d}.safetensors"


def batches(
    store: SampleBatches | None, count: int, at_once: int, generator: torch.Generator, draw: Callable[[int], Population]
) -> Iterator[tuple[Population, bool]]:
    """`count` networks, `at_once` at a time as `draw` gives them, on the CPU; and whether each batch was read."""
    for number, first in enumerate(range(0, count, at_once)):
        n = min(at_once, count - first)
        batch = None if store is None else store.read(number, n, generator)
        if batch is not None:
            yield batch, True
            continue
        batch = draw(n).to("cpu")
        if store is not None:
            store.write(number, batch, generator)
        yield batch, False
