"""What commands that train for a while share: a bar over epochs, and folders that are not left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from coset.cli import console
from coset.core.errors import CosetError

Show = Callable[[str, float], None]
"""Called with a text and the number of epochs done."""
Announce = Callable[[str], None]


@contextmanager
def epochs(total: int, before: int, doing: str, quiet: bool) -> Iterator[tuple[Show, Announce]]:
    """On a terminal a bar over `total` epochs, of which `before` are done, else a line now and then."""
    stderr = Console(stderr=True, highlight=False, markup=False, emoji=False)
    if quiet or not stderr.is_terminal:
        with console.steps(quiet) as say:
            say(doing)
            yield lambda text, done: say.tick(text), say
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=stderr, transient=True) as bar:
        task = bar.add_task(doing, total=total, completed=before)
        yield lambda text, done: bar.update(task, description=text, completed=done), stderr.print


@contextmanager
def undone(out: Path) -> Iterator[None]:
    """Leave no trace of a run that fails before there is anything to go on from.

    Nothing is removed from a folder that held something before, nor from one with any file but settings and metrics.
    Chunks are work, unless this call trained them all and all their networks diverged.
    """
    from coset.populations.collect import CHUNKS, DivergedError
    from coset.training.folder import METRICS, SETTINGS

    # All that a run writes before there is anything to go on from. Any other file is work: some took hours.
    before_work = (SETTINGS, METRICS)
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        yield
        return
    made = [path for path in (out, *out.parents) if not path.exists()]
    try:
        yield
    except DivergedError:
        _remove_beginning(out, made, (*before_work, CHUNKS))
        raise
    except CosetError:
        _remove_beginning(out, made, before_work)
        raise


def _remove_beginning(out: Path, made: list[Path], useless: tuple[str, ...]) -> None:
    """Remove what a run has written so far, unless a file is not `useless`, and the folders that were made for it.

    Folders are removed when empty only: somebody else may have put something there in the meantime.
    """
    inside = sorted(out.rglob("*"), reverse=True)  # what lies in a folder before the folder
    folders = [path for path in inside if path.is_dir() and not path.is_symlink()]
    files = [path for path in inside if path not in folders]
    if not all(any(file.match(name) for name in useless) for file in files):
        return
    for file in files:
        file.unlink(missing_ok=True)
    for folder in [*folders, *made]:
        with suppress(OSError):
            folder.rmdir()
