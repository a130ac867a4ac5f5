"""Models, weights and example inputs as the command line gives them."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from coset import zoo
from coset.cli import console
from coset.core import state as states
from coset.core.checkpoint import load_state
from coset.core.errors import ModelError

_SHAPE = re.compile(r"(?:(?P<name>[A-Za-z_]\w*)=)?(?P<shape>\d+(?:x\d+)*)(?::(?:float|int<(?P<below>\d+)))?")
_LISTED = 4


@contextmanager
def reproducible(meta: bool = False) -> Iterator[None]:
    """Random numbers from a fixed seed, the caller's generator untouched; on the meta device if asked."""
    with torch.random.fork_rng(devices=[]), torch.device("meta" if meta else "cpu"):
        torch.manual_seed(0)
        yield


def build(spec: str, arguments: str | None, meta: bool = False) -> nn.Module:
    """The model of `spec` with its JSON arguments; `module:factory` may be a file of the current folder."""
    given = _arguments(arguments)
    # Only for whoever asks for it, and last: a file here called `torch.py` must not stand in for a library's module.
    if zoo.is_import_path(spec) and (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    with reproducible(meta):
        return zoo.build(spec, given)


def load(model: nn.Module, path: Path, quiet: bool = False) -> None:
    """Put a checkpoint's weights into the model; tensors it does not know are left out, and named unless quiet."""
    found = load_state(path)
    own = states.of(model)
    unknown = [name for name in found if name not in own]
    if unknown and not quiet:
        shown = ", ".join(f"'{name}'" for name in unknown[:_LISTED])
        more = f" and {len(unknown) - _LISTED} more" if len(unknown) > _LISTED else ""
        console.complain("warning", f"{path} has tensors that the model does not know, left out: {shown}{more}.")
    checked = states.check(found, own, where=str(path), unknown="ignore")
    # Not strict, since a model may keep extra state besides tensors.
    model.load_state_dict(checked, strict=False)


def example_inputs(
    model: nn.Module, specs: Sequence[str], meta: bool = False
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword inputs: those that `specs` describe, else the model's own."""
    with reproducible(meta):
        if specs:
            return _inputs(specs)
        if not isinstance(model, zoo.registry.HasExample):
            raise ModelError(
                f"{type(model).__name__} has no method example_inputs, so describe its inputs with --input, for "
                "example --input 2x3x32x32."
            )
        return zoo.example_input(model), {}


def _arguments(text: str | None) -> dict[str, object]:
    if text is None:
        return {}
    try:
        given = json.loads(text)
    except ValueError as error:
        raise ModelError(f"--args {text!r} is not JSON ({error}).") from error
    if not isinstance(given, dict):
        raise ModelError(f"--args {text!r} must be a JSON object, such as '{{\"depth\": 3}}'.")
    return given


def _inputs(specs: Sequence[str]) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    args: list[Tensor] = []
    kwargs: dict[str, Tensor] = {}
    for spec in specs:
        match = _SHAPE.fullmatch(spec)
        if match is None or (match["below"] is not None and int(match["below"]) < 1):
            raise ModelError(
                f"--input {spec!r} cannot be read: write 2x3x32x32 for floats, 2x16:int<100 for integers below 100, "
                "or name=2x16 for a keyword."
            )
        shape = [int(size) for size in match["shape"].split("x")]
        try:
            tensor = torch.randn(shape) if match["below"] is None else torch.randint(int(match["below"]), shape)
        except RuntimeError as error:  # no memory, or a number that fits no integer
            raise ModelError(f"--input {spec!r} cannot be made: {str(error).splitlines()[0]}.") from error
        if match["name"] is None:
            args.append(tensor)
        elif match["name"] in kwargs:
            raise ModelError(f"--input {match['name']} is given twice.")
        else:
            kwargs[match["name"]] = tensor
    return tuple(args), kwargs
