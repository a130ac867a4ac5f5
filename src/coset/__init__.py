"""Work with neural networks modulo their symmetries.

Names are loaded when first used, so that importing coset, and the command line's help, does not load torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from coset._version import __version__
from coset.errors import CosetError, DataError, ModelError, StateError, SymmetryError

if TYPE_CHECKING:
    # From the files themselves: in an import cycle mypy takes `coset.inference.fit` for the file.
    from coset.alignment.api import align, align_many
    from coset.alignment.merge import merge
    from coset.inference.fit import fit
    from coset.inference.map import MAP
    from coset.paths.barrier import barrier
    from coset.paths.geodesic import geodesic
    from coset.paths.mixture import mixture
    from coset.solutions.dirac import Dirac
    from coset.solutions.evaluate import evaluate
    from coset.solutions.gaussian import Gaussian
    from coset.solutions.load import load
    from coset.solutions.mixture import Mixture
    from coset.solutions.predict import predict
    from coset.solutions.wasserstein import wasserstein
    from coset.symmetries import Element, Group, Symmetry, symmetry

__all__ = [
    "MAP",
    "CosetError",
    "DataError",
    "Dirac",
    "Element",
    "Gaussian",
    "Group",
    "Mixture",
    "ModelError",
    "StateError",
    "Symmetry",
    "SymmetryError",
    "__version__",
    "align",
    "align_many",
    "barrier",
    "evaluate",
    "fit",
    "geodesic",
    "load",
    "merge",
    "mixture",
    "predict",
    "symmetry",
    "wasserstein",
]

_HOMES = {
    "Dirac": "coset.solutions",
    "Element": "coset.symmetries",
    "Gaussian": "coset.solutions",
    "Group": "coset.symmetries",
    "MAP": "coset.inference",
    "Mixture": "coset.solutions",
    "Symmetry": "coset.symmetries",
    "align": "coset.alignment",
    "align_many": "coset.alignment",
    "barrier": "coset.paths",
    "evaluate": "coset.solutions",
    "fit": "coset.inference",
    "geodesic": "coset.paths",
    "load": "coset.solutions",
    "merge": "coset.alignment",
    "mixture": "coset.paths",
    "predict": "coset.solutions",
    "symmetry": "coset.symmetries",
    "wasserstein": "coset.solutions",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'coset' has no attribute {name!r}")
    found = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
