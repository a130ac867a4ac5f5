"""Objects that show their picture in a notebook, where there is matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coset.core.errors import CosetError
from coset.core.show import Shown
from coset.plot.page import svg_address

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Pictured(Shown):
    """An object that shows its picture below its table."""

    def _picture(self) -> Figure:
        raise NotImplementedError

    def _repr_html_(self) -> str:
        table = self._shown().html()
        try:
            return f"{table}<img src='{svg_address(self._picture())}'/>"
        except CosetError:  # there is no matplotlib
            return table
