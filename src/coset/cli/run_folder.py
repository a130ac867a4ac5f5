"""Folders of work that takes long: the same command goes on from them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from coset.cli import files
from coset.cli.console import Display, open_display
from coset.core.errors import CosetError


@contextmanager
def resumable(option: str, folder: Path | None, quiet: bool) -> Iterator[Display]:
    """What hears of work that is kept in the folder of an option, if any; whoever stops it hears how to go on."""
    if folder is not None and folder.exists() and not folder.is_dir():
        raise CosetError(f"{option} {folder} cannot be written: it is a file.")
    with ExitStack() as stack:
        if folder is not None:
            stack.enter_context(files.writing(option, folder))
        display = stack.enter_context(open_display(quiet))
        try:
            yield display
        except KeyboardInterrupt as stop:
            go_on = f"the same command goes on in {option} {folder}"
            stop.add_note(f"with {option} FOLDER it could go on" if folder is None else go_on)
            raise


@contextmanager
def withdrawing(folder: Path | None, results: str, useless: type[CosetError]) -> Iterator[None]:
    """Where a call that begins a folder ends in an error by which its results, a pattern of files, are useless: remove
    them, and the folders that are new.
    """
    from coset.core.resume import METRICS, SETTINGS, remove

    begins = folder is not None and not (folder / SETTINGS).exists()
    new = [] if folder is None else [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        yield
    except useless:
        if folder is not None and begins:
            files = [file for pattern in (results, SETTINGS, METRICS) for file in folder.glob(pattern)]
            remove(files, folder)
            for path in new:
                with suppress(OSError):
                    path.rmdir()
        raise
