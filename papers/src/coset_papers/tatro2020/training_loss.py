"""The training loss while curves are learned: tatro2020 Figure 6."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from coset_papers.catalogue import exhibit
from coset_papers.images import IMAGE_SETS
from coset_papers.outcome import Claim, Outcome, without_repeated_notes
from coset_papers.plotting import legend, panels, style
from coset_papers.settings import Settings
from coset_papers.tatro2020.criteria import claim, mean
from coset_papers.tatro2020.curve_kinds import ALIGNED, UNALIGNED
from coset_papers.tatro2020.networks import SIZES, present, shorter, study
from coset_papers.tatro2020.plotting import traces
from coset_papers.tatro2020.study import CurveStudy

SOONER = "Sooner: before the last epoch. Rates fall to zero with the epochs, so losses fall until the end."


def fig6(settings: Settings) -> Outcome:
    """Figure 6: TinyTen on each data set, and the other networks on the first."""
    scale = settings.scale
    names = present(scale)
    first, *others = SIZES[scale].plans
    studies = [study(scale, name, first) for name in names] + [study(scale, names[0], other) for other in others]
    absent_images = "" if "tiny-imagenet" in names else f" Left out: {IMAGE_SETS['tiny-imagenet'].title}."
    rows: list[dict[str, Any]] = []
    claims: list[Claim] = []
    for one in studies:
        traces_of = {kind: [one.trace(settings, kind, pair) for pair in range(one.plan.pairs)] for kind in one.kinds}
        rows.append({"title": one.title, "study": one.key(), "traces": traces_of})
        note = shorter(one) if claims else f"{SOONER} {shorter(one)}{absent_images}"
        claims.append(sooner(scale, one, traces_of, None, note))
    return Outcome({"shown": rows}, without_repeated_notes(claims))


def draw_fig6(data: Any) -> Figure:
    """A panel for each network and data set."""
    figure, (row,) = panels(1, len(data["shown"]), "Training loss while curves are learned")
    for axes, one in zip(row, data["shown"], strict=True):
        traces(axes, one["traces"])
        style(axes, "epoch", "training loss (nats)", one["title"])
    legend(figure, row[0], min(4, 2 * len(row)))
    return figure


def sooner(
    scale: str, one: CurveStudy, traces_of: Mapping[str, Sequence[Sequence[float]]], published: str | None, note: str
) -> Claim:
    """Whether the aligned curves reach the last loss of the unaligned ones earlier; of means over pairs."""
    plain, aligned = ([mean(losses) for losses in zip(*traces_of[kind], strict=True)] for kind in (UNALIGNED, ALIGNED))
    epoch = first_below(aligned, plain[-1])
    when = "never" if epoch is None else f"at epoch {epoch}"
    return claim(
        scale,
        f"{one.title}: aligned curves reach the training loss that unaligned ones converge to much sooner",
        published,
        f"{plain[-1]:.3f} {when} of {len(plain)}; last {aligned[-1]:.3f}",
        epoch is not None and epoch < len(plain),
        note,
    )


def first_below(losses: Sequence[float], level: float) -> int | None:
    """The first epoch, counted from 1, with a loss of `level` or less."""
    return next((epoch for epoch, loss in enumerate(losses, 1) if loss <= level), None)


exhibit("tatro2020/fig6", "training loss while curves are learned", fig6, draw_fig6)
