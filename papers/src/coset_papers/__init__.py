"""The figures and tables of papers, each a function from `Settings` to an `Outcome`, by name.

A paper is a package here, whose files add their figures by `exhibit`; `reproduce` computes one, writes its record and
draws it. Names are loaded when first used, so that the help of the command line does not load torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coset_papers.catalogue import PAPERS, Exhibit, exhibit, exhibits, find, titles
    from coset_papers.outcome import Claim, Outcome
    from coset_papers.record import redraw, reproduce
    from coset_papers.settings import SCALES, Settings

__all__ = [
    "PAPERS",
    "SCALES",
    "Claim",
    "Exhibit",
    "Outcome",
    "Settings",
    "exhibit",
    "exhibits",
    "find",
    "redraw",
    "reproduce",
    "titles",
]

_FILES = {
    "catalogue": ("PAPERS", "Exhibit", "exhibit", "exhibits", "find", "titles"),
    "outcome": ("Claim", "Outcome"),
    "record": ("redraw", "reproduce"),
    "settings": ("SCALES", "Settings"),
}


def __getattr__(name: str) -> Any:
    for file, names in _FILES.items():
        if name in names:
            return getattr(importlib.import_module(f"coset_papers.{file}"), name)
    raise AttributeError(f"module 'coset_papers' has no attribute {name!r}")
