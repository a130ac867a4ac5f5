"""The model that a file says its networks are of: one of the zoo, and no larger than the networks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook

from coset import zoo
from coset.cli.model import ModelSpec, input_shape
from coset.core.errors import CosetError, ModelError
from coset.core.json_reader import shown
from coset.core.state import State

NUMBERS = 2**22  # of constants, and of example inputs, besides those of the file
MODULES = 64  # for each tensor


def spec_of(spec: ModelSpec, sources: Mapping[Path, tuple[Mapping[str, Any], State]]) -> ModelSpec:
    """The model that the options name, or the first that a file says it is of.

    A file may come from anybody, and `module:factory` runs code: files name models of the zoo, and nothing else. Their
    arguments ask for memory and time: no more than the networks take that are in the file.

    sources: what each file says, and its tensors.
    """
    if spec.name:
        return spec
    for path, (about, state) in sources.items():
        # Without "inputs" the name is that of a class, as of populations that were made in Python.
        match about:
            case {"model": str(name), "arguments": str() | None as arguments, "inputs": [*inputs]}:
                _require_zoo(path, name)
                own = replace(spec, name=name, arguments=arguments, inputs=tuple(map(str, inputs)))
                _require_size(path, own, state)
                return own
    raise CosetError("The model is not known here, since no file says which one it is: name it with --model.")


def _require_zoo(path: Path, name: str) -> None:
    """Refuse a model that only the command line may name, whose user knows whose code it is."""
    if not zoo.is_builtin(name):
        raise CosetError(
            f"{path} says that it is of the model {shown(name)}, which is not of the zoo, and a file alone never runs "
            "code: if you trust that model, name it with --model, with --args and --input where it needs them."
        )


def _require_size(path: Path, spec: ModelSpec, state: State) -> None:
    """Refuse a model with more numbers or modules than networks in this file have, before any of them is made."""
    numbers = sum(x.numel() for x in state.values())
    try:
        with _at_most(MODULES * (len(state) + 1)):
            module = replace(spec, meta=True).build()
    except ModelError as error:
        raise CosetError(f"{path} says that it is of a model that cannot be built: {error}") from error
    size = sum(x.numel() for x in (*module.parameters(), *module.buffers()))
    if size > numbers + NUMBERS:
        raise CosetError(
            f"{path} says that it is of a model of {size:,} numbers, and all its networks have {numbers:,}: it was "
            "changed."
        )
    if sum(prod(input_shape(text)) for text in spec.inputs) > NUMBERS:
        raise CosetError(f"{path} says that its model takes inputs of more than {NUMBERS:,} numbers: it was changed.")


@contextmanager
def _at_most(modules: int) -> Iterator[None]:
    """Stop the construction of a model once it has more modules than this."""
    count = 0

    def add(_parent: nn.Module, _name: str, _module: nn.Module | None) -> None:
        nonlocal count
        count += 1
        if count > modules:
            raise ModelError(f"it has more than {modules:,} modules.")

    handle = register_module_module_registration_hook(add)
    try:
        yield
    finally:
        handle.remove()
