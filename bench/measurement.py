"""What a benchmark measures: rows of a table, and the machine they were measured on."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from coset._version import __version__


@dataclass(frozen=True)
class Measurement:
    """Rows of equal keys, in order; numbers unrounded, None where there is nothing to say.

    notes: what was done, a sentence each. machine: versions and cores, without which a figure means little.
    """

    title: str
    rows: Sequence[Mapping[str, Any]]
    notes: Sequence[str]
    machine: Mapping[str, Any]


def machine(*packages: str) -> dict[str, Any]:
    """coset, Python, cores, and the version of each package, None if it is not installed."""
    return {
        "coset": __version__,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        **{package: installed(package) for package in packages},
    }


def installed(package: str) -> str | None:
    """The version of a package, None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
