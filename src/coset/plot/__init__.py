"""Pictures and pages: barriers, planes, and a model with its groups in colour.

matplotlib, the extra `coset[plot]`, is imported when the first picture is drawn.
"""

from coset.plot.barrier import barriers
from coset.plot.figure import FORMATS, canvas, save
from coset.plot.groups import groups
from coset.plot.page import page
from coset.plot.palette import HUES
from coset.plot.plane import contours

__all__ = ["FORMATS", "HUES", "barriers", "canvas", "contours", "groups", "page", "save"]
