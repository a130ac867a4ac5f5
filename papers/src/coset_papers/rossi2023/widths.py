"""Barriers by width, and those of VI beside those of MAP: rossi2023 Figures 5 and 9."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from matplotlib.figure import Figure

from coset.plot.palette import HUES
from coset_papers.catalogue import exhibit
from coset_papers.outcome import Claim, Outcome, without_repeated_notes
from coset_papers.plotting import legend, panels, style
from coset_papers.rossi2023.barriers import (
    ALIGNED as BEST,
    NAIVE as NOT_MOVED,
    PathMeasurement,
    barriers,
    heights,
    mean,
)
from coset_papers.rossi2023.criteria import ERRORS, TOO_SMALL, differ, falls, with_error
from coset_papers.rossi2023.networks import SIZES, measure_of, mlp, resnet
from coset_papers.rossi2023.plotting import LINES, barriers_by, settings_axis, trend
from coset_papers.rossi2023.study import PosteriorStudy
from coset_papers.settings import Settings

MLPS = {"smoke": (8, 32), "short": (32, 64, 128), "paper": (32, 64, 128, 256, 512, 1024)}
RESNETS: dict[str, tuple[float, ...]] = {"smoke": (0.125, 0.25), "short": (0.25, 0.5), "paper": (0.5, 1, 2, 4)}
REPLICAS = {"smoke": 2, "short": 3, "paper": 3}
POINTS = 9  # enough for the height of a barrier
BY_PAIRS = f"A difference is one of {ERRORS:g} standard errors over pairs of networks; the paper gives plots."
ONE_PAIR = "One pair of networks: no error, hence no verdict."


def fig5(settings: Settings) -> Outcome:
    """Figure 5: barriers of MLPs and ResNets by width."""
    scale = settings.scale
    wide = [mlp(scale, "mnist", n, REPLICAS[scale], epochs=SIZES[scale].mlp_sweep) for n in MLPS[scale]]
    series = {
        f"MLP, {_images(wide)}": _series(settings, wide, MLPS[scale], (NOT_MOVED, BEST)),
    }
    deep = resnets(scale)
    series[f"ResNet20, {_images(deep)}"] = _series(settings, deep, RESNETS[scale], (NOT_MOVED, BEST))
    dense, residual = series.values()
    claims = (
        _falls("wider MLPs have lower barriers without alignment", dense, NOT_MOVED, True, scale),
        _falls("wider MLPs have lower barriers after alignment", dense, BEST, True, scale),
        _falls("wider ResNets have lower barriers after alignment", residual, BEST, True, scale),
        _falls("but not without it", residual, NOT_MOVED, False, scale),
    )
    return Outcome({"series": series}, without_repeated_notes(claims))


def fig9(settings: Settings) -> Outcome:
    """Figure 9: VI and MAP by width, both aligned."""
    scale, widths = settings.scale, RESNETS[settings.scale]
    studies = resnets(scale)
    series = {
        "VI": _series(settings, studies, widths, (NOT_MOVED, BEST)),
        "MAP": _series(settings, [study.mode() for study in studies], widths, (NOT_MOVED, BEST)),
    }
    vi, mode = series["VI"], series["MAP"]
    return Outcome(
        {"series": series, "images": _images(studies)},
        without_repeated_notes(
            [
                _compared("narrow networks: VI and MAP have the same barrier after alignment", vi, mode, 0, scale),
                _compared("wide networks: MAP has a lower barrier than VI after alignment", vi, mode, -1, scale),
            ]
        ),
    )


def draw_fig5(data: Any) -> Figure:
    """A panel for each kind of network."""
    figure, (row,) = panels(1, len(data["series"]), "Barriers by width")
    for axes, (name, rows) in zip(row, data["series"].items(), strict=True):
        barriers_by(axes, rows["width"], rows)
        style(axes, "width" if name.startswith("MLP") else "width, times 16 channels", "barrier (nats)", name)
    legend(figure, row[0], 2 * len(row))
    return figure


def draw_fig9(data: Any) -> Figure:
    """Test and training barriers."""
    figure, (row,) = panels(1, 2, f"Barriers of VI and of MAP: ResNet20, {data['images']}")
    for axes, split in zip(row, ("test", "train"), strict=True):
        for (name, rows), colour in zip(data["series"].items(), HUES, strict=False):
            for cost, dashes in ((BEST, "solid"), (NOT_MOVED, LINES["train"])):
                words = "aligned" if cost == BEST else "naive"
                values = [heights(one, split) for one in rows[cost]]
                trend(axes, rows["width"], values, colour, f"{name}, {words}", dashes)
        settings_axis(axes, data["series"]["VI"]["width"])
        style(axes, "width, times 16 channels", f"{split} barrier (nats)")
        axes.set_ylim(bottom=0)
    legend(figure, row[0], 4)
    return figure


def resnets(scale: str) -> list[PosteriorStudy]:
    """ResNet20 at each width."""
    epochs = SIZES[scale].resnet_sweep
    return [resnet(scale, "cifar10", n, replicas=REPLICAS[scale], epochs=epochs) for n in RESNETS[scale]]


def _series(
    settings: Settings, studies: list[PosteriorStudy], widths: tuple[float, ...], costs: tuple[str, ...]
) -> dict[str, Any]:
    """For each cost the barriers of all pairs at each width."""
    rows: dict[str, Any] = {"width": list(widths), "studies": [study.key() for study in studies]}
    measure = quick(settings.scale, studies[0])
    rows["measure"] = asdict(measure)
    for cost in costs:
        rows[cost] = [barriers(study, settings, measure, cost) for study in studies]
    return rows


def quick(scale: str, study: PosteriorStudy) -> PathMeasurement:
    """At fewer points, where only the height counts."""
    usual = measure_of(scale, study)
    return replace(usual, points=min(usual.points, POINTS))


def _images(studies: list[PosteriorStudy]) -> str:
    return studies[0].title.partition(", ")[2]


def _falls(text: str, rows: dict[str, Any], cost: str, expected: bool, scale: str) -> Claim:
    """Between the narrowest and the widest."""
    first, last = rows[cost][0], rows[cost][-1]
    verdict = falls(heights(first, "test"), heights(last, "test"))
    holds = None if verdict is None or scale == "smoke" else verdict is expected
    ends = rows["width"][0], rows["width"][-1]
    words = f"test barrier {with_error(first, 'test')} at width {ends[0]:g}, {with_error(last, 'test')} at {ends[1]:g}"
    return Claim(text, None, words, holds, _note(scale, verdict))


def _compared(text: str, vi: dict[str, Any], mode: dict[str, Any], at: int, scale: str) -> Claim:
    one, other = vi[BEST][at], mode[BEST][at]
    pairs = heights(one, "test"), heights(other, "test")
    apart = differ(*pairs)
    verdict = None if apart is None else (not apart if at == 0 else apart and mean(pairs[1]) < mean(pairs[0]))
    words = f"width {vi['width'][at]:g}, test: VI {with_error(one, 'test')}, MAP {with_error(other, 'test')}"
    return Claim(text, None, words, None if scale == "smoke" else verdict, _note(scale, verdict))


def _note(scale: str, verdict: bool | None) -> str:
    return TOO_SMALL if scale == "smoke" else ONE_PAIR if verdict is None else BY_PAIRS


exhibit("rossi2023/fig5", "barriers by width", fig5, draw_fig5)
exhibit("rossi2023/fig9", "barriers of VI and of MAP by width", fig9, draw_fig9)
