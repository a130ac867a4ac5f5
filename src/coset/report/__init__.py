"""What people read about a symmetry: a record, names of repeated structure, and the picture of a model."""

from coset.report.blocks import blocks
from coset.report.figure import FORMATS, save
from coset.report.summary import moved_tensors, scalar_tensors, summary

__all__ = ["FORMATS", "blocks", "moved_tensors", "save", "scalar_tensors", "summary"]
