"""A report as one HTML page that needs nothing else: styles and figures are in it, and no script or network."""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from coset._version import __version__
from coset.core.printable import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = """
:root { color-scheme: light; }
body { margin: 2.5rem auto; max-width: 62rem; padding: 0 1.25rem; color: #222; background: #fff;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.45rem; font-weight: 600; margin: 0 0 1.5rem; overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.92rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.35rem 1.5rem 0.35rem 0; text-align: left; border-bottom: 1px solid #e4e4e4; }
th { font-weight: 600; border-bottom-color: #999; }
.number { text-align: right; white-space: nowrap; }
figure { margin: 2rem 0 0; }
img { max-width: 100%; height: auto; }
footer { margin-top: 2.5rem; color: #777; font-size: 0.8rem; }
"""
NUMBER = re.compile(r"[-+]?[\d.,]+(e[-+]?\d+)?%?(, [-+]?[\d.,]+(e[-+]?\d+)?%?)*")


def page(title: str, rows: Sequence[Mapping[str, str]], figures: Sequence[Figure], notes: Sequence[str] = ()) -> str:
    """A report as the text of an HTML page, which holds its styles and figures and loads nothing from elsewhere.

    Args:
        title: the heading.
        rows: the lines of a table, each a cell by column; numbers stand on the right.
        figures: what follows the table and the notes, as SVG.
        notes: sentences below the table.

    Returns:
        The HTML text, to be written to a file.

    Example:
        >>> text = coset.plot.page("Two networks", [{"path": "straight", "barrier": "0.80"}], [])
        >>> text.startswith("<!doctype html>")
        True
    """
    parts = [f"<h1>{_escape(title)}</h1>"]
    if rows:
        parts.append(f'<div class="wide">{_table(rows)}</div>')
    parts += [f"<p>{_escape(note)}</p>" for note in notes]
    parts += [f'<figure><img alt="{_escape(title)}" src="{svg_address(figure)}"></figure>' for figure in figures]
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n{body}\n<footer>coset {__version__}</footer>\n</body>\n</html>\n"
    )


def _escape(text: str) -> str:
    return html.escape(printable(text))


def _table(rows: Sequence[Mapping[str, str]]) -> str:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    numeric = {c for c in columns if all(NUMBER.fullmatch(row[c]) for row in rows if row.get(c))}

    def line(tag: str, cells: Sequence[str]) -> str:
        pairs = zip(columns, cells, strict=True)
        marks = {c: ' class="number"' if c in numeric else "" for c in columns}
        return f"<tr>{''.join(f'<{tag}{marks[c]}>{_escape(cell)}</{tag}>' for c, cell in pairs)}</tr>"

    body = "\n".join(line("td", [row.get(c, "") for c in columns]) for row in rows)
    return f"<table>\n<thead>{line('th', columns)}</thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def svg_address(figure: Figure) -> str:
    """The figure as a `data:` address: an SVG apart from its page, since the names in two inline ones would clash."""
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    return f"data:image/svg+xml;base64,{base64.b64encode(file.getvalue()).decode()}"
