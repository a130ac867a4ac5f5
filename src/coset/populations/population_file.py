"""A population in one safetensors file: "state/NAME", "start/NAME", "label/NAME", and JSON beside them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coset.checkpoint import open_state
from coset.errors import StateError
from coset.solutions.load import POPULATION as METADATA
from coset.solutions.ties import owners
from coset.stream import CODES, write_stream

STATE, START, LABEL = "state/", "start/", "label/"

Tensors = dict[str, Tensor]


def write_population(
    path: str | Path, states: Tensors, starts: Tensors | None, labels: Tensors, about: Mapping[str, Any]
) -> None:
    """Write the file, atomically. Tied names are each written in full, and named in the JSON."""
    path = Path(path)
    if path.suffix != ".safetensors":
        raise StateError(f"A population is saved as safetensors, so the name {path} must end in .safetensors.")
    tensors = {
        **{STATE + name: x for name, x in states.items()},
        **{START + name: x for name, x in (starts or {}).items()},
        **{LABEL + name: x for name, x in labels.items()},
    }
    for name, x in tensors.items():
        if x.dtype not in CODES or x.layout != torch.strided:
            raise StateError(f"Tensor '{name}' ({x.dtype}, {x.layout}) cannot be stored in safetensors.")
    # A file keeps neither the order of names nor which of them hold one tensor.
    description = {"owners": owners(states), "starts": starts is not None, "labels": list(labels), "about": about}
    layout = {name: (x.dtype, tuple(x.shape)) for name, x in tensors.items()}
    try:
        write_stream(path, layout, tensors.__getitem__, {METADATA: json.dumps(description)})
    except OSError as error:
        raise StateError(f"{path} cannot be written: {error.strerror or error}.") from error


def read_population(
    path: str | Path, device: str | torch.device
) -> tuple[Tensors, Tensors | None, Tensors, dict[str, Any]]:
    """States, starts, labels and about of a file that `write_population` wrote."""
    source = open_state(path)
    text = source.metadata.get(METADATA)
    if text is None:
        raise StateError(
            f"{path} holds no population: give a file that Population.save wrote, or make one of networks by "
            "Population.of."
        )
    try:
        description = json.loads(text)
        tied, about = description["owners"], description["about"]
        states = once(tied, lambda name: source[STATE + name].to(device))
        starts = once(tied, lambda name: source[START + name].to(device)) if description["starts"] else None
        labels = {name: source[LABEL + name].to(device) for name in description["labels"]}
        return states, starts, labels, dict(about)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StateError(
            f"{path} holds a population that cannot be read ({error!r}): it was written by another version, or changed."
        ) from error


def once(tied: Mapping[str, str], make: Callable[[str], Tensor]) -> Tensors:
    """What `make` makes of each name; tied names, `tied` being name to owner, hold what it makes of their owner."""
    made = {name: make(name) for name, owner in tied.items() if name == owner}
    return {name: made[owner] for name, owner in tied.items()}
