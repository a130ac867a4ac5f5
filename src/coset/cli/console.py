"""Where the commands write: tables and JSON to stdout, complaints to stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

# Without a terminal rich assumes 80 columns; in fewer, tables are better broken by the terminal than by rich.
PLAIN_WIDTH, NARROWEST = 120, 80
NAME = 12  # columns that names are not folded below
NAMES = 4  # that a warning lists


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
        super().print(*objects, **style)
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
    result = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim")
    for column in columns:
        if column in numbers:
            result.add_column(column, justify="right", no_wrap=True)
        else:
            result.add_column(column, overflow="fold")
    for row in rows:
        result.add_row(*(Text(cell) for cell in row))  # Text, since `qkv[0]` is not markup
    return result


def complain(kind: str, message: str) -> None:
    """`error: ...` or `warning: ...` on stderr, on one line."""
    typer.secho(f"{kind}: {' '.join(message.split())}", err=True, fg="red" if kind == "error" else "yellow")


def warn_unknown(path: Path, names: Sequence[str], fate: str) -> None:
    """That a checkpoint has tensors that the model does not know, and what happens to them."""
    if names:
        first = ", ".join(f"'{name}'" for name in names[:NAMES])
        more = f" and {len(names) - NAMES} more" if len(names) > NAMES else ""
        complain("warning", f"{path} has tensors that the model does not know, {fate}: {first}{more}.")
