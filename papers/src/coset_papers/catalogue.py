"""Figures and tables by name, `paper/figure`.

Wherever a file of a paper's package calls `exhibit("paper/figure", title, compute, draw)`, there is one. Files are
searched for such calls, and one is imported when a figure of it is wanted: to list all takes no time.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coset.core.errors import CosetError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from coset_papers.outcome import Outcome
    from coset_papers.settings import Settings

PAPERS = {
    "rossi2023": "Rossi, Singh, Hannagan: On permutation symmetries in Bayesian neural network posteriors",
    "gelberg2024": "Gelberg, van der Ouderaa, van der Wilk, Gal: Variational inference failures under model symmetries",
    "tatro2020": "Tatro, Chen, Das, Melnyk, Sattigeri, Lai: Optimizing mode connectivity via neuron alignment",
    "weightflow": "Flow matching over the weights of neural networks modulo their symmetries (a master's thesis)",
}


@dataclass(frozen=True)
class Exhibit:
    """A figure or table: what it shows, how it is computed, and how `Outcome.data`, as read from JSON, is drawn."""

    title: str
    compute: Callable[[Settings], Outcome]
    draw: Callable[[Any], Figure]


_EXHIBITS: dict[str, Exhibit] = {}


def exhibit(name: str, title: str, compute: Callable[[Settings], Outcome], draw: Callable[[Any], Figure]) -> None:
    """Add a figure or table. In a file of a paper's package, write name and title as they are, not as expressions."""
    _EXHIBITS[name] = Exhibit(title, compute, draw)


def titles() -> dict[str, str]:
    """What each figure and table shows, by name, paper after paper, each in the order of its `FIGURES`."""
    return {name: title for paper in PAPERS for name, title in _titles_of(paper)}


def exhibits() -> dict[str, Exhibit]:
    """All figures and tables by name, which imports the files of all."""
    return {name: find(name) for name in titles()}


def find(name: str) -> Exhibit:
    """The exhibit of a name such as `gelberg2024/fig3`."""
    if name not in _EXHIBITS:
        declared = _declared(name.partition("/")[0])
        if name not in declared:
            raise CosetError(f"There is no figure {name!r} to reproduce, only {', '.join(titles())}.")
        importlib.import_module(declared[name].module)
    return _EXHIBITS[name]


@dataclass(frozen=True)
class _Declaration:
    title: str
    module: str


def _titles_of(paper: str) -> list[tuple[str, str]]:
    pairs = {name: declaration.title for name, declaration in _declared(paper).items()}
    pairs |= {name: each.title for name, each in _EXHIBITS.items() if name.startswith(f"{paper}/")}
    order = {
        f"{paper}/{figure}": k for k, figure in enumerate(importlib.import_module(f"coset_papers.{paper}").FIGURES)
    }
    return sorted(pairs.items(), key=lambda pair: (order.get(pair[0], len(order)), pair[0]))


@cache
def _declared(paper: str) -> dict[str, _Declaration]:
    """The calls of `exhibit` in a paper's files, which are read but not imported; empty if there is no such paper."""
    root, folders = Path(__file__).parent, [paper] if paper in PAPERS else []
    return {
        name: _Declaration(title, ".".join(("coset_papers", *file.relative_to(root).with_suffix("").parts)))
        for folder in folders
        for file in sorted((root / folder).rglob("*.py"))
        for name, title in _calls(file.read_text(encoding="utf-8"))
    }


def _calls(source: str) -> list[tuple[str, str]]:
    """Name and title of each call of `exhibit` at the level of a file."""
    if "\nexhibit(" not in source:
        return []
    calls = [node.value for node in ast.parse(source).body if isinstance(node, ast.Expr)]
    return [
        (ast.literal_eval(call.args[0]), ast.literal_eval(call.args[1]))
        for call in calls
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "exhibit"
    ]
