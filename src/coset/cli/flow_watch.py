"""What the commands that learn say on the way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from coset.cli import console, outputs, runs
from coset.inference import Epoch


class Watch:
    """Follows the epochs of parts that come one after the other, by their number as replica."""

    def __init__(self, parts: int, show: runs.Show, announce: runs.Announce) -> None:
        self.first: int | None = None  # the first epoch of this call, counted over all parts
        self.last: Epoch | None = None
        self._parts, self._show, self._announce = parts, show, announce

    def __call__(self, epoch: Epoch) -> None:
        self.last = epoch
        done = epoch.replica * epoch.epochs + epoch.epoch
        part = f"part {epoch.replica + 1} of {self._parts}, " if self._parts > 1 else ""
        text = f"{part}epoch {epoch.epoch} of {epoch.epochs}"
        if self.first is None:
            self.first = done
            if done > 1:
                self._announce(f"{text}, resumed")
        self._show(f"{text}, {epoch.errors}", done)


@contextmanager
def watching(parts: int, epochs: int, doing: str, work: Path | None, quiet: bool) -> Iterator[Watch]:
    """A watch over `parts` of so many epochs each, kept in the folder `work`; nothing is left of one for a refused run.

    Whoever stops the work hears how to go on.
    """
    with ExitStack() as stack:
        if work is not None:
            stack.enter_context(runs.undone(work))
            stack.enter_context(outputs.writing("--work", work))
        show, announce = stack.enter_context(runs.epochs(parts * epochs, 0, doing, quiet))
        try:
            yield Watch(parts, show, announce)
        except KeyboardInterrupt:
            stack.close()  # the bar, before the line that comes after it
            advice = "with --work FOLDER it could go on." if work is None else "the same command goes on in --work."
            console.complain("stopped", advice)
            raise
