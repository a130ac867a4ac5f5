"""The loss along a curve, beside that on the straight line between its ends: measured, as a record and as rows."""

from __future__ import annotations

import json
import math
from typing import Any

from coset.alignment.repair import running_norms
from coset.cli.console import Display
from coset.cli.experiment import Experiment
from coset.paths.barrier import Barrier, barrier
from coset.paths.curve import Curve
from coset.paths.geodesic import geodesic
from coset.solutions.pgd import PGD

LINE, LEARNED = "straight line", "curve"
ATTACKED = ", attacked"
REPAIRED = "at every point the statistics of norms were recomputed on the training split"


def curve_loss(
    curve: Curve, experiment: Experiment, points: int, display: Display, attack: PGD | None = None
) -> dict[str, Barrier]:
    """The loss on the straight line between the ends of the curve, and on the curve, with norms recomputed."""
    repair = experiment.dataset.train if running_norms(experiment.module) else None
    suffix = "" if attack is None else ATTACKED
    barriers = {}
    for name, path in ((LINE, geodesic(curve.points[0], curve.points[-1])), (LEARNED, curve)):
        display.stage(f"loss of the {name}{suffix}")
        barriers[name + suffix] = barrier(
            path, experiment.module, experiment.split, points, repair=repair, progress=display, attack=attack
        )
    return barriers


def record(barrier: Barrier) -> dict[str, Any]:
    """All numbers as JSON has them, and the highest loss and the mean and least accuracy of the points."""
    highest = max(barrier.loss)
    return {
        "highest_loss": highest if math.isfinite(highest) else None,
        "mean_accuracy": None if barrier.accuracy is None else sum(barrier.accuracy) / len(barrier.accuracy),
        "least_accuracy": None if barrier.accuracy is None else min(barrier.accuracy),
        **json.loads(barrier.to_json()),
    }


def rows(barriers: dict[str, Barrier]) -> list[dict[str, str]]:
    """A row of a table for each path."""
    table = []
    for name, one in barriers.items():
        row = {"path": name, "highest loss": f"{max(one.loss):.4f}", "barrier (nats)": f"{one.height:.4f}"}
        if one.accuracy is not None:
            row["mean accuracy"] = f"{sum(one.accuracy) / len(one.accuracy):.2%}"
            row["least accuracy"] = f"{min(one.accuracy):.2%}"
        table.append(row)
    return table
