"""Pictures of Tables 1 and 2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from coset_papers.drawing import FAINT, INK, panels, style
from coset_papers.tatro2020.draw import COLOURS, DASHED
from coset_papers.tatro2020.kinds import KINDS
from coset_papers.tatro2020.verdicts import deviation, mean

ASIDE = 0.18  # where the published numbers stand beside ours


def draw_table1(data: Any) -> Figure:
    """Average and minimum accuracy of each kind of curve, and the ends as a line."""
    figure, row = _panels(data, "Accuracy along curves")
    for axes, found in zip(row, data["rows"], strict=True):
        axes.axhline(100 * mean(found["ends"]), color=FAINT, linewidth=1.2, linestyle=DASHED)
        for x, (kind, values) in enumerate(found["kinds"].items()):
            for key, place, face in (("average", 0, COLOURS[kind]), ("minimum", 2, "white")):
                _dot(axes, x, [100 * value for value in values[key]], COLOURS[kind], face)
                if found["published"][kind] is not None:
                    axes.plot(x + ASIDE, found["published"][kind][place], "x", color=INK, markersize=5)
        _names(axes, found, "test accuracy (%)")
    _key(figure, data, ("average along the curve", "its minimum"), "ends, average")
    return figure


def draw_table2(data: Any) -> Figure:
    """The loss along each kind of curve, and that of the last epoch of learning."""
    figure, row = _panels(data, "Training loss of curves")
    for axes, found in zip(row, data["rows"], strict=True):
        for x, (kind, values) in enumerate(found["kinds"].items()):
            for key, face in (("along", COLOURS[kind]), ("last", "white")):
                _dot(axes, x, values[key], COLOURS[kind], face)
            if found["published"][kind] is not None:
                axes.plot(x + ASIDE, found["published"][kind][0], "x", color=INK, markersize=5)
        _names(axes, found, "training loss (nats)")
    _key(figure, data, ("mean along the curve", "last epoch of learning"))
    return figure


def _panels(data: Any, title: str) -> tuple[Figure, Sequence[Axes]]:
    figure, (row,) = panels(1, len(data["rows"]), title, 3.4)
    return figure, row


def _dot(axes: Axes, x: float, values: list[float], colour: str, face: str) -> None:
    """The mean, with the standard deviation over pairs if there are several."""
    error = deviation(values)
    axes.errorbar(
        x, mean(values), error, fmt="o", color=colour, markerfacecolor=face, markersize=6, capsize=3, linewidth=1.2
    )


def _names(axes: Axes, found: Any, unit: str) -> None:
    titles = [KINDS[kind].title.replace(" ", "\n") for kind in found["kinds"]]
    axes.set_xticks(range(len(titles)), titles)
    axes.set_xlim(-0.5, len(titles) - 0.5)
    style(axes, "", unit, found["title"])


def _key(figure: Figure, data: Any, words: tuple[str, str], ends: str = "") -> None:
    plain: dict[str, Any] = {"color": INK, "linestyle": "none"}
    handles = [
        Line2D([], [], marker="o", label=words[0], **plain),
        Line2D([], [], marker="o", markerfacecolor="white", label=words[1], **plain),
    ]
    if any(given is not None for found in data["rows"] for given in found["published"].values()):
        handles.append(Line2D([], [], marker="x", label="published", **plain))
    if ends:
        handles.append(Line2D([], [], color=FAINT, linestyle=DASHED, label=ends))
    columns = 4 if len(data["rows"]) > 1 else 1
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)
