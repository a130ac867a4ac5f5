"""Packages that only parts of coset need: imported when those are used; if absent, the extra is named."""

from __future__ import annotations

import importlib
from types import ModuleType

from coset.core.errors import CosetError


def require(module: str, extra: str) -> ModuleType:
    """Import an optional package.

    Args:
        module: its import name, such as `matplotlib.figure`.
        extra: the extra of coset that brings it.

    Raises:
        CosetError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name.partition(".")[0]):
            raise  # the package is there, and something that it needs is not
        package = module.partition(".")[0]
        raise CosetError(f"This needs {package}, which is not installed: pip install 'coset[{extra}]'.") from error
