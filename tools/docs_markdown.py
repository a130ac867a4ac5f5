"""Pieces of the pages that `make docs` writes: Markdown tables, and the records they are made from."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from coset.core.errors import CosetError

Record = dict[str, Any]
MOST_NAMES = 12  # models or tensors named in one cell


def read(path: Path) -> Record:
    """The object that a JSON file holds."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CosetError(f"{path} cannot be read: {error}.") from error
    if not isinstance(content, dict):
        raise CosetError(f"{path} holds a {type(content).__name__} where an object is expected.")
    return content


def absent(path: Path, command: str) -> str:
    """Said in place of a result, so that a gap cannot pass for one."""
    return f"**There is no result yet**: `results/{path.name}` is absent. `{command}` writes it.\n"


def grid(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [list(header), ["---"] * len(header), *([_cell(cell) for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())


def folded(summary: str, body: str) -> str:
    """A part of the page that opens at a click."""
    return f"<details>\n<summary>{summary}</summary>\n\n{body}\n</details>\n"


def listing(names: Sequence[str], most: int = MOST_NAMES) -> str:
    """Names, the first few of many."""
    text = ", ".join(names[:most])
    return text if len(names) <= most else f"{text} and {len(names) - most} more"


def short(value: object, form: str) -> str:
    """A figure, or a dash where there is none."""
    return "-" if value is None else form.format(value)


def command_of(record: Record) -> str:
    """How to write a record again; those of before name the file of a benchmark, `python bench/merging.py`."""
    return re.sub(r"python bench/(\w+)\.py", r"python -m bench \1", str(record["command"]))
