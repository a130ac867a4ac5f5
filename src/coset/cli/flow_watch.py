"""What the commands that learn say on the way."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from coset.cli import console, outputs, runs
from coset.core.progress import Epoch, Event

MOMENT = 0.1  # seconds between steps that are shown


class Watch:
    """Follows the epochs of parts that come one after the other, by their number as replica."""

    def __init__(self, parts: int, epochs: int, show: runs.Show, announce: runs.Announce) -> None:
        self.first: int | None = None  # the first epoch of this call, counted over all parts
        self.last: Epoch | None = None
        self._seen, self._begun = 0.0, False
        self._parts, self._epochs, self._show, self._announce = parts, epochs, show, announce

    def __call__(self, event: Event) -> None:
        if event.epoch is not None:
            self._after_epoch(event.epoch)
        elif event.unit == "step" and event.total is not None:
            self._after_step(event.done, event.total)

    def _after_epoch(self, epoch: Epoch) -> None:
        self.last = epoch
        done = epoch.replica * epoch.epochs + epoch.epoch
        text = self._where(epoch.replica, epoch.epoch)
        if self.first is None:
            self.first = done
            self._begin(text, done > 1)
        self._show(f"{text}, {epoch.errors}", done)

    def _after_step(self, done: int, total: int) -> None:
        """Follow the steps of an epoch, which may take long, or so little that not all are worth to be seen."""
        now = time.monotonic()
        if self._begun and now - self._seen < MOMENT:
            return
        self._seen = now
        each = total // (self._parts * self._epochs)
        epochs, step = divmod(done - 1, each)
        part, epoch = divmod(epochs, self._epochs)
        text = f"{self._where(part, epoch + 1)}, step {step + 1} of {each}"
        self._begin(text, done > 1)
        errors = "" if self.last is None else f", {self.last.errors}"
        self._show(f"{text}{errors}", done / each)

    def _begin(self, text: str, resumed: bool) -> None:
        """Say once whether something was done before."""
        if resumed and not self._begun:
            self._announce(f"{text}, resumed")
        self._begun = True

    def _where(self, part: int, epoch: int) -> str:
        named = f"part {part + 1} of {self._parts}, " if self._parts > 1 else ""
        return f"{named}epoch {epoch} of {self._epochs}"


class Steps:
    """Follows the steps of samples, of which there are `steps` for each batch."""

    def __init__(self, steps: int, total: int, show: runs.Show) -> None:
        self._steps, self._total, self._show = steps, total, show
        self._batches = 0

    def __call__(self, event: Event) -> None:
        """Of a batch; a solver that chooses its own steps tells the percent of the time that have passed."""
        if event.total is None:
            return
        self._show_part(event.done / event.total)
        if event.done == event.total:
            self._batches += 1

    def skip_batch(self) -> None:
        """One was made before."""
        self(Event(1, 1, "step"))

    def _show_part(self, part: float) -> None:
        step = int(self._steps * (self._batches + part))
        self._show(f"sampling, step {step} of {self._total}", step)


@contextmanager
def watching(parts: int, epochs: int, doing: str, work: Path | None, quiet: bool) -> Iterator[Watch]:
    """A watch over `parts` of so many epochs each, kept in the folder `work`."""
    with stoppable(parts * epochs, doing, work, quiet) as (show, announce):
        yield Watch(parts, epochs, show, announce)


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
