"""Pictures and pages: barriers, planes, and a model with its groups in colour."""

from coset.plot.blocks import blocks
from coset.plot.figure import FORMATS, save

__all__ = ["FORMATS", "blocks", "save"]
