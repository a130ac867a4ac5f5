"""The symmetry group of a model: inferred from its graph, verified by running it."""

from coset.symmetries.group import (
    Concat,
    Element,
    Fixed,
    Group,
    IndexSet,
    Interleave,
    Product,
    ScaledAxis,
    Scaling,
    Units,
)
from coset.symmetries.infer import symmetry
from coset.symmetries.symmetry import FixedAxis, Symmetry
from coset.symmetries.verify import Verification

__all__ = [
    "Concat",
    "Element",
    "Fixed",
    "FixedAxis",
    "Group",
    "IndexSet",
    "Interleave",
    "Product",
    "ScaledAxis",
    "Scaling",
    "Symmetry",
    "Units",
    "Verification",
    "symmetry",
]
