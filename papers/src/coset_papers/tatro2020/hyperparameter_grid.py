"""Curves learned with other rates and batch sizes: tatro2020 Table 3."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from matplotlib.figure import Figure

from coset_papers.catalogue import exhibit
from coset_papers.images import IMAGE_SETS
from coset_papers.outcome import Outcome, without_repeated_notes
from coset_papers.plotting import legend, panels, style
from coset_papers.settings import Settings
from coset_papers.tatro2020.criteria import claim, mean
from coset_papers.tatro2020.curve_kinds import ALIGNED, KINDS, UNALIGNED
from coset_papers.tatro2020.curve_losses import along, averages
from coset_papers.tatro2020.networks import SIZES, absent, shorter, single
from coset_papers.tatro2020.plotting import COLOURS
from coset_papers.tatro2020.published import GRID, GRID_BATCHES

IMAGES = "cifar100"
BOTH = (UNALIGNED, ALIGNED)
LINES: tuple[tuple[str, Any], ...] = (("o", "solid"), ("s", (0, (4, 2))), ("^", (0, (1, 1.5))))  # by rate


def table3(settings: Settings) -> Outcome:
    """Table 3: average test accuracy along TinyTen curves by rate and batch size."""
    scale, sizes = settings.scale, SIZES[settings.scale]
    base = single(scale, IMAGES)
    cells: dict[str, list[dict[str, Any]]] = {kind: [] for kind in BOTH}
    for kind in BOTH:
        for rate in sizes.grid_rates:
            for batch in sizes.grid_batches:
                curves = replace(base.plan.curves, rate=rate, batch_size=batch, epochs=sizes.grid_epochs)
                rows = along(replace(base, plan=replace(base.plan, curves=curves)), settings, sizes.measure, kind)
                cells[kind].append({"rate": rate, "batch": batch, "average": mean(averages(rows))})
    plain, best = ([cell["average"] for cell in cells[kind]] for kind in BOTH)
    note = (
        f"One pair of networks and {sizes.grid_epochs} epochs for each curve: no word on significance. "
        f"{shorter(base)} {absent(base.data, IMAGES)}"
    ).strip()
    gains = [x - y for rate in GRID[ALIGNED] for x, y in zip(GRID[ALIGNED][rate], GRID[UNALIGNED][rate], strict=True)]
    lowest, highest = min(map(min, GRID[ALIGNED].values())), max(map(max, GRID[UNALIGNED].values()))
    claims = (
        claim(
            scale,
            "at each rate and batch size the aligned curve is more accurate",
            f"by {_span(gains)} points",
            f"by {_span([100 * (x - y) for x, y in zip(best, plain, strict=True)])} points",
            all(x > y for x, y in zip(best, plain, strict=True)),
            note,
        ),
        claim(
            scale,
            "the accuracy of any aligned curve exceeds that of all unaligned curves",
            f"aligned {lowest} or more, unaligned {highest} or less",
            f"aligned {100 * min(best):.1f} or more, unaligned {100 * max(plain):.1f} or less",
            min(best) > max(plain),
            note,
        ),
    )
    data = {
        "title": base.title,
        "study": base.key(),
        "measure": asdict(sizes.measure),
        "epochs": sizes.grid_epochs,
        "cells": cells,
        "published": [
            {"kind": kind, "rate": rate, "batch": batch, "average": value / 100}
            for kind, rates in GRID.items()
            for rate, values in rates.items()
            for batch, value in zip(GRID_BATCHES, values, strict=True)
        ],
        "published_title": f"TinyTen, {IMAGE_SETS[IMAGES].title}, published",
    }
    return Outcome(data, without_repeated_notes(claims))


def draw_table3(data: Any) -> Figure:
    """Ours beside the published ones."""
    figure, (row,) = panels(1, 2, "Average test accuracy along curves, by rate and batch size")
    published = {kind: [cell for cell in data["published"] if cell["kind"] == kind] for kind in BOTH}
    for axes, cells, title in zip(
        row, (data["cells"], published), (data["title"], data["published_title"]), strict=True
    ):
        batches = sorted({cell["batch"] for cell in cells[UNALIGNED]})
        for kind in BOTH:
            rates = sorted({cell["rate"] for cell in cells[kind]})
            for rate, (marker, dashes) in zip(rates, LINES, strict=False):
                line = [cell for cell in cells[kind] if cell["rate"] == rate]
                axes.plot(
                    [batches.index(cell["batch"]) for cell in line],
                    [100 * cell["average"] for cell in line],
                    marker,
                    linestyle=dashes,
                    markersize=4,
                    color=COLOURS[kind],
                    label=f"{KINDS[kind].title}, rate {rate:g}",
                )
        axes.set_xticks(range(len(batches)), [str(batch) for batch in batches])
        style(axes, "batch size", "accuracy (%)", title)
    legend(figure, row[1], 3)
    return figure


def _span(values: list[float]) -> str:
    return f"{min(values):.1f} to {max(values):.1f}"


exhibit("tatro2020/table3", "accuracy along curves, by rate and batch size", table3, draw_table3)
