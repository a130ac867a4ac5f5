"""Samples that are kept batch by batch, so that a command that is stopped goes on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from coset.core.errors import CosetError, StateError
from coset.core.resume import NO_FOLDER, RunFolder
from coset.populations.population import Population

SETTINGS = "samples.json"
BATCHES, RANDOMNESS = "samples-*.safetensors", "randomness"


def sample_folder(path: Path | None, request: Mapping[str, Any], flow: Path) -> AbstractContextManager[RunFolder]:
    """The folder of samples of the flow of a file, refused if it holds those of another request."""
    if path is None:
        return nullcontext(NO_FOLDER)
    with flow.open("rb") as file:
        content = hashlib.file_digest(file, "sha256").hexdigest()[:16]
    return RunFolder.open(path, {**request, "flow": content}, [BATCHES], SETTINGS, "samples")


def batches(
    folder: RunFolder, count: int, at_once: int, generator: torch.Generator, draw: Callable[[int], Population]
) -> Iterator[tuple[Population, bool]]:
    """`count` networks, `at_once` at a time as `draw` gives them, on the CPU; and whether each batch was read.

    A file of the folder holds a batch, and where the random numbers were at its end. Whole batches are also those of a
    larger number.
    """
    for number, first in enumerate(range(0, count, at_once)):
        n = min(at_once, count - first)
        stage = folder.stage(result=f"samples-{number:05d}.safetensors")
        before = stage.read(_load)
        if before is not None and len(before) == n:
            _set_randomness(generator, before, stage.file)
            yield before, True
            continue
        samples = draw(n).to("cpu")
        folder.claim()
        state = generator.get_state().numpy().tobytes()
        stage.finish(replace(samples, about={RANDOMNESS: state.hex()}).save)
        yield samples, False


def _load(file: Path) -> Population:
    try:
        population = Population.load(file)
    except StateError as error:
        raise StateError(f"{error} Remove it to sample that batch again.") from error
    if RANDOMNESS not in population.about:
        raise CosetError(f"{file} holds no samples of this command: choose another folder.")
    return population


def _set_randomness(generator: torch.Generator, batch: Population, file: Path | None) -> None:
    """Let random numbers be those that follow the batch of a file."""
    try:
        state = bytes.fromhex(batch.about[RANDOMNESS])
        generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    except (ValueError, TypeError, RuntimeError) as error:  # text that is no state of a generator
        raise CosetError(f"{file} was changed: remove it to sample that batch again.") from error
