"""The training loss while curves are learned: tatro2020 Figure 6."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from coset_papers.drawing import legend, panels, style
from coset_papers.outcome import Claim, Outcome, noted_once
from coset_papers.settings import Settings
from coset_papers.tatro2020.draw import traces
from coset_papers.tatro2020.images import SOURCES
from coset_papers.tatro2020.kinds import ALIGNED, UNALIGNED
from coset_papers.tatro2020.networks import SIZES, present, shorter, study
from coset_papers.tatro2020.study import Study
from coset_papers.tatro2020.verdicts import claim, mean

SOONER = "Sooner: before the last epoch. Rates fall to zero with the epochs, so losses fall until the end."


def fig6(settings: Settings) -> Outcome:
    """Figure 6: TinyTen on each data set, and the other networks on the first."""
    scale = settings.scale
    names = present(scale)
    first, *others = SIZES[scale].plans
    studies = [study(scale, name, first) for name in names] + [study(scale, names[0], other) for other in others]
    missing = "" if "tiny-imagenet" in names else f" Left out: {SOURCES['tiny-imagenet'].title}."
    shown: list[dict[str, Any]] = []
    claims: list[Claim] = []
    for one in studies:
        found = {kind: [one.trace(settings, kind, pair) for pair in range(one.plan.pairs)] for kind in one.kinds}
        shown.append({"title": one.title, "study": one.known(), "traces": found})
        note = shorter(one) if claims else f"{SOONER} {shorter(one)}{missing}"
        claims.append(sooner(scale, one, found, None, note))
    return Outcome({"shown": shown}, noted_once(claims))


def draw_fig6(data: Any) -> Figure:
    """A panel for each network and data set."""
    figure, (row,) = panels(1, len(data["shown"]), "Training loss while curves are learned")
    for axes, one in zip(row, data["shown"], strict=True):
        traces(axes, one["traces"])
        style(axes, "epoch", "training loss (nats)", one["title"])
    legend(figure, row[0], min(4, 2 * len(row)))
    return figure


def sooner(
    scale: str, one: Study, found: Mapping[str, Sequence[Sequence[float]]], published: str | None, note: str
) -> Claim:
    """Whether the aligned curves reach the last loss of the unaligned ones earlier; of means over pairs."""
    plain, aligned = ([mean(losses) for losses in zip(*found[kind], strict=True)] for kind in (UNALIGNED, ALIGNED))
    reached = first_below(aligned, plain[-1])
    when = "never" if reached is None else f"at epoch {reached}"
    return claim(
        scale,
        f"{one.title}: aligned curves reach the training loss that unaligned ones converge to much sooner",
        published,
        f"{plain[-1]:.3f} {when} of {len(plain)}; last {aligned[-1]:.3f}",
        reached is not None and reached < len(plain),
        note,
    )


def first_below(losses: Sequence[float], level: float) -> int | None:
    """The first epoch, counted from 1, with a loss of `level` or less."""
    return next((epoch for epoch, loss in enumerate(losses, 1) if loss <= level), None)
