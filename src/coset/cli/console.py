"""Where the commands write: tables to stdout, progress and complaints to stderr."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

# Without a terminal rich assumes 80 columns; in fewer, tables are better broken by the terminal than by rich.
PLAIN_WIDTH, NARROWEST = 120, 80
NAME = 12  # columns that names are not folded below
PAUSE = 5.0  # seconds between lines about small steps


class _Results(Console):
    """A console on which tables that are too wide get headings in several lines.

    If that is not enough, it is as wide as their numbers need: a terminal that is not breaks the lines itself.
    """

    def print(self, *objects: Any, **more: Any) -> None:
        before = self.width
        for made in [each for each in objects if isinstance(each, Table)]:
            if _least_width(made) > self.width:
                for column in made.columns:
                    column.header = str(column.header).replace(" ", "\n")
                self.width = max(self.width, _least_width(made))
        super().print(*objects, **more)
        self.width = before


def _least_width(made: Table) -> int:
    """Of a table whose numbers are not wrapped, and whose names are folded to a few columns."""

    def widest(cells: Iterable[Any]) -> int:
        return max((cell_len(line) for cell in cells for line in str(cell).split("\n")), default=0)

    numbers = [widest([column.header, *column.cells]) for column in made.columns if column.no_wrap]
    names = [min(widest([column.header, *column.cells]), NAME) for column in made.columns if not column.no_wrap]
    return sum([*numbers, *names]) + 2 * (len(made.columns) - 1)


def stdout() -> Console:
    """The console for results."""
    console = _Results(highlight=False, markup=False, emoji=False)
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    console.width = max(console.width, NARROWEST) if known else PLAIN_WIDTH
    return console


def print_json(report: Mapping[str, Any]) -> None:
    """One JSON object on stdout."""
    typer.echo(json.dumps(report, indent=1, allow_nan=False))


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[str] = ()) -> Table:
    """A table of plain text; columns in `numbers` are aligned to the right.

    Where it is too narrow, names are folded, but numbers never: `4 x 1` of `4 x 16` would be a lie.
    """
    made = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim")
    for column in columns:
        if column in numbers:
            made.add_column(column, justify="right", no_wrap=True)
        else:
            made.add_column(column, overflow="fold")
    for row in rows:
        made.add_row(*(Text(cell) for cell in row))  # Text, since `qkv[0]` is not markup
    return made


class Steps:
    """Says what goes on: call it for each stage of the work, `tick` for each small step within one."""

    def __init__(self, say: Callable[[str], None], pause: float) -> None:
        self._say, self._pause = say, pause
        self._last = time.monotonic()

    def __call__(self, text: str) -> None:
        self._last = time.monotonic()
        self._say(text)

    def tick(self, text: str) -> None:
        """Heard at most once in a while: a log wants to know that work goes on, not each step."""
        if time.monotonic() - self._last >= self._pause:
            self(text)


@contextmanager
def steps(quiet: bool = False) -> Iterator[Steps]:
    """Yield what says on stderr what goes on: on a terminal beside a spinner, else as lines; nothing when quiet."""
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    if quiet:
        yield Steps(lambda text: None, 0.0)
    elif console.is_terminal:
        with console.status("") as status:
            yield Steps(lambda text: status.update(Text(text)), 0.0)  # Text, since `[0]` is not markup
    else:
        yield Steps(lambda text: typer.echo(f"{text} ...", err=True), PAUSE)


def complain(kind: str, message: str) -> None:
    """`error: ...` or `warning: ...` on stderr, on one line."""
    typer.secho(f"{kind}: {' '.join(message.split())}", err=True, fg="red" if kind == "error" else "yellow")
