"""How alike the units of networks are, layer by layer: tatro2020 Figure 1."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from coset import Activations, Dirac, Solution, align, geodesic, signature, symmetry
from coset.alignment.repair import recompute_norms
from coset.plot.palette import HUES
from coset_papers.catalogue import exhibit
from coset_papers.examples import some
from coset_papers.outcome import Claim, Outcome, without_repeated_notes
from coset_papers.plotting import FAINT, panels, style
from coset_papers.settings import Settings
from coset_papers.tatro2020.criteria import claim, mean
from coset_papers.tatro2020.curve_kinds import ALIGNED, KINDS, UNALIGNED
from coset_papers.tatro2020.networks import SIZES, shorter, study
from coset_papers.tatro2020.plotting import DASHED
from coset_papers.tatro2020.study import CurveStudy

BOTH = (UNALIGNED, ALIGNED)
BEFORE, AFTER, LINE = "before", "after", "line"
MOSTLY, SAME = 0.8, 0.05  # of a signature that alignment could reach; between signatures that are almost identical
Signatures = dict[str, list[list[float]]]


def fig1(settings: Settings) -> Outcome:
    """Figure 1: between the ends, and between the first end and the middle of the curve, before and after alignment."""
    one = study(settings.scale, "cifar10")
    used = SIZES[settings.scale].measure.repair
    data = settings.keep(
        "tatro2020-signatures",
        lambda: _signatures(settings, one, used),
        **one.key(),
        pairs=one.plan.pairs,
        used=used,
    )
    described = {"title": one.title, "study": one.key(), "examples": used}
    note = f"Means over pairs. {shorter(one)}"
    return Outcome(described | data, without_repeated_notes(signature_claims(settings.scale, data, note)))


def signature_claims(scale: str, data: Any, note: str) -> list[Claim]:
    """What the caption and Section 4.1 say."""
    ends = {key: _by_layer(data["ends"][key]) for key in (BEFORE, AFTER)}
    middles = {kind: {key: _by_layer(rows) for key, rows in data[kind].items()} for kind in BOTH}
    rises = [after - before for before, after in zip(ends[BEFORE], ends[AFTER], strict=True)]
    share = mean(middles[UNALIGNED][BEFORE]) / mean(middles[UNALIGNED][AFTER])
    apart = max(abs(x - y) for x, y in zip(middles[ALIGNED][BEFORE], middles[ALIGNED][AFTER], strict=True))
    plain, aligned = (mean(middles[kind][BEFORE]) for kind in BOTH)
    return [
        claim(
            scale,
            "alignment improves the correspondence of the ends at each layer",
            "at each layer (a plot)",
            f"{mean(ends[BEFORE]):.2f} to {mean(ends[AFTER]):.2f} on average; the least rise is {min(rises):.2f}",
            min(rises) > 0,
            note,
        ),
        claim(
            scale,
            "the middle of the unaligned curve is mostly aligned to the end",
            "mostly (a plot)",
            f"{plain:.2f}, and {mean(middles[UNALIGNED][AFTER]):.2f} after aligning it",
            share >= MOSTLY,
            f"Mostly: {MOSTLY:g} of what alignment reaches, over layers.",
        ),
        claim(
            scale,
            "aligning the middle of the aligned curve changes almost nothing",
            "almost identical (a plot)",
            f"by {apart:.3f} at most",
            apart <= SAME,
            f"Almost: by {SAME:g} at most, at each layer.",
        ),
        claim(
            scale,
            "alignment promotes greater similarity of the middle to the end",
            "higher (a plot)",
            f"unaligned {plain:.2f}, aligned {aligned:.2f}",
            aligned > plain,
            note,
        ),
    ]


def draw_fig1(data: Any) -> Figure:
    """The ends, and the middles of both kinds of curves."""
    figure, (row,) = panels(1, 3, f"Mean correlation of corresponding units: {data['title']}", 3.3)
    titles = ("between the ends", *(f"end and middle of the {KINDS[kind].title} curve" for kind in BOTH))
    parts = data["ends"], *(data[kind] for kind in BOTH)
    lowest = min(value for part in parts for rows in part.values() for each in rows for value in each)
    for axes, part, title in zip(row, parts, titles, strict=True):
        words = ("before alignment", "after alignment", "middle of the line")
        for key, colour, label in zip((BEFORE, AFTER, LINE), (HUES[0], HUES[1], FAINT), words, strict=True):
            if key in part:
                # Wide, so that it is seen under one that is equal.
                width = 3.2 if key == BEFORE else 1.6
                _signature(axes, part[key], colour, label, DASHED if key == LINE else "solid", width)
        style(axes, "layer", "correlation", title)
        axes.set_xticks(range(1, len(data["layers"]) + 1))
        axes.set_ylim(lowest - 0.03, 1)
    handles, labels = row[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def _signature(axes: Axes, rows: list[list[float]], colour: str, label: str, dashes: Any, width: float) -> None:
    """The mean over pairs with a band of one standard deviation."""
    values = np.array(rows)
    x, centre = np.arange(1, values.shape[1] + 1), values.mean(0)
    axes.plot(x, centre, "o", color=colour, markersize=2 * width, linestyle=dashes, linewidth=width, label=label)
    if len(values) > 1:
        spread = values.std(0, ddof=1)
        axes.fill_between(x, centre - spread, centre + spread, color=colour, alpha=0.2, linewidth=0)


def _signatures(settings: Settings, one: CurveStudy, used: int) -> dict[str, Any]:
    """By pair and layer; the statistics of norms are recomputed in every network that was not trained."""
    train, model = some(one.images(settings).train, used), one.build().to(settings.device)
    sym = symmetry(model, (train.inputs[:2],))

    def between(a: Solution, b: Solution) -> list[float]:
        correlations = signature(a, b, sym, model, train)
        layers.extend(name for name in correlations if name not in layers)
        return list(correlations.values())

    def repaired(q: Solution) -> Dirac:
        return Dirac(recompute_norms(model, q.mean, train))

    layers: list[str] = []
    ends: Signatures = {BEFORE: [], AFTER: []}
    middles: dict[str, Signatures] = {kind: {BEFORE: [], AFTER: [], LINE: []} for kind in BOTH}
    for pair in range(one.plan.pairs):
        settings.say(f"{one.title}: correlations of pair {pair}")
        for kind, key in zip(BOTH, (BEFORE, AFTER), strict=True):
            curve = one.curve(settings, kind, pair)
            first, last = curve.points[0], curve.points[-1]
            ends[key].append(between(first, last))
            middle = repaired(curve(0.5))
            match = align(first, middle, sym, Activations(), model, train)
            aligned = sym.act(match.element.to(settings.device), middle)
            middles[kind][BEFORE].append(between(first, middle))
            middles[kind][AFTER].append(between(first, aligned))
            middles[kind][LINE].append(between(first, repaired(geodesic(first, last)(0.5))))
    return {"layers": layers, "ends": ends, **middles}


def _by_layer(rows: list[list[float]]) -> list[float]:
    return [mean(values) for values in zip(*rows, strict=True)]


exhibit("tatro2020/fig1", "correlation of units, layer by layer, before and after alignment", fig1, draw_fig1)
