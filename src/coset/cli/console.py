"""What commands print: tables and JSON to stdout; complaints, and how far long work is, to stderr.

On a terminal that is a bar with the time left, elsewhere a line now and then, or nothing.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from coset.core.printable import printable
from coset.core.progress import Epoch, Event

if TYPE_CHECKING:
    from rich.progress import Progress

# Without a terminal rich assumes 80 columns; in fewer, tables are better broken by the terminal than by rich.
PLAIN_WIDTH, NARROWEST = 120, 80
NAME = 12  # columns that names are not folded below
LONGEST = 1000  # characters of a complaint
NAMES = 4  # that a warning lists
PAUSE = 5.0  # seconds between lines about small steps
MOMENT = 0.1  # seconds between steps of training that are shown


class _Results(Console):
    """A console on which tables that are too wide get headings in several lines.

    If that is not enough, it is as wide as their numbers need: a terminal that is not breaks the lines itself.
    """

    def print(self, *objects: Any, **style: Any) -> None:
        before = self.width
        for table in [each for each in objects if isinstance(each, Table)]:
            if _least_width(table) > self.width:
                for column in table.columns:
                    column.header = str(column.header).replace(" ", "\n")
                self.width = max(self.width, _least_width(table))
        super().print(*(printable(each) if isinstance(each, str) else each for each in objects), **style)
        self.width = before


def _least_width(table: Table) -> int:
    """Of a table whose numbers are not wrapped, and whose names are folded to a few columns."""

    def widest(cells: Iterable[Any]) -> int:
        return max((cell_len(line) for cell in cells for line in str(cell).split("\n")), default=0)

    numbers = [widest([column.header, *column.cells]) for column in table.columns if column.no_wrap]
    names = [min(widest([column.header, *column.cells]), NAME) for column in table.columns if not column.no_wrap]
    return sum([*numbers, *names]) + 2 * (len(table.columns) - 1)


def stdout() -> Console:
    """The console for results."""
    console = _Results(highlight=False, markup=False, emoji=False)
    is_sized = sys.stdout.isatty() or "COLUMNS" in os.environ
    console.width = max(console.width, NARROWEST) if is_sized else PLAIN_WIDTH
    return console


def print_json(report: Mapping[str, Any]) -> None:
    """One JSON object on stdout."""
    typer.echo(json.dumps(report, indent=1, allow_nan=False))


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[str] = ()) -> Table:
    """A table of plain text; columns in `numbers` are aligned to the right.

    Where it is too narrow, names are folded, but numbers never: `4 x 1` of `4 x 16` would be a lie.
    """
    result = Table(
        title=printable(title), title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim"
    )
    for column in columns:
        header = printable(column)
        if column in numbers:
            result.add_column(header, justify="right", no_wrap=True)
        else:
            result.add_column(header, overflow="fold")
    for row in rows:
        result.add_row(*(Text(printable(cell)) for cell in row))  # Text, since `qkv[0]` is not markup
    return result


def complain(kind: str, message: str) -> None:
    """`error: ...` or `warning: ...` on stderr, on one line."""
    line = printable(" ".join(message.split()))
    if len(line) > LONGEST:  # a name in a file may be of any length
        line = f"{line[: LONGEST - 200]} ... {line[-200:]}"
    typer.secho(f"{kind}: {line}", err=True, fg="red" if kind == "error" else "yellow")


def warn_unknown(path: Path, names: Sequence[str], fate: str) -> None:
    """That a checkpoint has tensors that the model does not know, and what happens to them."""
    if names:
        first = ", ".join(f"'{name}'" for name in names[:NAMES])
        more = f" and {len(names) - NAMES} more" if len(names) > NAMES else ""
        complain("warning", f"{path} has tensors that the model does not know, {fate}: {first}{more}.")


class Display:
    """Shows the events of work that goes through stages: what commands give as `progress`. This one shows nothing."""

    def __init__(self) -> None:
        self._stage = self.where = ""

    def stage(self, text: str) -> None:
        """Another stage of the work begins, whose events follow."""
        self._stage = self.where = text

    def note(self, text: str) -> None:
        """A line that stays."""

    def show(self, text: str, done: float = 0.0, total: float | None = None) -> None:
        """How far the stage is, `total` None where nobody knows how much there is to do."""
        self.where = text

    def __call__(self, event: Event) -> None:
        text = str(event)
        self.show(f"{self._stage}: {text}" if self._stage else text, event.done, event.total)


class _Lines(Display):
    """Lines on stderr: one for each stage, and now and then one for an event, as a log wants to know of life only."""

    def __init__(self) -> None:
        super().__init__()
        self._last = time.monotonic()

    def stage(self, text: str) -> None:
        super().stage(text)
        self.note(text)

    def note(self, text: str) -> None:
        self._last = time.monotonic()
        typer.echo(f"{printable(text)} ...", err=True)

    def show(self, text: str, done: float = 0.0, total: float | None = None) -> None:
        super().show(text, done, total)
        if time.monotonic() - self._last >= PAUSE:
            self.note(text)


class _Bar(Display):
    """A bar with the time left, on a terminal."""

    def __init__(self, bar: Progress) -> None:
        super().__init__()
        self._bar, self._task = bar, bar.add_task("", total=None)
        self._total: float | None = None

    def stage(self, text: str) -> None:
        super().stage(text)
        self._begin(text, 0.0, None)

    def note(self, text: str) -> None:
        self._bar.console.print(printable(text))

    def show(self, text: str, done: float = 0.0, total: float | None = None) -> None:
        super().show(text, done, total)
        if total != self._total:
            self._begin(text, done, total)
        self._bar.update(self._task, description=printable(text), completed=done)

    def _begin(self, text: str, done: float, total: float | None) -> None:
        """With a new bar, since what was done before says nothing of the speed."""
        self._bar.remove_task(self._task)
        self._task, self._total = self._bar.add_task(printable(text), total=total, completed=int(done)), total


@contextmanager
def open_display(quiet: bool = False) -> Iterator[Display]:
    """What says on stderr how far the work is; nothing when quiet. Whoever stops it hears where it was."""
    with _open_display(quiet) as display:
        try:
            yield display
        except KeyboardInterrupt as stop:
            if display.where:
                stop.add_note(f"it was {display.where}")
            raise


@contextmanager
def _open_display(quiet: bool) -> Iterator[Display]:
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    if quiet:
        yield Display()
    elif console.is_terminal:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(text_format_no_percentage=""),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console, transient=True) as bar:
            yield _Bar(bar)
    else:
        yield _Lines()


class TrainingListener:
    """Counts the epochs of training that has several parts, such as replicas, as one whole of `total` epochs.

    first: the first epoch of this call, in the numbers of `start`; None where all was trained before. last: what was
    measured after the last epoch.
    """

    def __init__(self, display: Display, total: int) -> None:
        self.display, self.total = display, total
        self.first: int | None = None
        self.last: Epoch | None = None
        self._is_under_way = False

    def place(self, epoch: Epoch) -> tuple[str, int]:
        """Where an epoch is, in words, and how many epochs of the whole are done after it."""
        raise NotImplementedError

    def start(self, epoch: Epoch) -> tuple[str, int]:
        """Of the first epoch that is heard of: where it is, as users count, and its number."""
        done = self.place(epoch)[1]
        return f"epoch {done} of {self.total}", done

    def __call__(self, event: Event) -> None:
        epoch = event.epoch
        if epoch is None:
            self.between(event)
            return
        self.last = epoch
        if self.first is None:
            where, self.first = self.start(epoch)
            self.begin(where, self.first > 1)
        where, done = self.place(epoch)
        self.display.show(f"{where}, {epoch.errors}", done, self.total)

    def between(self, event: Event) -> None:
        """An event that is no end of an epoch."""
        self.display(event)

    def begin(self, where: str, is_resumed: bool) -> None:
        """Say once whether something was done before."""
        if is_resumed and not self._is_under_way:
            self.display.note(f"{where}, resumed")
        self._is_under_way = True


class ReplicasListener(TrainingListener):
    """Follows `networks` that are trained at the same time or not, after `before` epochs of some in earlier calls."""

    def __init__(self, display: Display, epochs: int, networks: int, before: int = 0) -> None:
        super().__init__(display, epochs * networks)
        self._before = before
        self._epochs: dict[tuple[int, int], int] = {}

    def place(self, epoch: Epoch) -> tuple[str, int]:
        self._epochs[epoch.replica, epoch.copy] = epoch.epoch
        text = f"replica {epoch.replica}: epoch {epoch.epoch} of {epoch.epochs}"
        return text, self._before + sum(self._epochs.values())

    def start(self, epoch: Epoch) -> tuple[str, int]:
        return f"epoch {epoch.epoch} of {epoch.epochs}", epoch.epoch


class PartsListener(TrainingListener):
    """Follows training in `parts` one after the other, by their number as replica, and the steps of their epochs."""

    def __init__(self, display: Display, parts: int, epochs: int) -> None:
        super().__init__(display, parts * epochs)
        self._parts, self._epochs, self._last_show = parts, epochs, 0.0

    def place(self, epoch: Epoch) -> tuple[str, int]:
        return self._where(epoch.replica, epoch.epoch), epoch.replica * epoch.epochs + epoch.epoch

    def start(self, epoch: Epoch) -> tuple[str, int]:
        return self.place(epoch)

    def between(self, event: Event) -> None:
        """A step of an epoch, which may take long, or so little that not all are worth to be shown."""
        now = time.monotonic()
        if event.unit != "step" or event.total is None or (self._is_under_way and now - self._last_show < MOMENT):
            return
        self._last_show = now
        each = event.total // self.total
        epochs, step = divmod(event.done - 1, each)
        part, epoch = divmod(epochs, self._epochs)
        where = f"{self._where(part, epoch + 1)}, step {step + 1} of {each}"
        self.begin(where, event.done > 1)
        errors = "" if self.last is None else f", {self.last.errors}"
        self.display.show(f"{where}{errors}", event.done / each, self.total)

    def _where(self, part: int, epoch: int) -> str:
        prefix = f"part {part + 1} of {self._parts}, " if self._parts > 1 else ""
        return f"{prefix}epoch {epoch} of {self._epochs}"


class BatchesListener:
    """Follows the steps of samples that are drawn in batches, `steps` for each."""

    def __init__(self, display: Display, steps: int, batches: int) -> None:
        self._display, self._steps, self._total = display, steps, steps * batches
        self._batches = 0

    def __call__(self, event: Event) -> None:
        """Of a batch; a solver that chooses its own steps tells the percent of the time that have passed."""
        if event.total is None:
            return
        step = int(self._steps * (self._batches + event.done / event.total))
        self._display.show(f"sampling, step {step} of {self._total}", step, self._total)
        if event.done == event.total:
            self._batches += 1

    def skip(self) -> None:
        """One was drawn before."""
        self(Event(1, 1, "step"))
