"""Accuracy and training loss of curves, with every network on every data set: tatro2020 Tables 1 and 2."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from coset_papers.catalogue import exhibit
from coset_papers.images import IMAGE_SETS
from coset_papers.outcome import Claim, Outcome, without_repeated_notes
from coset_papers.plotting import FAINT, INK, panels, style
from coset_papers.settings import Settings
from coset_papers.tatro2020.criteria import (
    CLOSE,
    above,
    claim,
    comparable,
    deviation,
    judged_by,
    mean,
    percent,
    with_deviation,
)
from coset_papers.tatro2020.curve_kinds import ALIGNED, KINDS, PAM_ALIGNED, PAM_UNALIGNED, UNALIGNED
from coset_papers.tatro2020.curve_losses import along, averages, ends, minima
from coset_papers.tatro2020.networks import SIZES, present, shorter, study
from coset_papers.tatro2020.plotting import COLOURS, DASHED
from coset_papers.tatro2020.published import ACCURACY, ENDS, LOSS
from coset_papers.tatro2020.study import CurveStudy

COLUMNS = ("cifar10", "cifar100", "tiny-imagenet")
ASIDE = 0.18  # where the published numbers stand beside ours


def table1(settings: Settings) -> Outcome:
    """Table 1: average and minimum test accuracy along each kind of curve."""
    rows = []
    for one in _studies(settings):
        curves = {kind: along(one, settings, SIZES[settings.scale].measure, kind) for kind in one.kinds}
        row = _row(one) | {"ends": ends(curves[UNALIGNED]), "published_ends": ENDS.get(one.network, {}).get(one.data)}
        row["kinds"] = {kind: {"average": averages(each), "minimum": minima(each)} for kind, each in curves.items()}
        row["published"] = _published_of(ACCURACY, one)
        rows.append(row)
    claims = [each for row in rows for each in accuracy_claims(settings.scale, row)]
    if len(rows) > 1:
        claims.append(_gains(settings.scale, rows))
    return _outcome(settings, rows, claims)


def table2(settings: Settings) -> Outcome:
    """Table 2: the training loss of each kind of curve."""
    rows = []
    for one in _studies(settings):
        measure, row = SIZES[settings.scale].measure, _row(one)
        row["kinds"] = {
            kind: {
                "along": averages(along(one, settings, measure, kind, "train"), "loss"),
                "last": [one.trace(settings, kind, pair)[-1] for pair in range(one.plan.pairs)],
            }
            for kind in one.kinds
        }
        row["published"] = _published_of(LOSS, one)
        rows.append(row)
    claims = [each for row in rows for each in loss_claims(settings.scale, row)]
    return _outcome(settings, rows, claims)


def accuracy_claims(scale: str, row: dict[str, Any]) -> Iterator[Claim]:
    """What Section 4.1 says of one network and data set."""
    kinds, published, title = row["kinds"], row["published"], row["title"]
    note = f"{judged_by(row['pairs'])} {row['trained']}"
    for key, words, place in (("average", "on average", 0), ("minimum", "at the worst", 2)):
        best, plain = kinds[ALIGNED][key], kinds[UNALIGNED][key]
        yield claim(
            scale,
            f"{title}: aligned curves are more accurate than unaligned ones, {words}",
            _published(published, (ALIGNED, UNALIGNED), place),
            _ours(kinds, (ALIGNED, UNALIGNED), key),
            above(best, plain),
            note,
        )
    least, end = kinds[ALIGNED]["minimum"], row["ends"]
    published_ends = row["published_ends"]
    yield claim(
        scale,
        f"{title}: the average along aligned curves is comparable to the ends",
        None if published_ends is None else f"ends {published_ends[0]}, {_published(published, (ALIGNED,), 0)}",
        f"ends {percent(end)}, {_ours(kinds, (ALIGNED,), 'average')}, at the worst {percent(least)}",
        mean(kinds[ALIGNED]["average"]) >= mean(end) - CLOSE,
        f"Comparable: within {100 * CLOSE:g} points.",
    )
    if PAM_ALIGNED not in kinds:
        return
    for key, words, place in (("average", "average", 0), ("minimum", "minimum", 2)):
        better = above(kinds[PAM_UNALIGNED][key], kinds[UNALIGNED][key])
        yield claim(
            scale,
            f"{title}: PAM finds a better permutation from the unaligned start ({words})",
            _published(published, (PAM_UNALIGNED, UNALIGNED), place),
            _ours(kinds, (PAM_UNALIGNED, UNALIGNED), key),
            better,
            note,
        )
        yield claim(
            scale,
            f"{title}: but does not outperform alignment ({words})",
            _published(published, (PAM_UNALIGNED, ALIGNED), place),
            _ours(kinds, (PAM_UNALIGNED, ALIGNED), key),
            not above(kinds[PAM_UNALIGNED][key], kinds[ALIGNED][key]),
            note,
        )
    yield claim(
        scale,
        f"{title}: alignment is nearly locally optimal, as PAM from it is comparable",
        _published(published, (PAM_ALIGNED, ALIGNED), 0),
        _ours(kinds, (PAM_ALIGNED, ALIGNED), "average"),
        comparable(kinds[PAM_ALIGNED]["average"], kinds[ALIGNED]["average"]),
        f"Comparable: within {100 * CLOSE:g} points.",
    )


def loss_claims(scale: str, row: dict[str, Any]) -> Iterator[Claim]:
    """The order of the losses in Table 2."""
    kinds, published = row["kinds"], row["published"]
    note = (
        "Ours is the mean along the curve of the cross-entropy of training examples without augmentation, and in "
        "brackets that of the last epoch of learning, with it; the paper's seems to have the weight decay in it. "
        f"{judged_by(row['pairs'])} {row['trained']}"
    )
    for low, high in ((ALIGNED, UNALIGNED), (PAM_UNALIGNED, UNALIGNED), (ALIGNED, PAM_UNALIGNED)):
        if low not in kinds or high not in kinds:
            continue
        ours = [f"{_short(kind)} {_both(kinds[kind])}" for kind in (low, high)]
        losses = published[low], published[high]
        yield claim(
            scale,
            f"{row['title']}: the training loss of {KINDS[low].title} curves is below that of {KINDS[high].title} ones",
            None if None in losses else f"{_short(low)} {losses[0][0]}, {_short(high)} {losses[1][0]}",
            ", ".join(ours),
            above(kinds[high]["along"], kinds[low]["along"]),
            note,
        )


def _studies(settings: Settings) -> list[CurveStudy]:
    scale = settings.scale
    return [study(scale, name, network) for name in present(scale) for network in SIZES[scale].plans]


def _published_of(table: dict[str, Any], one: CurveStudy) -> dict[str, Any]:
    """What the paper has for each kind; None where it has nothing."""
    return {kind: table.get(one.network, {}).get(kind, {}).get(one.data) for kind in one.kinds}


def _row(one: CurveStudy) -> dict[str, Any]:
    return {
        "network": one.network,
        "data": IMAGE_SETS[one.data].title,
        "title": one.title,
        "pairs": one.plan.pairs,
        "trained": shorter(one),
        "study": one.key(),
    }


def _outcome(settings: Settings, rows: list[dict[str, Any]], claims: list[Claim]) -> Outcome:
    """With a sentence on the networks and images of the paper that are not among the rows."""
    scale = settings.scale
    missing = [network for network in ACCURACY if network not in SIZES[scale].plans]
    missing += [IMAGE_SETS[name].title for name in COLUMNS if name not in present(scale)]
    first, *others = without_repeated_notes(claims)
    if missing:
        first = replace(first, note=f"{first.note} Left out: {', '.join(missing)}.")
    data = {"rows": rows, "measure": asdict(SIZES[scale].measure), "left_out": missing}
    return Outcome(data, (first, *others))


def _gains(scale: str, rows: list[dict[str, Any]]) -> Claim:
    """Of the networks on the first data set."""
    first = [row for row in rows if row["data"] == rows[0]["data"]]
    ours = [mean(row["kinds"][ALIGNED]["average"]) - mean(row["kinds"][UNALIGNED]["average"]) for row in first]
    words = [f"{row['network']} {100 * gain:.1f}" for row, gain in zip(first, ours, strict=True)]
    published = [
        f"{row['network']} {row['published'][ALIGNED][0] - row['published'][UNALIGNED][0]:.1f}"
        for row in first
        if row["published"][ALIGNED] is not None
    ]
    return claim(
        scale,
        f"{first[0]['data']}: alignment gains most for underparameterized networks, least for GoogLeNet",
        ", ".join(published) or None,
        ", ".join(words),
        ours == sorted(ours, reverse=True),
        "Points of average accuracy, aligned less unaligned; networks from the smallest to the largest.",
    )


def _short(kind: str) -> str:
    return KINDS[kind].title


def _both(losses: dict[str, list[float]]) -> str:
    return f"{with_deviation(losses['along'])} ({with_deviation(losses['last'])})"


def _published(table: dict[str, Any], kinds: tuple[str, ...], place: int) -> str | None:
    if any(table[kind] is None for kind in kinds):
        return None
    return ", ".join(f"{_short(kind)} {table[kind][place]} ± {table[kind][place + 1]}" for kind in kinds)


def _ours(shares: dict[str, Any], kinds: tuple[str, ...], key: str) -> str:
    return ", ".join(f"{_short(kind)} {percent(shares[kind][key])}" for kind in kinds)


def draw_table1(data: Any) -> Figure:
    """Average and minimum accuracy of each kind of curve, and the ends as a line."""
    figure, row = _panels(data, "Accuracy along curves")
    for axes, record in zip(row, data["rows"], strict=True):
        axes.axhline(100 * mean(record["ends"]), color=FAINT, linewidth=1.2, linestyle=DASHED)
        for x, (kind, values) in enumerate(record["kinds"].items()):
            for key, place, face in (("average", 0, COLOURS[kind]), ("minimum", 2, "white")):
                _dot(axes, x, [100 * value for value in values[key]], COLOURS[kind], face)
                if record["published"][kind] is not None:
                    axes.plot(x + ASIDE, record["published"][kind][place], "x", color=INK, markersize=5)
        _names(axes, record, "test accuracy (%)")
    _key(figure, data, ("average along the curve", "its minimum"), "ends, average")
    return figure


def draw_table2(data: Any) -> Figure:
    """The loss along each kind of curve, and that of the last epoch of learning."""
    figure, row = _panels(data, "Training loss of curves")
    for axes, record in zip(row, data["rows"], strict=True):
        for x, (kind, values) in enumerate(record["kinds"].items()):
            for key, face in (("along", COLOURS[kind]), ("last", "white")):
                _dot(axes, x, values[key], COLOURS[kind], face)
            if record["published"][kind] is not None:
                axes.plot(x + ASIDE, record["published"][kind][0], "x", color=INK, markersize=5)
        _names(axes, record, "training loss (nats)")
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


def _names(axes: Axes, record: Any, unit: str) -> None:
    titles = [KINDS[kind].title.replace(" ", "\n") for kind in record["kinds"]]
    axes.set_xticks(range(len(titles)), titles)
    axes.set_xlim(-0.5, len(titles) - 0.5)
    style(axes, "", unit, record["title"])


def _key(figure: Figure, data: Any, words: tuple[str, str], ends: str = "") -> None:
    plain: dict[str, Any] = {"color": INK, "linestyle": "none"}
    handles = [
        Line2D([], [], marker="o", label=words[0], **plain),
        Line2D([], [], marker="o", markerfacecolor="white", label=words[1], **plain),
    ]
    if any(published is not None for record in data["rows"] for published in record["published"].values()):
        handles.append(Line2D([], [], marker="x", label="published", **plain))
    if ends:
        handles.append(Line2D([], [], color=FAINT, linestyle=DASHED, label=ends))
    columns = 4 if len(data["rows"]) > 1 else 1
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)


exhibit("tatro2020/table1", "accuracy along curves, by network and kind of curve", table1, draw_table1)
exhibit("tatro2020/table2", "training loss of curves, by network and kind of curve", table2, draw_table2)
