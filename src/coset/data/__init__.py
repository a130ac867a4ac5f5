"""Data sets as in-memory tensors: `load` one by name, or wrap your own with `as_split`."""

from coset.data.catalogue import load, names
from coset.data.convert import Data, as_split
from coset.data.dataset import DataSet
from coset.data.split import Split
from coset.data.standardize import Standardization

__all__ = ["Data", "DataSet", "Split", "Standardization", "as_split", "load", "names"]
