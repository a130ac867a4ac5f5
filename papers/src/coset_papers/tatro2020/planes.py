"""Planes through networks: where learning a curve begins (tatro2020 Figures 3 and 5), and where it ends (Figure 7)."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from matplotlib.figure import Figure

from coset import Curve, plane
from coset_papers.catalogue import exhibit
from coset_papers.examples import some
from coset_papers.outcome import Claim, Outcome, without_repeated_notes
from coset_papers.plotting import PANEL, legend, panels, style
from coset_papers.settings import Settings
from coset_papers.tatro2020.criteria import NOTICEABLE, claim, mean, percent
from coset_papers.tatro2020.curve_kinds import ALIGNED, KINDS, UNALIGNED
from coset_papers.tatro2020.curve_losses import CurveMeasurement, along, averages, dips
from coset_papers.tatro2020.networks import RESNET, SIZES, absent, shorter, single
from coset_papers.tatro2020.plotting import contours, line, losses_of, traces
from coset_papers.tatro2020.study import CurveStudy
from coset_papers.tatro2020.training_loss import SOONER, sooner

BOTH = (UNALIGNED, ALIGNED)
LABELS = ("θ1", "θ2", "Pθ2")
MARGIN = 0.2


def fig3(settings: Settings) -> Outcome:
    """Figure 3: the plane of both initializations, training loss, and test loss and accuracy along the curves."""
    scale, images = settings.scale, "cifar100"
    one = single(scale, images)
    measure = SIZES[scale].measure
    curves = {kind: along(one, settings, measure, kind) for kind in BOTH}
    lines = {kind: along(one, settings, measure, kind, straight=True) for kind in BOTH}
    traces_of = {kind: [one.trace(settings, kind, 0)] for kind in BOTH}
    data = _described(one, measure) | {
        "plane": _initial_plane(settings, one),
        "curves": curves,
        "lines": lines,
        "traces": traces_of,
    }
    note = _note(one, images)
    accuracy = {kind: curves[kind][0]["accuracy"] for kind in BOTH}
    inner = list(zip(accuracy[ALIGNED], accuracy[UNALIGNED], strict=True))[1:-1]
    wins = sum(x >= y for x, y in inner)
    drop = {kind: mean(dips(curves[kind])) for kind in BOTH}
    claims = (
        _better_start(scale, lines, note),
        sooner(scale, one, traces_of, "100 of 250 epochs fewer", SOONER),
        claim(
            scale,
            "the accuracy at each point of the aligned curve usually exceeds that of the unaligned curve",
            "usually (a plot)",
            f"at {wins} of {len(inner)} inner points",
            wins > len(inner) / 2,
            "Usually: at more than half of them.",
        ),
        claim(
            scale,
            "the unaligned curve has an accuracy barrier, and the aligned curve no such drop",
            "a prominent one (a plot)",
            f"below the ends by {100 * drop[UNALIGNED]:.1f} and {100 * drop[ALIGNED]:.1f} points",
            drop[UNALIGNED] > max(NOTICEABLE, 2 * drop[ALIGNED]),
            f"A barrier: more than {100 * NOTICEABLE:g} point and twice the drop of the aligned curve.",
        ),
    )
    return Outcome(data, without_repeated_notes(claims))


def fig5(settings: Settings) -> Outcome:
    """Figure 5: loss and accuracy on the plane of both initializations, for another network where there is one."""
    scale = settings.scale
    one = single(scale, "cifar10", RESNET if RESNET in SIZES[scale].plans else None)
    measure = SIZES[scale].measure
    lines = {kind: along(one, settings, measure, kind, straight=True) for kind in BOTH}
    data = _described(one, measure) | {"planes": [_initial_plane(settings, one)], "lines": lines}
    return Outcome(data, (_better_start(scale, lines, _note(one, "cifar10")),))


def fig7(settings: Settings) -> Outcome:
    """Figure 7: loss and accuracy on the planes of the learned curves."""
    scale, images = settings.scale, "cifar100"
    one = single(scale, images)
    measure = SIZES[scale].measure
    data = _described(one, measure) | {"planes": [_curve_plane(settings, one, kind) for kind in BOTH]}
    spread = {}
    for kind in BOTH:
        (row,) = along(one, settings, measure, kind)
        spread[kind] = max(row["accuracy"]) - min(row["accuracy"])
    verdict = claim(
        scale,
        "with alignment a planar curve is learned along which accuracy is mostly constant",
        None,
        f"greatest less least accuracy: aligned {percent([spread[ALIGNED]])}, unaligned {percent([spread[UNALIGNED]])}",
        spread[ALIGNED] < spread[UNALIGNED] / 2,
        f"Mostly constant: less than half the range of the unaligned curve. {_note(one, images)}",
    )
    return Outcome(data, (verdict,))


def draw_fig3(data: Any) -> Figure:
    """The plane and the training loss, and beside them loss and accuracy along the curves."""
    figure, ((plane, loss), (trace, accuracy)) = panels(2, 2, f"Curves between two networks: {data['title']}", 3.1)
    contours(figure, plane, data["plane"], "accuracy", "test accuracy", losses_of([data["plane"]]))
    traces(trace, data["traces"])
    style(trace, "epoch", "training loss (nats)")
    for axes, key, unit in ((loss, "loss", "test loss (nats)"), (accuracy, "accuracy", "test accuracy (%)")):
        for kind, rows in data["curves"].items():
            line(axes, rows, key, kind, f"{KINDS[kind].title} curve")
        style(axes, "t", unit)
    legend(figure, loss, 2)
    return figure


def draw_planes(data: Any) -> Figure:
    """A row for each plane, with loss and accuracy."""
    planes = data["planes"]
    steepest = max((surface["y"][-1] - surface["y"][0]) / (surface["x"][-1] - surface["x"][0]) for surface in planes)
    height = 0.75 * (1 + PANEL * min(steepest, 1))  # units are the same both ways, and a bar stands beside
    figure, grid = panels(len(planes), 2, f"Test loss and accuracy on planes: {data['title']}", height)
    scale = losses_of(planes)
    for row, surface in zip(grid, planes, strict=True):
        for axes, key in zip(row, ("loss", "accuracy"), strict=True):
            contours(figure, axes, surface, key, f"{surface['title']}test {key}", scale)
    return figure


def _initial_plane(settings: Settings, one: CurveStudy) -> dict[str, Any]:
    """Through both networks and the image of the second."""

    def compute() -> dict[str, Any]:
        plain, aligned = (one.curve(settings, kind, 0) for kind in BOTH)
        corners = plain.points[0], plain.points[-1], aligned.points[-1]
        return _plane(settings, one, corners, None)

    surface: dict[str, Any] = settings.keep(
        "tatro2020-plane", compute, **one.key(), measure=asdict(SIZES[settings.scale].plane)
    )
    return surface | {"title": "", "labels": list(LABELS)}


def _curve_plane(settings: Settings, one: CurveStudy, kind: str) -> dict[str, Any]:
    """Through the ends of a curve and its control point, which is the plane that a quadratic curve lies in."""

    def compute() -> dict[str, Any]:
        curve = one.curve(settings, kind, 0)
        first, control, last = curve.points
        return _plane(settings, one, (first, last, control), curve)

    sizes = asdict(SIZES[settings.scale].plane)
    surface: dict[str, Any] = settings.keep("tatro2020-curve-plane", compute, **one.key(), kind=kind, measure=sizes)
    last = LABELS[2] if kind == ALIGNED else LABELS[1]
    return surface | {"title": f"{KINDS[kind].title} curve, ", "labels": [LABELS[0], last, "control point"]}


def _plane(settings: Settings, one: CurveStudy, corners: tuple[Any, Any, Any], curve: Curve | None) -> dict[str, Any]:
    """The grid, and the greatest loss on the lines from the first corner to the others."""
    measure, images = SIZES[settings.scale].plane, one.images(settings)
    settings.say(f"{one.title}: a plane of {measure.points} x {measure.points} places")
    surface = plane(
        *corners,
        one.build().to(settings.device),
        some(images.test, measure.examples),
        measure.points,
        MARGIN,
        path=curve,
        repair=some(images.train, measure.repair),
        batch_size=measure.batch_size,
    )
    record = json.loads(surface.to_json())
    inside = [
        value
        for y, row in zip(surface.y, record["loss"], strict=True)
        for x, value in zip(surface.x, row, strict=True)
        if value is not None and _near(surface.points, x, y)
    ]
    return {key: record[key] for key in ("x", "y", "points", "loss", "accuracy", "track")} | {"highest": max(inside)}


def _near(points: tuple[tuple[float, float], ...], x: float, y: float) -> bool:
    """Whether a place lies in the box of the three points."""
    xs, ys = zip(*points, strict=True)
    return bool(min(xs) <= x <= max(xs) and min(ys) <= y <= max(ys))


def _better_start(scale: str, lines: dict[str, Any], note: str) -> Claim:
    """On the straight lines where learning begins."""
    means = {kind: averages(lines[kind]) for kind in BOTH}
    return claim(
        scale,
        "the aligned initialization is notably better than the default one",
        "better (a plot)",
        f"average accuracy on the line: aligned {percent(means[ALIGNED])}, unaligned {percent(means[UNALIGNED])}",
        mean(means[ALIGNED]) > mean(means[UNALIGNED]) + NOTICEABLE,
        f"Notably: by more than {100 * NOTICEABLE:g} point. {note}",
    )


def _described(one: CurveStudy, measure: CurveMeasurement) -> dict[str, Any]:
    return {"title": one.title, "study": one.key(), "measure": asdict(measure)}


def _note(one: CurveStudy, images: str) -> str:
    return f"One pair of networks. {shorter(one)} {absent(one.data, images)}".strip()


exhibit("tatro2020/fig3", "where curves begin, how they are learned, and accuracy along them", fig3, draw_fig3)
exhibit("tatro2020/fig5", "loss and accuracy on the plane where curves begin", fig5, draw_planes)
exhibit("tatro2020/fig7", "loss and accuracy on the planes of learned curves", fig7, draw_planes)
