"""The symmetry of a model that the command line names, verified on a checkpoint's weights where there are some."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from coset.cli import console
from coset.cli.model_spec import ModelSpec, load_weights
from coset.core.errors import CosetError
from coset.symmetries.infer import symmetry
from coset.symmetries.symmetry import Symmetry


@dataclass(frozen=True)
class SymmetricModel:
    """A model with its symmetry and example inputs; `module` is None where there are no weights to run."""

    sym: Symmetry
    module: nn.Module | None = None
    inputs: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})


def symmetric_model(spec: ModelSpec, weights: Path, say: console.Steps) -> SymmetricModel:
    """The symmetry is read from a file or inferred, and verified on the weights if there is a model with some."""
    sym = Symmetry.from_json(_text(spec.symmetry)) if spec.symmetry is not None else None
    if sym is not None and not spec.name:
        return SymmetricModel(sym)
    say(f"building {spec.name}")
    module = spec.build()
    args, kwargs = spec.example_inputs(module)
    if not spec.meta:
        load_weights(module, weights, quiet=True)
    if sym is None:
        say(f"inferring the symmetry of {spec.name}")
        sym = symmetry(module, args, kwargs)
    elif not spec.meta:
        say(f"verifying {spec.symmetry} on {spec.name}")
        sym.verify(module, args, kwargs)
    return SymmetricModel(sym, None if spec.meta else module, (args, kwargs))


def check_named(spec: ModelSpec) -> None:
    """Refuse options that say neither a model nor a symmetry."""
    if not spec.name and spec.symmetry is None:
        raise CosetError("Name the model with --model, or give its symmetry with --symmetry.")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CosetError(f"--symmetry {path} cannot be read: {error}.") from error
