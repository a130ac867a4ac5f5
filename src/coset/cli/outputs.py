"""Files that a command writes: refused before the work if they cannot be, never in place of an input."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from coset.checkpoint import INDEX
from coset.errors import CosetError


def check(option: str, path: Path | None, suffixes: Sequence[str], inputs: Sequence[Path | None]) -> None:
    """Raise unless `path` has one of the suffixes, lies in a folder that exists, and is none of the inputs."""
    if path is None:
        return
    for given in inputs:
        # A folder of shards is read through its index.
        for source in [] if given is None else [given, given / INDEX]:
            if path.exists() and source.exists() and path.samefile(source):
                raise CosetError(f"{option} {path} is an input and is never overwritten: choose another name.")
    if path.suffix not in suffixes:
        raise CosetError(f"{option} {path} must end in {' or '.join(suffixes)}.")
    if path.is_dir():
        raise CosetError(f"{option} {path} is a folder: name a file in it.")
    if not path.parent.is_dir():
        raise CosetError(f"{option} {path} cannot be written: there is no folder {path.parent}.")


@contextmanager
def writing(option: str, path: Path) -> Iterator[None]:
    """What the system says about a file that cannot be written, as one sentence."""
    try:
        yield
    except OSError as error:
        raise CosetError(f"{option} {path} cannot be written: {error.strerror or error}.") from error
