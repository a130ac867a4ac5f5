"""The picture of a model: its tensors as boxes, whose edges are coloured by the group of the axis.

A matrix is a rectangle: its left edge is axis 0, its top edge the next axis that a group moves. A vector is an
edge alone. A product of groups (heads times units of a head) is drawn as parallel lanes, outermost first, with
a gap between the copies of a fibred group; a concatenation as one segment after the other. Grey is fixed.
Lengths grow with the logarithm of the size, so that 10 classes and 50,000 words fit one page.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coset.core.extras import require
from coset.core.names import owner, plural, span
from coset.plot.families import Family, families
from coset.plot.figure import canvas
from coset.plot.palette import FIXED, INK
from coset.symmetries.group import Axis, Fixed, IndexSet, Interleave, Product, Units, names
from coset.symmetries.symmetry import Symmetry

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

# Everything is in inches.
LANE = 0.055
SHORTEST, LONGEST = 0.06, 0.34
TENSOR_GAP, ROW_GAP, SECTION_GAP, COLUMN_GAP, MARGIN = 0.05, 0.075, 0.12, 0.30, 0.18
HEADING, HEADER, LEGEND_ROW = 0.16, 0.56, 0.30
SPLIT = 0.014  # between the copies of a fibred group, and the parts of a concatenation
SWATCH, SWATCHES = 0.36, 6
SMALL, NORMAL, LARGE = 5.0, 6.5, 9.0  # points
BODY, FAINT = "#f1f1ef", "#8c8c8c"
COPIES, THINNEST = 8, 0.024  # copies, or rounds of an interleaving, that are drawn one by one
LEGEND = 14  # families in the legend
COLUMNS = 30  # more are not tried
ASPECT = 1.45  # width to height that the page aims at
KEY = "left edge: axis 0    top edge: axis 1    side by side: a product    grey: fixed"


@dataclass(frozen=True)
class EdgeSegment:
    """A piece of an edge: from `start` over `length` along it, from `offset` over `depth` across."""

    start: float
    length: float
    offset: float
    depth: float
    group: str | None


@dataclass(frozen=True)
class TensorBox:
    """A tensor as drawn: its row edge, and the edges above it."""

    row: Axis
    columns: tuple[Axis, ...]


@dataclass(frozen=True)
class ModuleRow:
    """A module: its label, the shape of its first tensor, and its tensors side by side."""

    label: str
    shape: str
    boxes: tuple[TensorBox, ...]


@dataclass(frozen=True)
class RowSection:
    """The rows of one repeated block, or of what lies between two; the heading of the latter is empty."""

    heading: str
    rows: tuple[ModuleRow, ...]


Column = Sequence[RowSection]


def groups(sym: Symmetry, title: str = "") -> Figure:
    """The tensors of a model by module, in the order of the state, with the groups of their axes in colour.

    Args:
        sym: of `coset.symmetry`.
        title: above the picture, such as the name of the model.

    Returns:
        The figure, with a legend of the largest groups.

    Raises:
        CosetError: matplotlib is not installed.

    Example:
        >>> coset.plot.save(coset.plot.groups(sym, "mlp:64-16-10"), "groups.png")
    """
    require("matplotlib", "plot")
    return _Sheet(sym, title).draw()


class _Sheet:
    """Lays out the sections in columns, and draws them."""

    def __init__(self, sym: Symmetry, title: str) -> None:
        self.sym = sym
        self.title = title
        order = f"10^{sym.log_order / math.log(10):,.0f}"
        self.subtitle = f"{plural(len(sym.groups), 'group')}, {order} permutations, {plural(len(sym.axes), 'tensor')}"
        self.families = families(sym)
        self.colours = {name: colour for family in self.families for name, colour in family.colours.items()}
        self.scale = max((axis.size for axes in sym.axes.values() for axis in axes), default=1)
        self.rectangles: dict[str, list[Rectangle]] = {}

    def draw(self) -> Figure:
        from matplotlib.collections import PatchCollection

        columns = self._columns(_sections(self.sym))
        width, height = self._page(columns)
        figure = canvas(width, height)
        axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        axes.set(xlim=(0, width), ylim=(height, 0))  # downwards, as one reads
        axes.set_axis_off()
        axes.text(MARGIN, MARGIN + 0.07, self.title, fontsize=LARGE, color=INK, weight="bold", va="center")
        axes.text(MARGIN, MARGIN + 0.24, self.subtitle, fontsize=NORMAL, color=FAINT, va="center")
        axes.text(MARGIN, MARGIN + 0.37, KEY, fontsize=NORMAL, color=FAINT, va="center")
        x, top = MARGIN, MARGIN + HEADER
        for column in columns:
            self._draw_column(axes, column, x, top)
            x += self._column_width(column) + COLUMN_GAP
        self._draw_legend(axes, x, top)
        for colour, rectangles in self.rectangles.items():
            axes.add_collection(PatchCollection(rectangles, facecolor=colour, linewidth=0, antialiased=False))
        return figure

    # Layout

    def _length(self, size: int) -> float:
        return SHORTEST + (LONGEST - SHORTEST) * math.log(max(size, 1)) / max(math.log(self.scale), 1.0)

    def _box_size(self, box: TensorBox) -> tuple[float, float]:
        height = self._length(box.row.size) + LANE * sum(map(_lanes, box.columns))
        width = LANE * _lanes(box.row) + max((self._length(axis.size) for axis in box.columns), default=0.0)
        return width, height

    def _row_height(self, row: ModuleRow) -> float:
        return max(NORMAL / 72, *(self._box_size(box)[1] for box in row.boxes))

    def _section_height(self, section: RowSection) -> float:
        rows = sum(self._row_height(row) + ROW_GAP for row in section.rows)
        return rows + SECTION_GAP + (HEADING if section.heading else 0.0)

    def _column_height(self, column: Column) -> float:
        return sum(self._section_height(section) for section in column)

    def _label_width(self, column: Column) -> float:
        return max(_text_width(row.label, NORMAL) for section in column for row in section.rows) + 2 * TENSOR_GAP

    def _column_width(self, column: Column) -> float:
        rows = [row for section in column for row in section.rows]
        tensors = max(self._boxes_width(row) + _text_width(row.shape, SMALL) for row in rows)
        headings = max(_text_width(section.heading, NORMAL) for section in column)
        return max(self._label_width(column) + tensors, headings)

    def _boxes_width(self, row: ModuleRow) -> float:
        return sum(self._box_size(box)[0] + TENSOR_GAP for box in row.boxes)

    def _page(self, columns: Sequence[Column]) -> tuple[float, float]:
        legend_width, legend_height = self._legend_size()
        width = sum(self._column_width(column) + COLUMN_GAP for column in columns) + legend_width
        header = max(
            _text_width(self.title, LARGE) * 1.15, _text_width(self.subtitle, NORMAL), _text_width(KEY, NORMAL)
        )
        height = max([legend_height, *(self._column_height(column) for column in columns)])
        return 2 * MARGIN + max(width, header), 2 * MARGIN + HEADER + height

    def _columns(self, sections: list[RowSection]) -> list[list[RowSection]]:
        """The columns whose page comes nearest to ASPECT: a section is broken only where it fills one alone."""
        if not sections:
            return []
        total = self._column_height(sections)
        layouts = [self._fill(sections, total / count) for count in range(1, COLUMNS + 1)]

        def miss(columns: list[list[RowSection]]) -> float:
            width, height = self._page(columns)
            return abs(math.log(width / height / ASPECT))

        return min(layouts, key=miss)

    def _fill(self, sections: Sequence[RowSection], limit: float) -> list[list[RowSection]]:
        """Fill column after column up to the limit, or to the tallest row if that is higher."""
        columns: list[list[RowSection]] = [[]]
        room = limit
        for section in sections:
            for piece in self._broken(section, limit):
                height = self._section_height(piece)
                if columns[-1] and height > room:
                    columns.append([])
                    room = limit
                columns[-1].append(piece)
                room -= height
        return columns

    def _broken(self, section: RowSection, limit: float) -> list[RowSection]:
        """The section in pieces of equal numbers of rows that fit the limit, if they can."""
        pieces = math.ceil(self._section_height(section) / limit)
        step = math.ceil(len(section.rows) / pieces)
        return [
            RowSection(section.heading if k == 0 else "", section.rows[k : k + step])
            for k in range(0, len(section.rows), step)
        ]

    # Drawing

    def _draw_column(self, axes: Axes, column: Column, x: float, y: float) -> None:
        labels = x + self._label_width(column)
        for section in column:
            if section.heading:
                axes.text(x, y + 0.05, section.heading, fontsize=NORMAL, color=INK, weight="bold", va="center")
                y += HEADING
            for row in section.rows:
                self._draw_row(axes, row, labels, y)
                y += self._row_height(row) + ROW_GAP
            y += SECTION_GAP

    def _draw_row(self, axes: Axes, row: ModuleRow, x: float, y: float) -> None:
        height = self._row_height(row)
        middle = y + height / 2
        axes.text(x - 2 * TENSOR_GAP, middle, row.label, fontsize=NORMAL, color=INK, ha="right", va="center_baseline")
        for box in row.boxes:
            # All stand on one line: an edge above lifts the matrix, not its neighbours.
            size = self._box_size(box)
            self._draw_box(box, x, y + height - size[1])
            x += size[0] + TENSOR_GAP
        axes.text(x, middle, row.shape, fontsize=SMALL, color=FAINT, va="center_baseline")

    def _draw_box(self, box: TensorBox, x: float, y: float) -> None:
        across = LANE * _lanes(box.row)
        for axis in box.columns:
            for piece in _segments(axis, self.sym.sets, 0.0, self._length(axis.size), 0.0, LANE * _lanes(axis)):
                self._rectangle(
                    self._colour(piece.group), x + across + piece.start, y + piece.offset, piece.length, piece.depth
                )
            y += LANE * _lanes(axis)
        height = self._length(box.row.size)
        if box.columns:
            width = max(self._length(axis.size) for axis in box.columns)
            self._rectangle(BODY, x + across, y, width, height)
        for piece in _segments(box.row, self.sym.sets, 0.0, height, 0.0, across):
            self._rectangle(self._colour(piece.group), x + piece.offset, y + piece.start, piece.depth, piece.length)

    def _colour(self, group: str | None) -> str:
        return FIXED if group is None else self.colours[group]

    def _rectangle(self, colour: str, x: float, y: float, width: float, height: float) -> None:
        from matplotlib.patches import Rectangle

        self.rectangles.setdefault(colour, []).append(Rectangle((x, y), width, height))

    # Legend

    def _legend_size(self) -> tuple[float, float]:
        top = self.families[:LEGEND]
        widths = [max(_text_width(family.label, NORMAL), _text_width(_sizes(family), SMALL)) for family in top]
        rows = len(top) + (len(self.families) > LEGEND)
        return SWATCH + 2 * TENSOR_GAP + max(widths, default=0.0), LEGEND_ROW * rows

    def _draw_legend(self, axes: Axes, x: float, y: float) -> None:
        text = x + SWATCH + 2 * TENSOR_GAP
        for family in self.families[:LEGEND]:
            colours = list(family.colours.values())
            swatches = dict.fromkeys(colours[round(k * (len(colours) - 1) / (SWATCHES - 1))] for k in range(SWATCHES))
            width = SWATCH / len(swatches)
            for k, colour in enumerate(swatches):
                self._rectangle(colour, x + k * width, y, width, 0.18)
            axes.text(text, y + 0.05, family.label, fontsize=NORMAL, color=INK, va="center")
            axes.text(text, y + 0.16, _sizes(family), fontsize=SMALL, color=FAINT, va="center")
            y += LEGEND_ROW
        if len(self.families) > LEGEND:
            rest = sum(len(family.groups) for family in self.families[LEGEND:])
            axes.text(text, y + 0.05, f"and {rest} more groups", fontsize=NORMAL, color=FAINT, va="center")


def _sections(sym: Symmetry) -> list[RowSection]:
    """The modules of a state in order; tensors of one entry are left out, as they have nothing to show."""
    tensors: dict[str, list[str]] = {}
    for tensor, axes in sym.axes.items():
        if any(axis.size > 1 for axis in axes):
            tensors.setdefault(tensor.rpartition(".")[0] or tensor, []).append(tensor)
    sections: list[RowSection] = []
    for block, modules in itertools.groupby(tensors, key=owner):
        rows = []
        for module in modules:
            first, *_ = members = tensors[module]
            shape = "x".join(str(axis.size) for axis in sym.axes[first])
            boxes = tuple(_box(sym.axes[tensor], sym.sets) for tensor in members)
            rows.append(ModuleRow(module.removeprefix(block).lstrip("."), shape, boxes))
        sections.append(RowSection(block, tuple(rows)))
    return sections


def _box(axes: Sequence[Axis], sets: Mapping[str, IndexSet]) -> TensorBox:
    row, *others = [axis for axis in axes if axis.size > 1]
    movable = [axis for axis in others if _moves(axis, sets)]
    return TensorBox(row, tuple(movable or others[:1]))


def _moves(axis: Axis, sets: Mapping[str, IndexSet]) -> bool:
    return any(sets[name].movable for name in names(axis))


def _lanes(axis: Axis) -> int:
    """How many lanes side by side an edge needs."""
    if isinstance(axis, Units | Fixed):
        return 1
    inner = [_lanes(part) for part in axis.parts]
    return sum(inner) if isinstance(axis, Product) else max(inner)


def _segments(
    axis: Axis, sets: Mapping[str, IndexSet], start: float, length: float, offset: float, depth: float
) -> Iterator[EdgeSegment]:
    """The pieces of an edge that lies at `start`, `offset` and is `length` long and `depth` wide."""
    moves = _moves(axis, sets)
    if isinstance(axis, Units | Fixed) or not moves:
        yield EdgeSegment(start, length, offset, depth, axis.name if isinstance(axis, Units) and moves else None)
    elif isinstance(axis, Product):
        outer = 1
        for part in axis.parts:
            share = depth * _lanes(part) / _lanes(axis)
            alike = isinstance(part, Units) and not sets[part.name].over
            copies = 1 if alike or not _moves(part, sets) else min(outer, COPIES, max(1, int(length / THINNEST)))
            for at, piece in _pieces(start, length, [1.0] * copies):
                yield from _segments(part, sets, at, piece, offset, share)
            offset += share
            outer *= part.size
    else:
        rounds = min(axis.parts[0].size, COPIES) if isinstance(axis, Interleave) else 1
        parts = list(axis.parts) * rounds
        pieces = _pieces(start, length, [part.size for part in parts])
        for part, (at, piece) in zip(parts, pieces, strict=True):
            yield from _segments(part, sets, at, piece, offset, depth)


def _pieces(start: float, length: float, weights: Sequence[float]) -> list[tuple[float, float]]:
    """Cut a length in proportion to the weights, with gaps between."""
    gap = min(SPLIT, 0.25 * length / len(weights)) if len(weights) > 1 else 0.0
    free = length - gap * (len(weights) - 1)
    pieces: list[tuple[float, float]] = []
    for weight in weights:
        piece = free * weight / sum(weights)
        pieces.append((start, piece))
        start += piece + gap
    return pieces


def _sizes(family: Family) -> str:
    """`4 groups of 16 units in each of 4`."""
    count = len(family.groups)
    sizes = span(group.size for group in family.groups)
    text = f"{sizes} units" if count == 1 else f"{count} groups of {sizes} units"
    copies = span(group.copies for group in family.groups)
    return text if copies == "1" else f"{text} in each of {copies}"


@functools.cache
def _text_width(text: str, size: float) -> float:
    """In inches."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    return float(TextPath((0, 0), text, prop=FontProperties(size=size)).get_extents().width) / 72 if text else 0.0
