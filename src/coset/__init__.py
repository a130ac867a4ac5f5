"""Work with neural networks modulo their symmetries."""

from coset._version import __version__
from coset.errors import CosetError, DataError, ModelError, StateError, SymmetryError
from coset.symmetry import Element, Group, Symmetry, symmetry

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
