"""Where data files are sought."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from coset.core.errors import DataError

SYSTEM = Path("/usr/share/datasets")  # Debian's dataset-fashion-mnist puts a folder fashion-mnist here


def cache() -> Path:
    """Where downloads are kept."""
    return Path.home() / ".cache" / "coset"


def roots() -> list[Path]:
    """The folders to look in, in order: $COSET_DATA, the cache, the system's."""
    setting = os.environ.get("COSET_DATA")
    if not setting:
        return [cache(), SYSTEM]
    folder = Path(setting).expanduser()
    if not folder.is_dir():
        raise DataError(f"COSET_DATA is {setting}, which is not a folder")
    return [folder, cache(), SYSTEM]


def find(*alternatives: str) -> Path | None:
    """The first of the alternative names, relative to a root, that is a file under the first root."""
    paths = (root / name for root in roots() for name in alternatives)
    return next((path for path in paths if path.is_file()), None)


def find_all(names: Iterable[str]) -> list[Path] | None:
    """The paths of all names, or None if one is missing; they need not lie under one root."""
    paths = [find(name) for name in names]
    files = [path for path in paths if path is not None]
    return files if len(files) == len(paths) else None


def absent(name: str, why: str) -> DataError:
    """The error for a file that was not found, with the reason it could not be had otherwise."""
    places = ", ".join(str(root) for root in roots())
    return DataError(f"{name} is in none of {places}, and {why}: put it in one of them or set COSET_DATA")
