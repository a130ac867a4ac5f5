"""What commands that train for a while share: a bar over epochs, and folders that are not left behind."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from coset.cli import console
from coset.errors import CosetError
from coset.inference.folder import CHECKPOINT, SOLUTION

Show = Callable[[str, float], None]
"""Called with a text and the number of epochs done."""
Announce = Callable[[str], None]

GO_ON_FROM = (CHECKPOINT, SOLUTION, "samples-*.safetensors", "measured-*.json")


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
    """Leave no trace of a run that fails before there is anything to go on from."""
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        yield
        return
    made = [path for path in (out, *out.parents) if not path.exists()]
    try:
        yield
    except CosetError:
        if not any(any(out.rglob(name)) for name in GO_ON_FROM):
            shutil.rmtree(out, ignore_errors=True)
            for parent in made[1:]:
                with suppress(OSError):  # somebody else may have put something there
                    parent.rmdir()
            if not made:
                out.mkdir(exist_ok=True)
        raise
