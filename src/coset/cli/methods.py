"""Methods of inference by the names that the command line has for them: those of the public table.

Which of its classes are methods is read from their source, since help should not load torch.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import coset
from coset.cli import settings
from coset.core.errors import CosetError
from coset.core.surface import surface

if TYPE_CHECKING:
    from coset.training.loop import Method

ROOM, ROOT = "coset.inference.", ("coset.training.loop", "Method")


@cache
def classes() -> dict[str, str]:
    """The names of methods, and of their classes: `symmetrized-vi` is `SymmetrizedVI`."""
    homes = ((name, module) for name, (module, own) in surface().items() if own == name)
    names = [name for name, module in homes if module.startswith(ROOM) and _descends(module, name)]
    return {re.sub("(?<=[a-z])(?=[A-Z])", "-", name).lower(): name for name in sorted(names)}


def choices() -> str:
    """The names in words, for help."""
    *names, last = classes()
    return f"{', '.join(names)} or {last}"


def build(name: str, words: Sequence[str]) -> Method:
    """The method `name` with settings NAME=VALUE; those of a method within another are `base.NAME`, and
    those of an attack `attack.NAME`.
    """
    if name not in classes():
        raise CosetError(
            f"There is no method {name!r}{settings.suggestion(name, classes())}: choose {', '.join(classes())}."
        )
    method: type[Method] = getattr(coset, classes()[name])
    return settings.build(method, settings.read(method, name, words))


def _descends(module: str, name: str) -> bool:
    """Whether a class of a module is a `Method`."""
    if (module, name) == ROOT:
        return True
    bases, origins = _names(module)
    if name in bases:
        return any(_descends(module, base) for base in bases[name])
    return name in origins and _descends(origins[name], name)


@cache
def _names(module: str) -> tuple[dict[str, list[str]], dict[str, str]]:
    """The classes of a module with their bases, and where the names that it imports from coset come from."""
    file = Path(coset.__path__[0], *module.split(".")[1:]).with_suffix(".py")
    if not file.exists():
        return {}, {}
    nodes = ast.parse(file.read_text(encoding="utf-8")).body
    bases = {
        node.name: [base.id for base in node.bases if isinstance(base, ast.Name)]
        for node in nodes
        if isinstance(node, ast.ClassDef)
    }
    origins = {
        alias.name: node.module
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("coset.")
        for alias in node.names
    }
    return bases, origins
