"""Populations and flows as files of the commands, and what they say of how their networks were trained."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from coset.cli.model import ModelSpec
from coset.core import state as states
from coset.core.checkpoint import FLOW, POPULATION, open_state
from coset.core.errors import CosetError, StateError
from coset.flow.flow import Flow
from coset.populations.population import Population
from coset.symmetries.infer import symmetry
from coset.symmetries.symmetry import Symmetry

TRAINED = "trained"  # in the `about` of samples
KINDS = {FLOW: "flow", POPULATION: "population"}


def open_population(path: Path, device: str) -> Population:
    """The population of a file, with one network at least."""
    _require(path, POPULATION, "`coset flow collect` or `coset flow sample`")
    population = Population.load(path, device)
    if not len(population):
        raise StateError(f"{path} holds a population without any network.")
    return population


def open_flow(path: Path, device: str) -> Flow:
    """The flow of a file."""
    _require(path, FLOW, "`coset flow fit`")
    return Flow.load(path, device)


def optional_spec(name: str, arguments: str | None, inputs: list[str] | None, device: str) -> ModelSpec:
    """The model of the options, whose name is empty where it is that of a file."""
    if not name and (arguments or inputs):
        raise CosetError("--args and --input are those of a model: name it with --model.")
    return ModelSpec(name, arguments, inputs or (), device=device)


def record_of(spec: ModelSpec) -> dict[str, Any]:
    """What the `about` of a population keeps of its model, for `model_of_file.spec_of`."""
    return {"model": spec.name, "arguments": spec.arguments, "inputs": list(spec.inputs)}


def split_of(split: int | None, data: str | None, *abouts: Mapping[str, Any]) -> int | None:
    """The standard split of a data set that the options name, or that networks were trained on."""
    if split is not None or data is None:
        return split
    for training in map(trained_on, abouts):
        if training.get("data") == data and isinstance(own := training.get("split"), int):
            return own
    return None


def noise_of(noise: float | None, *abouts: Mapping[str, Any]) -> float:
    """Of the targets of a regression: what the options say, or what networks were trained with; 1 if none does."""
    if noise is not None:
        return noise
    for training in map(trained_on, abouts):
        match training:
            case {"settings": {"noise": int() | float() as own}}:
                return float(own)
    return 1.0


def trained_on(about: Mapping[str, Any]) -> dict[str, Any]:
    """Data, split and settings that the networks of a population were trained with, or that a flow learned from."""
    training = about.get(TRAINED, about)
    if not isinstance(training, Mapping):
        return {}
    return {name: training[name] for name in ("data", "split", "settings") if name in training}


def check_members(population: Population, module: nn.Module, path: Path) -> None:
    """Give the module the weights of the first network, and refuse networks of another model."""
    first = {name: x[0].cpu() for name, x in population.states.items()}
    module.load_state_dict(states.check(first, states.of(module), str(path)), strict=False)
    for name, x in population.states.items():
        if x.is_floating_point():
            sizes = torch.linalg.vector_norm(x.flatten(1), dim=1)
            if not bool(sizes.isfinite().all()):
                network = int((~sizes.isfinite()).nonzero()[0])
                raise StateError(
                    f"{path}: {name!r} of network {network} is as large as {float(x[network].abs().max()):.3g}, too "
                    "large to be compared with others: leave that network out."
                )


def infer_symmetry(module: nn.Module, spec: ModelSpec) -> Symmetry:
    """Inferred, and verified on the weights that the module has."""
    return symmetry(module, *spec.example_inputs(module))


def _require(path: Path, key: str, source: str) -> None:
    """Refuse a file of something else."""
    metadata = open_state(path).metadata
    if key not in metadata:
        content = next((f"a {kind} and not a" for other, kind in KINDS.items() if other in metadata), "no")
        raise StateError(f"{path} holds {content} {KINDS[key]}: give a file that {source} wrote.")
