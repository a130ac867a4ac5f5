"""Accuracy and training loss of curves, with every network on every data set: tatro2020 Tables 1 and 2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from coset_papers.outcome import Claim, Outcome, noted_once
from coset_papers.settings import Settings
from coset_papers.tatro2020.images import SOURCES
from coset_papers.tatro2020.kinds import ALIGNED, KINDS, PAM_ALIGNED, PAM_UNALIGNED, UNALIGNED
from coset_papers.tatro2020.measure import along, averages, ends, minima
from coset_papers.tatro2020.networks import SIZES, present, shorter, study
from coset_papers.tatro2020.published import ACCURACY, ENDS, LOSS
from coset_papers.tatro2020.study import Study
from coset_papers.tatro2020.verdicts import CLOSE, above, claim, comparable, judged_by, mean, percent, written

COLUMNS = ("cifar10", "cifar100", "tiny-imagenet")


def table1(settings: Settings) -> Outcome:
    """Table 1: average and minimum test accuracy along each kind of curve."""
    rows = []
    for one in _studies(settings):
        found = {kind: along(one, settings, SIZES[settings.scale].measure, kind) for kind in one.kinds}
        row = _row(one) | {"ends": ends(found[UNALIGNED]), "published_ends": ENDS.get(one.network, {}).get(one.data)}
        row["kinds"] = {kind: {"average": averages(each), "minimum": minima(each)} for kind, each in found.items()}
        row["published"] = _given(ACCURACY, one)
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
        row["published"] = _given(LOSS, one)
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
    given = row["published_ends"]
    yield claim(
        scale,
        f"{title}: the average along aligned curves is comparable to the ends",
        None if given is None else f"ends {given[0]}, {_published(published, (ALIGNED,), 0)}",
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
        given = published[low], published[high]
        yield claim(
            scale,
            f"{row['title']}: the training loss of {KINDS[low].title} curves is below that of {KINDS[high].title} ones",
            None if None in given else f"{_short(low)} {given[0][0]}, {_short(high)} {given[1][0]}",
            ", ".join(ours),
            above(kinds[high]["along"], kinds[low]["along"]),
            note,
        )


def _studies(settings: Settings) -> list[Study]:
    scale = settings.scale
    return [study(scale, name, network) for name in present(scale) for network in SIZES[scale].plans]


def _given(table: dict[str, Any], one: Study) -> dict[str, Any]:
    """What the paper has for each kind; None where it has nothing."""
    return {kind: table.get(one.network, {}).get(kind, {}).get(one.data) for kind in one.kinds}


def _row(one: Study) -> dict[str, Any]:
    return {
        "network": one.network,
        "data": SOURCES[one.data].title,
        "title": one.title,
        "pairs": one.plan.pairs,
        "trained": shorter(one),
        "study": one.known(),
    }


def _outcome(settings: Settings, rows: list[dict[str, Any]], claims: list[Claim]) -> Outcome:
    """With a sentence on the networks and images of the paper that are not among the rows."""
    scale = settings.scale
    missing = [network for network in ACCURACY if network not in SIZES[scale].plans]
    missing += [SOURCES[name].title for name in COLUMNS if name not in present(scale)]
    first, *others = noted_once(claims)
    if missing:
        first = replace(first, note=f"{first.note} Left out: {', '.join(missing)}.")
    data = {"rows": rows, "measure": asdict(SIZES[scale].measure), "left_out": missing}
    return Outcome(data, (first, *others))


def _gains(scale: str, rows: list[dict[str, Any]]) -> Claim:
    """Of the networks on the first data set."""
    first = [row for row in rows if row["data"] == rows[0]["data"]]
    ours = [mean(row["kinds"][ALIGNED]["average"]) - mean(row["kinds"][UNALIGNED]["average"]) for row in first]
    words = [f"{row['network']} {100 * gain:.1f}" for row, gain in zip(first, ours, strict=True)]
    given = [
        f"{row['network']} {row['published'][ALIGNED][0] - row['published'][UNALIGNED][0]:.1f}"
        for row in first
        if row["published"][ALIGNED] is not None
    ]
    return claim(
        scale,
        f"{first[0]['data']}: alignment gains most for underparameterized networks, least for GoogLeNet",
        ", ".join(given) or None,
        ", ".join(words),
        ours == sorted(ours, reverse=True),
        "Points of average accuracy, aligned less unaligned; networks from the smallest to the largest.",
    )


def _short(kind: str) -> str:
    return KINDS[kind].title


def _both(found: dict[str, list[float]]) -> str:
    return f"{written(found['along'])} ({written(found['last'])})"


def _published(given: dict[str, Any], kinds: tuple[str, ...], place: int) -> str | None:
    if any(given[kind] is None for kind in kinds):
        return None
    return ", ".join(f"{_short(kind)} {given[kind][place]} ± {given[kind][place + 1]}" for kind in kinds)


def _ours(found: dict[str, Any], kinds: tuple[str, ...], key: str) -> str:
    return ", ".join(f"{_short(kind)} {percent(found[kind][key])}" for kind in kinds)
