"""Checkpoints that commands read and write: lazily where the format allows, unknown tensors carried along."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from torch import Tensor, nn

from coset.cli import console, outputs
from coset.core import state as states
from coset.core.checkpoint import PICKLES, LazyState, check_finite, load_state, open_state, save_state, write_like
from coset.core.errors import CosetError, StateError
from coset.core.state import refuse_names
from coset.symmetries.symmetry import Symmetry


def open_checkpoint(path: Path) -> Mapping[str, Tensor]:
    """A safetensors checkpoint one tensor at a time; a pickle of plain tensors whole."""
    return load_state(path) if path.suffix in PICKLES else open_state(path)


def check_output(option: str, path: Path, source: Path, inputs: Iterable[Path]) -> None:
    """Raise unless `path` is a safetensors file, or, if `source` has shards, a new or empty folder; and no input."""
    inputs = [source, *inputs]
    if path.suffix == ".safetensors":
        outputs.check(option, path, [".safetensors"], inputs)
        return
    if not (source.is_dir() or source.name.endswith(".index.json")):
        raise CosetError(f"{option} {path} must end in .safetensors; only shards are written to a folder.")
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
        raise CosetError(f"{option} {path} exists and is never overwritten: choose another name.")
    if not path.parent.is_dir():
        raise CosetError(f"{option} {path} cannot be written: there is no folder {path.parent}.")


def check_fits(checkpoint: Mapping[str, Tensor], sym: Symmetry, path: Path, fate: str, *, values: bool = True) -> None:
    """Refuse a checkpoint that lacks tensors of the symmetry, has others shapes or bad values; name unknown ones.

    fate: what happens to tensors the symmetry does not know, for the warning. values: also look for bad values in
    those it knows; of a lazy checkpoint `coset.align` does by itself.
    """
    refuse_names(sym.missing(checkpoint), [], str(path))
    for name in tensor_names(checkpoint, sym):
        expected = tuple(axis.size for axis in sym.axes[name])
        shape = tuple(checkpoint.shape(name) if isinstance(checkpoint, LazyState) else checkpoint[name].shape)
        if shape != expected:
            raise StateError(f"Tensor '{name}' in {path} has shape {shape} where {expected} is expected.")
    unknown = [name for name in checkpoint if name not in sym.axes]
    console.warn_unknown(path, unknown, fate)
    check_finite(checkpoint, checkpoint if values or not isinstance(checkpoint, LazyState) else unknown, str(path))


def tensor_names(checkpoint: Mapping[str, Tensor], sym: Symmetry) -> list[str]:
    """The tensors of a checkpoint that the symmetry knows."""
    return [name for name in sym.axes if name in checkpoint]


def model_tensors(checkpoint: Mapping[str, Tensor], sym: Symmetry) -> Mapping[str, Tensor]:
    """The tensors that the symmetry knows; a lazy checkpoint stays lazy."""
    names = tensor_names(checkpoint, sym)
    return checkpoint.select(names) if isinstance(checkpoint, LazyState) else {name: checkpoint[name] for name in names}


def runnable(
    checkpoint: Mapping[str, Tensor], sym: Symmetry, module: nn.Module | None, path: Path
) -> dict[str, Tensor]:
    """The tensors that the symmetry knows, in the precision of the model and with its ties, if there is a model."""
    state = {name: checkpoint[name] for name in tensor_names(checkpoint, sym)}
    if module is None:
        return state
    own = states.of(module)
    checked = states.check(state, own, str(path), unknown="ignore")
    return {name: x.to(own[name].dtype) for name, x in checked.items()}


def write(source: Mapping[str, Tensor], path: Path, read: Callable[[str], Tensor], metadata: Mapping[str, str]) -> None:
    """Write the tensors of `source` as `read` gives them, one at a time where `source` is lazy."""
    with outputs.writing("--output", path):
        if isinstance(source, LazyState):
            write_like(source, path, lambda name: _finite(name, read(name)), metadata)
        else:
            save_state({name: _finite(name, read(name)) for name in source}, path, metadata)


def _finite(name: str, x: Tensor) -> Tensor:
    """Factors may lead out of the range of 16 bits."""
    check_finite({name: x}, [name], "the result")
    return x


def element_file(path: Path) -> Path:
    """Where the permutations of a written checkpoint are kept: beside it."""
    return path.with_name(f"{path.name.removesuffix('.safetensors')}.element.safetensors")
