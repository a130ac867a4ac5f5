"""Files that a command writes: refused before the work if they cannot be, never in place of an input."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from coset.core.errors import CosetError
from coset.core.files import atomic_write


def check(option: str, path: Path | None, suffixes: Sequence[str], inputs: Sequence[Path | None]) -> None:
    """Raise unless `path` has one of the suffixes, lies in a folder that exists, and is none of the inputs."""
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
    with writing(option, path), tempfile.TemporaryFile(dir=path.parent):
        pass


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
