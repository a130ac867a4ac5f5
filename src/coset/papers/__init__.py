"""The figures and tables of papers, each a function from `Settings` to an `Outcome`, found by a name.

A paper is a package here with a table `EXHIBITS`; `reproduce` runs one of them, writes what it finds and draws it.
"""

from coset.papers.catalogue import PAPERS, exhibits, find
from coset.papers.outcome import Claim, Exhibit, Outcome
from coset.papers.record import redraw, reproduce
from coset.papers.settings import SCALES, Settings

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
