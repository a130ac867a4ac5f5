"""Folders of work that takes long: the same command goes on from them, and a refused one leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from coset.cli import console, files
from coset.cli.console import Display, open_display
from coset.core.errors import CosetError


@contextmanager
def resumable(option: str, folder: Path | None, quiet: bool) -> Iterator[Display]:
    """What hears of work that is kept in the folder of an option, if any; whoever stops it hears how to go on."""
    with ExitStack() as stack:
        if folder is not None:
            stack.enter_context(clean_up(folder))
            stack.enter_context(files.writing(option, folder))
        display = stack.enter_context(open_display(quiet))
        try:
            yield display
        except KeyboardInterrupt:
            stack.close()  # the bar, before the line that comes after it
            advice = f"the same command goes on in {option}."
            if folder is None:
                advice = f"with {option} FOLDER it could go on."
            console.complain("stopped", advice)
            raise


@contextmanager
def clean_up(out: Path) -> Iterator[None]:
    """Leave no trace of a run that fails before there is anything to go on from.

    Nothing is removed from a folder that held something before, nor from one with any file but settings and metrics.
    Chunks are work, unless this call trained them all and all their networks diverged.
    """
    from coset.core.resume import METRICS, SETTINGS
    from coset.populations.collect import CHUNKS, DivergedError

    # All that a run writes before there is anything to go on from. Any other file is work: some took hours.
    before_work = (SETTINGS, METRICS)
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        yield
        return
    new = [path for path in (out, *out.parents) if not path.exists()]
    try:
        yield
    except DivergedError:
        _remove_beginning(out, new, (*before_work, CHUNKS))
        raise
    except CosetError:
        _remove_beginning(out, new, before_work)
        raise


def _remove_beginning(out: Path, new: list[Path], useless: tuple[str, ...]) -> None:
    """Remove what a run has written so far, unless a file is not `useless`, and the folders that are new with it.

    Folders are removed when empty only: somebody else may have put something there in the meantime.
    """
    inside = sorted(out.rglob("*"), reverse=True)  # what lies in a folder before the folder
    folders = [path for path in inside if path.is_dir() and not path.is_symlink()]
    files = [path for path in inside if path not in folders]
    if not all(any(file.match(name) for name in useless) for file in files):
        return
    for file in files:
        file.unlink(missing_ok=True)
    for folder in [*folders, *new]:
        with suppress(OSError):
            folder.rmdir()
