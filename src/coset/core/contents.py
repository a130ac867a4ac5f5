"""What the files of coset say beside their tensors: a JSON object, and tensors under the names that it gives them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from coset.core import json_reader
from coset.core.errors import CosetError, StateError
from coset.core.json_reader import JsonObject, shown


def description(text: str) -> JsonObject:
    """The object of a JSON text that stands beside tensors."""
    return JsonObject(json_reader.parse(text, "its description"), "its description")


def tensor(tensors: Mapping[str, Tensor], name: str) -> Tensor:
    """The tensor of a name, refused if the file has none."""
    if name not in tensors:
        raise StateError(f"it has no tensor {shown(name)}.")
    return tensors[name]


def once(owners: Mapping[str, str], make: Callable[[str], Tensor]) -> dict[str, Tensor]:
    """What `make` makes of each name; tied names, `owners` being name to owner, hold what it makes of their owner."""
    for name, owner in owners.items():
        if owners.get(owner) != owner:
            raise StateError(f"{shown(name)} is tied to {shown(owner)}, which is no tensor of its own.")
    first = {name: make(name) for name, owner in owners.items() if name == owner}
    return {name: first[owner] for name, owner in owners.items()}


@contextmanager
def reading(path: str | Path, what: str) -> Iterator[None]:
    """Whatever is wrong with the content of a file becomes a sentence that begins with the file; `what` it holds."""
    try:
        yield
    except CosetError as fault:
        raise StateError(f"{path} holds {what} that cannot be read: {fault}") from fault
