"""Files that commands read and write.

Outputs are refused before the work if they cannot be written, and never take the place of an input. Checkpoints are
read lazily where the format allows, and tensors that the model does not know are carried along.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor, nn

from coset.cli import console
from coset.core import state as states
from coset.core.checkpoint import (
    LazyState,
    check_finite,
    load_state,
    open_state,
    refuse_other,
    save_state,
    write_like,
)
from coset.core.errors import CosetError, StateError
from coset.core.files import atomic_write, is_folder
from coset.core.lock import hold_file
from coset.core.state import refuse_names
from coset.symmetries.symmetry import Symmetry


def check_output(
    option: str, path: Path | None, suffixes: Sequence[str], inputs: Sequence[Path | None], overwrite: bool
) -> None:
    """Raise unless `path` can be written: it has one of the suffixes, lies in a folder that exists, is none of the
    inputs, and is not there yet unless it is to be overwritten. No other command can write it until this one ends.
    """
    if path is None:
        return
    with writing(option, path):  # a name may be too long to be looked for
        for source in [source for one in inputs if one is not None for source in _sources(one)]:
            if path.exists() and source.exists() and path.samefile(source):
                raise CosetError(f"{option} {path} is an input and is never overwritten: choose another name.")
    if path.suffix not in suffixes:
        raise CosetError(f"{option} {path} must end in {' or '.join(suffixes)}.")
    if path.is_dir():
        raise CosetError(f"{option} {path} is a folder: name a file in it.")
    if not path.parent.is_dir():
        raise CosetError(f"{option} {path} cannot be written: there is no folder {path.parent}.")
    _hold(option, path)
    if os.path.lexists(path) and not overwrite:
        raise CosetError(f"{option} {path} exists: choose another name, or add --overwrite to replace it.")
    with writing(option, path), tempfile.TemporaryFile(dir=path.parent):
        pass


def _hold(option: str, path: Path) -> None:
    with writing(option, path):
        hold_file(path.with_name(f".{path.name}.lock"), f"{option} {path}")


def _sources(path: Path) -> list[Path]:
    """The files that an input is read from: of a folder, or of an index, all that lie beside it."""
    if path.is_dir():
        return [path, *path.iterdir()]
    return [path, *path.parent.glob("*.safetensors")] if path.name.endswith(".index.json") else [path]


@contextmanager
def writing(option: str, path: Path) -> Iterator[None]:
    """What the system says about a file that cannot be written, as one sentence."""
    try:
        yield
    except OSError as error:
        raise CosetError(f"{option} {path} cannot be written: {error.strerror or error}.") from error


def write_text(option: str, path: Path, text: str) -> None:
    """All of it, or no file."""
    with writing(option, path), atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def open_checkpoint(path: Path) -> Mapping[str, Tensor]:
    """A safetensors checkpoint one tensor at a time; a pickle of plain tensors whole. A curve or flow is refused."""
    refuse_other(path)
    is_lazy = is_folder(path) or path.name.endswith((".safetensors", ".index.json"))
    return open_state(path) if is_lazy else load_state(path)


def check_output_checkpoint(
    option: str, path: Path, source: Path, inputs: Iterable[Path | None], overwrite: bool
) -> None:
    """Raise unless `path` is a safetensors file, or, if `source` has shards, a new or empty folder; and no input."""
    inputs = [source, *inputs]
    if path.suffix == ".safetensors":
        check_output(option, path, [".safetensors"], inputs, overwrite)
        return
    if not (source.is_dir() or source.name.endswith(".index.json")):
        raise CosetError(f"{option} {path} must end in .safetensors; only shards are written to a folder.")
    if not path.parent.is_dir():
        raise CosetError(f"{option} {path} cannot be written: there is no folder {path.parent}.")
    _hold(option, path)
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
        raise CosetError(f"{option} {path} exists, and a folder is never overwritten: choose another name.")


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
    with writing("--output", path):
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
