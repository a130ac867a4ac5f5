"""Barriers by prior variance and by temperature: rossi2023 Figures 7 and 8."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from matplotlib.figure import Figure

from coset_papers.catalogue import exhibit
from coset_papers.outcome import Claim, Outcome, without_repeated_notes
from coset_papers.plotting import legend, panels, style
from coset_papers.rossi2023.barriers import ALIGNED as BEST, NAIVE as NOT_MOVED, barriers, heights, mean
from coset_papers.rossi2023.criteria import TOO_SMALL, ZERO, falls, with_error
from coset_papers.rossi2023.networks import SIZES, mlp, resnet
from coset_papers.rossi2023.plotting import barriers_by
from coset_papers.rossi2023.study import PosteriorStudy
from coset_papers.rossi2023.widths import BY_PAIRS, ONE_PAIR, REPLICAS, quick
from coset_papers.settings import Settings

VARIANCES: dict[str, tuple[float, ...]] = {
    "smoke": (0.05, 0.5),
    "short": (0.001, 0.0025, 0.01),
    "paper": (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05),
}
RESNET_VARIANCES: dict[str, tuple[float, ...]] = {"smoke": (), "short": (0.02, 0.1), "paper": (0.005, 0.01, 0.05)}
TEMPERATURES: dict[str, tuple[float, ...]] = {
    "smoke": (0.1, 1.0),
    "short": (0.1, 1.0, 2.0),
    "paper": (0.01, 0.1, 0.5, 1.0, 2.0, 4.0),
}
RESNET_TEMPERATURES: dict[str, tuple[float, ...]] = {"smoke": (), "short": (0.1, 1.0), "paper": (0.1, 1.0, 2.0)}
WIDTHS = {"smoke": None, "short": None, "paper": 2.0}  # of the residual networks; the paper has 8 in Figure 7


def fig7(settings: Settings) -> Outcome:
    """Figure 7: barriers by the variance of the prior."""
    scale = settings.scale
    series = _all(settings, "prior_variance", VARIANCES[scale], RESNET_VARIANCES[scale])
    claims: list[Claim] = []
    for name, rows in series.items():
        ends = rows["x"][0], rows["x"][-1]
        spread = [mean(heights(one, "test")) for one in rows[BEST]]
        claims += [
            Claim(
                f"{name}: after alignment the prior variance has no measurable effect",
                None,
                f"test barrier {min(spread):.3f} to {max(spread):.3f}",
                None if scale == "smoke" else max(spread) - min(spread) <= ZERO,
                TOO_SMALL if scale == "smoke" else f"No effect: less than {ZERO} nats over all variances.",
            ),
            _trend(f"{name}: without alignment barriers fall with the variance", rows, NOT_MOVED, scale),
            _gap(name, rows, ends, scale),
        ]
    return Outcome({"series": series, "setting": "prior variance"}, without_repeated_notes(claims))


def fig8(settings: Settings) -> Outcome:
    """Figure 8: barriers by the temperature of the posterior."""
    scale = settings.scale
    series = _all(settings, "temperature", TEMPERATURES[scale], RESNET_TEMPERATURES[scale])
    claims = []
    for name, rows in series.items():
        text = f"{name}: after alignment barriers of cold posteriors are marginally closer to zero"
        claims.append(_trend(text, rows, BEST, scale, rising=True))
    return Outcome({"series": series, "setting": "temperature"}, without_repeated_notes(claims))


def draw_sweep(data: Any) -> Figure:
    """A panel for each network."""
    figure, (row,) = panels(1, len(data["series"]), f"Barriers by {data['setting']}")
    for axes, (name, rows) in zip(row, data["series"].items(), strict=True):
        barriers_by(axes, rows["x"], rows)
        style(axes, data["setting"], "barrier (nats)", name)
    legend(figure, row[0], min(4, 2 * len(row)))
    return figure


def _all(
    settings: Settings, setting: str, values: Sequence[float], residual: Sequence[float]
) -> dict[str, dict[str, Any]]:
    """The series of all networks; those that a scale makes equal are shown once."""
    scale = settings.scale
    sizes, replicas = SIZES[scale], REPLICAS[scale]
    series: dict[str, dict[str, Any]] = {}
    for images in ("mnist", "fashion-mnist"):
        changes = _changes(setting, values, sizes.mlp_sweep)
        studies = [mlp(scale, images, None, replicas, **one) for one in changes]
        if studies[0].title not in series:
            series[studies[0].title] = _series(settings, studies, values)
    if residual:
        changes = _changes(setting, residual, sizes.resnet_sweep)
        studies = [resnet(scale, "cifar10", WIDTHS[scale], **one) for one in changes]
        series[studies[0].title] = _series(settings, studies, residual)
    return series


def _changes(setting: str, values: Sequence[float], epochs: int) -> list[dict[str, Any]]:
    return [{setting: value, "epochs": epochs} for value in values]


def _series(settings: Settings, studies: list[PosteriorStudy], values: Sequence[float]) -> dict[str, Any]:
    measure = quick(settings.scale, studies[0])
    rows: dict[str, Any] = {"x": list(values), "study": studies[0].key(), "measure": asdict(measure)}
    for cost in (NOT_MOVED, BEST):
        rows[cost] = [barriers(study, settings, measure, cost) for study in studies]
    return rows


def _trend(text: str, rows: dict[str, Any], cost: str, scale: str, rising: bool = False) -> Claim:
    """From the least setting to the greatest, or the other way if `rising`."""
    first, last = rows[cost][0], rows[cost][-1]
    ends = (last, first) if rising else (first, last)
    verdict = falls(*(heights(one, "test") for one in ends))
    words = (
        f"test barrier {with_error(first, 'test')} at {rows['x'][0]:g}, {with_error(last, 'test')} at {rows['x'][-1]:g}"
    )
    note = TOO_SMALL if scale == "smoke" else ONE_PAIR if verdict is None else BY_PAIRS
    return Claim(text, None, words, None if scale == "smoke" else verdict, note)


def _gap(name: str, rows: dict[str, Any], ends: tuple[float, float], scale: str) -> Claim:
    """|train - test| of the naive barrier, at the least and the greatest variance."""
    gaps = [[abs(row["train"]["height"] - row["test"]["height"]) for row in rows[NOT_MOVED][at]] for at in (0, -1)]
    verdict = falls(gaps[1], gaps[0])
    return Claim(
        f"{name}: higher variances have bigger gaps between training and test barriers",
        None,
        f"naive: {mean(gaps[0]):.3f} at {ends[0]:g}, {mean(gaps[1]):.3f} at {ends[1]:g}",
        None if scale == "smoke" else verdict,
        TOO_SMALL if scale == "smoke" else ONE_PAIR if verdict is None else BY_PAIRS,
    )


exhibit("rossi2023/fig7", "barriers by prior variance", fig7, draw_sweep)
exhibit("rossi2023/fig8", "barriers by temperature", fig8, draw_sweep)
