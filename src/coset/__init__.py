"""Work with neural networks modulo their symmetries.

Names are loaded when first used, so that importing coset, and the command line's help, does not load torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from coset._version import __version__
from coset.errors import CosetError, DataError, ModelError, StateError, SymmetryError

if TYPE_CHECKING:
    from coset.symmetries import Element, Group, Symmetry, symmetry

__all__ = [
    "CosetError",
    "DataError",
    "Element",
    "Group",
    "ModelError",
    "StateError",
    "Symmetry",
    "SymmetryError",
    "__version__",
    "symmetry",
]

_HOMES = {
    "Element": "coset.symmetries",
    "Group": "coset.symmetries",
    "Symmetry": "coset.symmetries",
    "symmetry": "coset.symmetries",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'coset' has no attribute {name!r}")
    found = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
