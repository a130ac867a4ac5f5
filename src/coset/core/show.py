"""How objects show themselves: a few lines in a terminal, a table in a notebook."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields

from coset.core.printable import printable

LINES, WIDTH = 12, 120


@dataclass(frozen=True)
class Table:
    """What is shown of an object: a title, and rows of a label with one value or several."""

    title: str
    rows: Sequence[tuple[object, ...]] = ()

    def text(self) -> str:
        """At most `LINES` lines of at most `WIDTH` characters; rows that do not fit are counted."""
        cells = [[_text(cell) for cell in row] for row in self.rows]
        if len(cells) > LINES - 1:
            rest = len(cells) - (LINES - 2)
            cells = [*cells[: LINES - 2], [f"... and {rest} more"]]
        columns = max((len(row) for row in cells), default=0)
        widths = [max((len(row[k]) for row in cells if k < len(row) - 1), default=0) for k in range(columns)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)) for row in cells]
        return "\n".join(_cut(line) for line in [printable(self.title), *(f"  {line.rstrip()}" for line in lines)])

    def html(self) -> str:
        """The same as an HTML table, with every row."""
        rows = "".join(
            "<tr>" + "".join(f"<td style='text-align:left'>{html.escape(_text(cell))}</td>" for cell in row) + "</tr>"
            for row in self.rows
        )
        title = html.escape(printable(self.title))
        return f"<table><caption style='text-align:left'><b>{title}</b></caption>{rows}</table>"


class Shown:
    """An object that shows itself by its `_shown` table. A frozen dataclass of this kind is made with `repr=False`."""

    def _shown(self) -> Table:
        raise NotImplementedError

    def __repr__(self) -> str:
        return self._shown().text()

    def _repr_html_(self) -> str:
        return self._shown().html()


class ShownSettings(Shown):
    """Settings of a run, as they are written: those that are not as by default. A dataclass with `repr=False`."""

    def _shown(self) -> Table:
        return Table(type(self).__name__, [(name, str(value)) for name, value in self._settings()])

    def _settings(self) -> list[tuple[str, object]]:
        return [(field.name, getattr(self, field.name)) for field in fields(self)]  # type: ignore[arg-type]

    def __repr__(self) -> str:
        defaults = {
            field.name: field.default if field.default_factory is MISSING else field.default_factory()
            for field in fields(self)  # type: ignore[arg-type]
        }
        words = [f"{name}={value!r}" for name, value in self._settings() if value != defaults[name]]
        return _cut(printable(f"{type(self).__name__}({', '.join(words)})"))


def _text(cell: object) -> str:
    if isinstance(cell, float):
        return f"{cell:.6g}"
    if isinstance(cell, int) and not isinstance(cell, bool):
        return f"{cell:,}"
    return printable(" ".join(str(cell).split()))


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 3]}..."
