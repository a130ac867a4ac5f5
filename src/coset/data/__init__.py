"""Data sets as in-memory tensors: `load` one by name, or wrap your own with `as_split`."""

from coset.data.catalogue import load, names
from coset.data.dataset import Data, DataSet, Split, Standardization, as_split

__all__ = ["Data", "DataSet", "Split", "Standardization", "as_split", "load", "names"]
