"""The model that the command line names: its module, weights and example inputs."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from coset import zoo
from coset.cli import console
from coset.core import state as states
from coset.core.checkpoint import load_state
from coset.core.errors import CosetError, ModelError

_SHAPE = re.compile(r"(?:(?P<name>[A-Za-z_]\w*)=)?(?P<shape>\d+(?:x\d+)*)(?::(?:float|int<(?P<below>\d+)))?")


@dataclass(frozen=True)
class ModelSpec:
    """A model as options describe it.

    name: of the zoo, or module:factory. arguments: of the factory, as JSON. inputs: texts such as 2x3x32x32.
    symmetry: a file with its symmetry. meta: without weights.
    """

    name: str
    arguments: str | None = None
    inputs: Sequence[str] = ()
    symmetry: Path | None = None
    meta: bool = False
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.device == "meta":
            raise CosetError("--device meta holds no numbers: choose cpu or cuda.")
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError) as error:
            raise CosetError(f"--device {self.device} cannot be used: {str(error).splitlines()[0]}.") from error

    def build(self) -> nn.Module:
        """The module, with the same weights at each call; `module:factory` may be a file of the current folder."""
        arguments = _arguments(self.arguments)
        # Only for whoever asks for it, and last: a file here called `torch.py` must not stand in for a library's
        # module.
        if zoo.is_import_path(self.name) and (here := str(Path.cwd())) not in sys.path:
            sys.path.append(here)
        with _reproducible(self.meta):
            return zoo.build(self.name, arguments)

    def example_inputs(self, module: nn.Module) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword inputs: those that options describe, else the module's own."""
        with _reproducible(self.meta):
            if self.inputs:
                return _example_inputs(self.inputs)
            if not isinstance(module, zoo.registry.HasExample):
                raise ModelError(
                    f"{type(module).__name__} has no method example_inputs, so describe its inputs with --input, for "
                    "example --input 2x3x32x32."
                )
            return zoo.example_input(module), {}


def load_weights(module: nn.Module, path: Path, quiet: bool = False) -> None:
    """Put a checkpoint's weights into the module; tensors it does not know are left out, and named unless quiet."""
    weights = load_state(path)
    own = states.of(module)
    if not quiet:
        console.warn_unknown(path, [name for name in weights if name not in own], "left out")
    checked = states.check(weights, own, where=str(path), unknown="ignore")
    # Not strict, since a model may keep extra state besides tensors.
    module.load_state_dict(checked, strict=False)


@contextmanager
def _reproducible(meta: bool) -> Iterator[None]:
    """Random numbers from a fixed seed, the caller's generator untouched; on the meta device if asked."""
    with torch.random.fork_rng(devices=[]), torch.device("meta" if meta else "cpu"):
        torch.manual_seed(0)
        yield


def _arguments(text: str | None) -> dict[str, object]:
    if text is None:
        return {}
    try:
        arguments = json.loads(text)
    except ValueError as error:
        raise ModelError(f"--args {text!r} is not JSON ({error}).") from error
    if not isinstance(arguments, dict):
        raise ModelError(f"--args {text!r} must be a JSON object, such as '{{\"depth\": 3}}'.")
    return arguments


def _example_inputs(texts: Sequence[str]) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    args: list[Tensor] = []
    kwargs: dict[str, Tensor] = {}
    for text in texts:
        match = _SHAPE.fullmatch(text)
        if match is None or (match["below"] is not None and int(match["below"]) < 1):
            raise ModelError(
                f"--input {text!r} cannot be read: write 2x3x32x32 for floats, 2x16:int<100 for integers below 100, "
                "or name=2x16 for a keyword."
            )
        shape = [int(size) for size in match["shape"].split("x")]
        try:
            tensor = torch.randn(shape) if match["below"] is None else torch.randint(int(match["below"]), shape)
        except RuntimeError as error:  # no memory, or a number that fits no integer
            raise ModelError(f"--input {text!r} cannot be made: {str(error).splitlines()[0]}.") from error
        if match["name"] is None:
            args.append(tensor)
        elif match["name"] in kwargs:
            raise ModelError(f"--input {match['name']} is given twice.")
        else:
            kwargs[match["name"]] = tensor
    return tuple(args), kwargs
