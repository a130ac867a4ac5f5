"""The page of all public names: where each lives, and the first sentence of its docstring."""

from __future__ import annotations

import inspect
import re
from collections import defaultdict

import coset
from coset.core.surface import surface
from tools.docs_markdown import grid

HEAD = """# Reference

Written by `make docs` from `src/coset/__init__.pyi`, the table of public names. `help(coset.align)` has the arguments
and an example of each. Examples may use these names without making them: `model`, an `mlp:64-16-10`; `digits`, the data
set; `a` and `b`, two trained networks; `sym`, the symmetry; `posterior`, a Gaussian; `population`, eight networks.

"""


def reference() -> str:
    """The page, a table for each room."""
    rooms: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for name, (module, own) in sorted(surface().items(), key=lambda item: item[0].lower()):
        thing = getattr(coset, name)
        if own is None or not (inspect.isfunction(thing) or inspect.isclass(thing)):
            continue
        rooms[module.split(".")[1]].append((f"`coset.{name}`", _summary(thing)))
    return HEAD + "\n".join(
        f"## {room}\n\n{grid(('name', 'what it is'), rows)}" for room, rows in sorted(rooms.items())
    )


def _summary(thing: object) -> str:
    """The first sentence of a docstring."""
    paragraph = " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())
    return re.split(r"(?<=(?<!Fig)(?<!Eq)(?<!al)\.) ", paragraph, maxsplit=1)[0]
