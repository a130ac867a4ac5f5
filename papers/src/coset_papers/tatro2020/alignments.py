"""Curves after each of four ways to align: tatro2020 Figure 2."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from matplotlib.figure import Figure

from coset_papers.catalogue import exhibit
from coset_papers.outcome import Outcome, without_repeated_notes
from coset_papers.plotting import legend, panels, style
from coset_papers.settings import Settings
from coset_papers.tatro2020.criteria import claim, mean
from coset_papers.tatro2020.curve_kinds import ALIGNED, KINDS, UNALIGNED
from coset_papers.tatro2020.curve_losses import along, averages
from coset_papers.tatro2020.networks import SIZES, present, shorter, single
from coset_papers.tatro2020.plotting import line

POST_CORRELATION = ALIGNED  # the way of the other figures
WAYS = ("pre_l2", "pre_correlation", "post_l2", POST_CORRELATION)
TITLES = {kind: KINDS[kind].title for kind in (UNALIGNED, *WAYS)} | {POST_CORRELATION: "post-activations, correlation"}


def fig2(settings: Settings) -> Outcome:
    """Figure 2: test accuracy along TinyTen curves learned after each alignment, and after none."""
    scale, rows, claims = settings.scale, [], []
    for name in present(scale):
        one, measure = single(scale, name), SIZES[scale].measure
        curves = {kind: along(one, settings, measure, kind) for kind in (UNALIGNED, *WAYS)}
        rows.append({"title": one.title, "study": one.key(), "measure": asdict(measure), "curves": curves})
        average = {kind: mean(averages(rows)) for kind, rows in curves.items()}
        note = f"Averages along one curve of each kind: no word on significance. {shorter(one)}"
        for text, better, worse in (
            ("all alignments outperform none", WAYS, (UNALIGNED,) * 4),
            ("post-activations outperform pre-activations", WAYS[2:], WAYS[:2]),
            ("correlation outperforms L2 distance", WAYS[1::2], WAYS[::2]),
        ):
            pairs = list(zip(better, worse, strict=True))
            words = [f"{TITLES[kind]} {100 * average[kind]:.1f}" for kind in dict.fromkeys((*worse, *better))]
            holds = all(average[x] > average[y] for x, y in pairs)
            claims.append(claim(scale, f"{one.title}: {text}", "a plot", ", ".join(words), holds, note))
    return Outcome({"shown": rows}, without_repeated_notes(claims))


def draw_fig2(data: Any) -> Figure:
    """A panel for each data set."""
    figure, (row,) = panels(1, len(data["shown"]), "Curves after several alignments", 3.4)
    for axes, one in zip(row, data["shown"], strict=True):
        for kind, rows in one["curves"].items():
            line(axes, rows, "accuracy", kind, TITLES[kind])
        style(axes, "t", "test accuracy (%)", one["title"])
    legend(figure, row[0], 1 if len(row) == 1 else 5)
    return figure


exhibit("tatro2020/fig2", "accuracy along curves learned after several alignments", fig2, draw_fig2)
