"""Loss and accuracy along the curves of a study."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from coset import barrier, geodesic
from coset_papers.examples import some
from coset_papers.outcome import Record
from coset_papers.settings import Settings
from coset_papers.tatro2020.study import CurveStudy


@dataclass(frozen=True)
class CurveMeasurement:
    """Points of a curve, or along either side of a plane; examples used at each; training examples for its norms."""

    points: int
    examples: int
    repair: int
    batch_size: int = 1000


def along(
    study: CurveStudy,
    settings: Settings,
    measure: CurveMeasurement,
    kind: str,
    split: str = "test",
    *,
    attacked: bool = False,
    straight: bool = False,
) -> list[Record]:
    """Loss and accuracy at points of the curve of each pair, as `Barrier.to_json` has them.

    The statistics of batch norm are recomputed at each point (tatro2020 Appendix B). attacked: under the attack of the
    study. straight: on the line between the ends of the curve, where learning it begins.
    """

    def compute() -> list[Record]:
        return list(_losses(study, settings, measure, kind, split, attacked, straight))

    rows: list[Record] = settings.keep(
        "tatro2020-along",
        compute,
        **study.key(),
        pairs=study.plan.pairs,
        measure=asdict(measure),
        kind=kind,
        split=split,
        attacked=attacked,
        straight=straight,
    )
    return rows


def _losses(
    study: CurveStudy,
    settings: Settings,
    measure: CurveMeasurement,
    kind: str,
    split: str,
    attacked: bool,
    straight: bool,
) -> Iterator[Record]:
    images, model = study.images(settings), study.build().to(settings.device)
    for pair in range(study.plan.pairs):
        curve = study.curve(settings, kind, pair)
        settings.say(f"{study.title}: {split} accuracy along curve {pair}, {kind}")
        loss = barrier(
            geodesic(curve.points[0], curve.points[-1]) if straight else curve,
            model,
            some(getattr(images, split), measure.examples),
            measure.points,
            repair=some(images.train, measure.repair),
            batch_size=measure.batch_size,
            attack=study.attack(settings) if attacked else None,
        )
        yield json.loads(loss.to_json())


def averages(rows: list[Record], key: str = "accuracy") -> list[float]:
    """The mean over the points of each curve."""
    return [sum(row[key]) / len(row[key]) for row in rows]


def minima(rows: list[Record]) -> list[float]:
    """The accuracy of the worst network on each curve."""
    return [min(row["accuracy"]) for row in rows]


def ends(rows: list[Record]) -> list[float]:
    """The mean accuracy of the two ends of each curve."""
    return [(row["accuracy"][0] + row["accuracy"][-1]) / 2 for row in rows]


def dips(rows: list[Record]) -> list[float]:
    """By how much the worst network of each curve is less accurate than its ends."""
    return [end - least for end, least in zip(ends(rows), minima(rows), strict=True)]


def middles(rows: list[Record]) -> list[float]:
    """By how much the network halfway, of an odd number, is more accurate than the ends."""
    return [row["accuracy"][len(row["accuracy"]) // 2] - end for row, end in zip(rows, ends(rows), strict=True)]
