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


class Steps:
    """Follows the steps of samples, of which there are `steps` for each batch."""

    def __init__(self, steps: int, total: int, show: runs.Show) -> None:
        self._steps, self._total, self._show = steps, total, show
        self._taken = 0

    def __call__(self, done: int, steps: int) -> None:
        self._move(1)

    def skip_batch(self) -> None:
        """One was made before."""
        self._move(self._steps)

    def _move(self, steps: int) -> None:
        self._taken += steps
        self._show(f"sampling, step {self._taken} of {self._total}", self._taken)


@contextmanager
def watching(parts: int, epochs: int, doing: str, work: Path | None, quiet: bool) -> Iterator[Watch]:
    """A watch over `parts` of so many epochs each, kept in the folder `work`."""
    with stoppable(parts * epochs, doing, work, quiet) as (show, announce):
        yield Watch(parts, show, announce)


@contextmanager
def stoppable(total: int, doing: str, work: Path | None, quiet: bool) -> Iterator[tuple[runs.Show, runs.Announce]]:
    """A bar over work that is kept in a folder; nothing is left of one for a refused run.

    Whoever stops the work hears how to go on.
    """
    with ExitStack() as stack:
        if work is not None:
            stack.enter_context(runs.undone(work))
            stack.enter_context(outputs.writing("--work", work))
        bar = stack.enter_context(runs.epochs(total, 0, doing, quiet))
        try:
            yield bar
        except KeyboardInterrupt:
            stack.close()  # the bar, before the line that comes after it
            advice = "with --work FOLDER it could go on." if work is None else "the same command goes on in --work."
            console.complain("stopped", advice)
            raise
