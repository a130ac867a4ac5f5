"""The figures and tables of papers, each a function from `Settings` to an `Outcome`, found by a name.

A paper is a package here with a table `EXHIBITS`; `reproduce` runs one of them, writes what it finds and draws it.
Names are loaded when first used, so that the help of the command line does not load torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coset_papers.catalogue import PAPERS, exhibits, find
    from coset_papers.outcome import Claim, Exhibit, Outcome
    from coset_papers.record import redraw, reproduce
    from coset_papers.settings import SCALES, Settings

__all__ = [
    "PAPERS",
    "SCALES",
    "Claim",
    "Exhibit",
    "Outcome",
    "Settings",
    "exhibits",
    "find",
    "redraw",
    "reproduce",
]

_FILES = {
    "catalogue": ("PAPERS", "exhibits", "find"),
    "outcome": ("Claim", "Exhibit", "Outcome"),
    "record": ("redraw", "reproduce"),
    "settings": ("SCALES", "Settings"),
}


def __getattr__(name: str) -> Any:
    for file, names in _FILES.items():
        if name in names:
            return getattr(importlib.import_module(f"coset_papers.{file}"), name)
    raise AttributeError(f"module 'coset_papers' has no attribute {name!r}")
