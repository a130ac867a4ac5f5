"""How long does alignment take? rossi2023 Figure A14, with the textbook loop over scipy's assignments beside."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from matplotlib.figure import Figure

from coset import align
from coset.plot.palette import HUES
from coset_papers.catalogue import exhibit
from coset_papers.outcome import Claim, Outcome
from coset_papers.plotting import FAINT, legend, panels, style
from coset_papers.rossi2023.criteria import TOO_SMALL
from coset_papers.rossi2023.networks import SIZES, mlp
from coset_papers.rossi2023.plotting import settings_axis
from coset_papers.rossi2023.study import PosteriorStudy
from coset_papers.rossi2023.textbook_matching import textbook_align
from coset_papers.rossi2023.widths import MLPS, REPLICAS, RESNETS, resnets
from coset_papers.settings import Settings

MINUTE = 60.0
RUNS = 3  # of which the fastest counts, as the first one loads libraries
LOOKS = {  # series: colour and dashes
    "VI, coset": (HUES[1], "solid"),
    "MAP, coset": (HUES[0], "solid"),
    "VI, textbook with scipy": (HUES[1], (0, (4, 3))),
    "MAP, textbook with scipy": (HUES[0], (0, (4, 3))),
}


def fig_a14(settings: Settings) -> Outcome:
    """Figure A14: seconds of alignment by width, for VI and for MAP."""
    scale = settings.scale
    epochs, replicas = SIZES[scale].mlp_sweep, REPLICAS[scale]
    dense = {n: mlp(scale, "mnist", n, replicas, epochs=epochs) for n in MLPS[scale]}
    residual = dict(zip(RESNETS[scale], resnets(scale), strict=True))
    panels = {"MLP": _series(settings, dense), "ResNet20": _series(settings, residual)}
    slowest = max(max(rows["VI, coset"]) for rows in panels.values())
    words, slower = [], []
    for name, rows in panels.items():
        vi, mode, plain = (rows[key][-1] for key in ("VI, coset", "MAP, coset", "VI, textbook with scipy"))
        words.append(f"{name} x{rows['width'][-1]:g}: VI {vi:.3g} s, MAP {mode:.3g} s, VI with scipy {plain:.3g} s")
        slower.append(vi > mode)
    return Outcome(
        {"panels": panels},
        (
            Claim("alignment mostly takes less than a minute", MINUTE, slowest, slowest < MINUTE, "Of coset, by VI."),
            Claim(
                "aligning wide VI solutions takes longer than matching weights",
                None,
                "; ".join(words),
                None if scale == "smoke" else all(slower),
                f"The fastest of {RUNS} runs; assignments are solved on the CPU."
                + (f" {TOO_SMALL}" if scale == "smoke" else ""),
            ),
        ),
    )


def draw_fig_a14(data: Any) -> Figure:
    """A panel for each kind of network."""
    figure, (row,) = panels(1, len(data["panels"]), "Seconds to align two solutions")
    for axes, (name, rows) in zip(row, data["panels"].items(), strict=True):
        for key, (colour, dashes) in LOOKS.items():
            axes.plot(rows["width"], rows[key], marker=".", color=colour, linestyle=dashes, linewidth=1.6, label=key)
        axes.axhline(MINUTE, color=FAINT, linewidth=0.8)
        settings_axis(axes, rows["width"])
        axes.set_yscale("log")
        style(axes, "width" if name == "MLP" else "width, times 16 channels", "seconds", name)
    legend(figure, row[0], 2)
    return figure


def _series(settings: Settings, studies: dict[Any, PosteriorStudy]) -> dict[str, list[float]]:
    rows: dict[str, list[float]] = {"width": list(studies), **{key: [] for key in LOOKS}}
    for study in studies.values():
        for name, one in (("VI", study), ("MAP", study.mode())):
            for tool in ("coset", "textbook with scipy"):
                seconds = settings.keep("rossi2023-seconds", _timed(settings, one, tool), **one.key(), tool=tool)
                rows[f"{name}, {tool}"].append(seconds)
    return rows


def _timed(settings: Settings, study: PosteriorStudy, tool: str) -> Callable[[], float]:
    def compute() -> float:
        a, b, *_ = study.solutions(settings)
        sym = study.symmetry(settings)
        settings.say(f"{study.title}: aligning by {tool}")
        seconds = []
        for _ in range(RUNS):
            start = time.perf_counter()
            if tool == "coset":
                align(a, b, sym)
            else:
                textbook_align(a, b, sym, torch.Generator().manual_seed(settings.seed))
            seconds.append(time.perf_counter() - start)
        return min(seconds)

    return compute


exhibit("rossi2023/figA14", "seconds of alignment by width", fig_a14, draw_fig_a14)
