"""The loss between the networks of a study."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from coset import Solution, barrier, geodesic
from coset.paths.barrier import Path
from coset_papers.examples import some
from coset_papers.rossi2023.study import PosteriorStudy
from coset_papers.settings import Settings

NAIVE, ALIGNED = "naive", "auto"
SPLITS = ("train", "test")


@dataclass(frozen=True)
class PathMeasurement:
    """Points of a path, networks drawn at each, and examples of each split."""

    points: int
    samples: int
    examples: int
    batch_size: int = 1024


def barriers(
    study: PosteriorStudy,
    settings: Settings,
    measure: PathMeasurement,
    cost: str,
    path: Callable[[Solution, Solution], Path] = geodesic,
) -> list[dict[str, Any]]:
    """For each pair of networks {"pair", "train", "test"}: the barrier of either split, as `Barrier.to_json` has it.

    cost: "naive", or the method of `coset.align` that moves the second network first.
    """

    def compute() -> list[dict[str, Any]]:
        return list(_losses(study, settings, measure, cost, path))

    rows: list[dict[str, Any]] = settings.keep(
        f"rossi2023-{path.__name__}",
        compute,
        **study.key(),
        replicas=study.replicas,
        measure=asdict(measure),
        cost=cost,
    )
    return rows


def _losses(
    study: PosteriorStudy,
    settings: Settings,
    measure: PathMeasurement,
    cost: str,
    path: Callable[[Solution, Solution], Path],
) -> Iterator[dict[str, Any]]:
    parts, model = study.parts(settings), study.build().to(settings.device)
    for pair, a, b in study.pairs(settings, cost):
        row: dict[str, Any] = {"pair": pair}
        for split in SPLITS:
            settings.say(f"{study.title}: the {split} loss between networks {pair[0]} and {pair[1]}, {cost}")
            examples = some(getattr(parts, split), measure.examples)
            loss = barrier(path(a, b), model, examples, measure.points, measure.samples, batch_size=measure.batch_size)
            row[split] = json.loads(loss.to_json())
        yield row


def mean(values: list[float]) -> float:
    """Their mean."""
    return sum(values) / len(values)


def heights(rows: list[dict[str, Any]], split: str) -> list[float]:
    """The barriers of a split, in nats per example."""
    return [row[split]["height"] for row in rows]
