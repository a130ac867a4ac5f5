"""Populations, and what commands say about them, for tests of `coset flow`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from typer.testing import Result

import coset
from coset import zoo
from coset.core import state as states

Run = Callable[..., Result]
NET = "mlp:30-4-2"
SMALL = ("--width", 16, "--depth", 1, "--heads", 2, "--epochs", 1, "--batch-size", 4)


def write(folder: Path, name: str, count: int = 6, seed: int = 0, spec: str = NET) -> coset.Population:
    """Random networks with starts and a label, in a file that says of which model they are."""
    generator = torch.Generator().manual_seed(seed)
    like = states.of(zoo.build(spec))
    tensors = [{key: torch.randn(count, *x.shape, generator=generator) for key, x in like.items()} for _ in range(2)]
    labels = {"loss": torch.rand(count, generator=generator)}
    population = coset.Population(*tensors, labels, {"model": spec, "arguments": None, "inputs": []})
    population.save(folder / f"{name}.safetensors")
    return population


def report(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.stderr
    record: dict[str, Any] = json.loads(result.stdout)
    return record


def complaint(result: Result) -> str:
    assert result.exit_code == 2, result.stdout
    lines = [line for line in result.stderr.splitlines() if not line.endswith(" ...")]
    assert len(lines) == 1 and lines[0].startswith("error: "), result.stderr
    return lines[0]
