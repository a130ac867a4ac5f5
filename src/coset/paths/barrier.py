"""The loss along a path."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from coset.alignment.repair import recompute_norms
from coset.core.errors import CosetError
from coset.core.functional import resolve
from coset.core.progress import Event, Progress
from coset.core.show import Table
from coset.core.state import StateLike
from coset.data import Data, as_split
from coset.plot.barrier import barriers
from coset.plot.pictured import Pictured
from coset.solutions import metrics
from coset.solutions.as_solution import as_solution
from coset.solutions.dirac import Dirac
from coset.solutions.evaluate import attack_inputs, one_network
from coset.solutions.predictive import BATCH, Influence, Prepare, predictive, seed_from

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from coset.solutions.pgd import PGD

Path = Callable[[float], StateLike]


@dataclass(frozen=True, repr=False)
class Barrier(Pictured):
    """Loss and accuracy at the points of a path.

    Args:
        t: From 0 to 1.
        loss: -log predictive likelihood per example at each t, in nats.
        accuracy: At each t; None for regression.
        loss_error: Standard errors of the losses from drawing finitely many states, zero at a Dirac; None if unknown
            since one state was drawn at some point.
        height_error: That of the height, which is smaller where the same draws change the loss alike at the peak and
            at the ends.

    Example:
        >>> result = coset.barrier(coset.geodesic(a, b), model, digits.test, points=5)
        >>> result.height == max(result.excess), len(result.loss)
        (True, 5)
    """

    t: tuple[float, ...]
    loss: tuple[float, ...]
    accuracy: tuple[float, ...] | None = None
    loss_error: tuple[float, ...] | None = None
    height_error: float | None = None

    @property
    def endpoints(self) -> tuple[float, float]:
        """The losses at t = 0 and t = 1."""
        return self.loss[0], self.loss[-1]

    @property
    def excess(self) -> tuple[float, ...]:
        """loss(t) - ((1-t) loss(0) + t loss(1)), zero at both ends."""
        first, last = self.endpoints
        return tuple(loss - ((1 - t) * first + t * last) for t, loss in zip(self.t, self.loss, strict=True))

    @property
    def height(self) -> float:
        """The largest excess over the chord, positive is bad (rossi2023 Eq. 10, for a loss)."""
        return max(self.excess)

    def plot(self) -> Figure:
        """The picture of loss and accuracy along the path."""
        return barriers({"": self})

    def _picture(self) -> Figure:
        return self.plot()

    def _shown(self) -> Table:
        error = f" ± {self.height_error:.1g}" if self.height_error else ""
        highest = max(range(len(self.t)), key=lambda k: self.loss[k])
        rows: list[tuple[object, ...]] = [
            ("height", f"{self.height:.6g}{error} nats"),
            ("loss at the ends", f"{self.loss[0]:.6g}, {self.loss[-1]:.6g}"),
            ("highest loss", f"{self.loss[highest]:.6g} at t = {self.t[highest]:.3g}"),
        ]
        if self.accuracy is not None:
            rows.append(("accuracy at the ends", f"{self.accuracy[0]:.2%}, {self.accuracy[-1]:.2%}"))
            rows.append(("least accuracy", f"{min(self.accuracy):.2%}"))
        return Table(f"Barrier of {len(self.t)} points", rows)

    def to_json(self) -> str:
        """All numbers as one JSON object; what is not finite is null, since JSON has no infinity."""

        def number(x: float | None) -> float | None:
            return x if x is not None and math.isfinite(x) else None

        def finite(values: tuple[float, ...] | None) -> list[float | None] | None:
            return None if values is None else [number(x) for x in values]

        record = {
            "height": number(self.height),
            "height_error": number(self.height_error),
            "endpoints": finite(self.endpoints),
            "t": self.t,
            "loss": finite(self.loss),
            "accuracy": finite(self.accuracy),
            "loss_error": finite(self.loss_error),
        }
        return json.dumps(record, allow_nan=False)


def barrier(
    path: Path,
    model: nn.Module,
    data: Data,
    points: int = 25,
    samples: int = 128,
    *,
    repair: Data | None = None,
    batch_size: int = BATCH,
    generator: torch.Generator | None = None,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    attack: PGD | None = None,
) -> Barrier:
    """Evaluate `path` at equally spaced points: loss(t) = -mean_i log E_{w ~ path(t)}[p(y_i | x_i, w)].

    The targets are classes, and the model returns logits (n, ..., classes); or they are values (n, k), as the model
    returns, and the solutions have noise. Random states are drawn with the same noise at every point, so that the
    curve is smooth.

    With an attack, for which every point must be a Dirac, the inputs are attacked anew for that very state, after
    repair; its random starts are the same at every point.

    Args:
        path: From t in [0, 1] to a solution, a state or a module: a geodesic, a curve, or any function.
        model: The network, which is not changed.
        data: Inputs and targets.
        points: How many values of t, the ends included.
        samples: States that are drawn at each point; a Dirac needs one evaluation, whatever their number.
        repair: Data on which the statistics of norms are recomputed at each state that is evaluated.
        batch_size: Inputs in a call of the model.
        generator: Of the states that are drawn; of seed 0 when None.
        device: Where to compute; where the first point lies when None.
        progress: Told of each point.
        attack: Measures the loss under it; the data as they are when None.

    Returns:
        Loss and accuracy at each point, and the height of the barrier.

    Raises:
        CosetError: If there are fewer than two points, or an attack meets a solution that is no Dirac.
        StateError: If a point of the path does not fit the model.

    Example:
        >>> straight, aligned = coset.geodesic(a, b), coset.geodesic(a, sym.act(coset.align(a, b, sym).element, b))
        >>> heights = [coset.barrier(path, model, digits.test, points=7).height for path in (straight, aligned)]
        >>> heights[1] < heights[0]
        True
    """
    if points < 2:
        raise CosetError(f"A barrier needs both ends of the path, so {points} points are too few.")
    where = resolve(device, as_solution(path(0.0)).mean)
    split = as_split(data).to(where)
    seed = seed_from(generator)
    prepare = repairer(repair, batch_size, where)
    ts = tuple(k / (points - 1) for k in range(points))
    losses, accuracies, errors, influences = [], [], [], []
    for done, t in enumerate(ts, 1):
        point, faced, noise = as_solution(path(t)), split, torch.Generator().manual_seed(seed)
        if attack is not None:
            point = _prepared(one_network(point).to(where), model, prepare)
            faced = attack_inputs(point, attack, model, split, batch_size, noise, where)
        prediction = predictive(
            point,
            model,
            faced.inputs,
            faced.targets,
            samples,
            batch_size=batch_size,
            generator=noise,
            device=where,
            prepare=prepare if attack is None else None,
        )
        losses.append(prediction.loss)
        if prediction.log_probs is not None:
            accuracies.append(metrics.accuracy(prediction.log_probs, split.targets))
        if prediction.influence is not None and prediction.loss_error is not None:
            errors.append(prediction.loss_error)
            influences.append(prediction.influence)
        if progress is not None:
            progress(Event(done, points, "point"))
    if len(errors) < points:
        return Barrier(ts, tuple(losses), tuple(accuracies) or None)
    result = Barrier(ts, tuple(losses), tuple(accuracies) or None, tuple(errors))
    return dataclasses.replace(result, height_error=_height_error(result, influences))


def _prepared(q: Dirac, model: nn.Module, prepare: Prepare | None) -> Dirac:
    return q if prepare is None else Dirac(prepare(model, q.state), q.noise)


def _height_error(curve: Barrier, influences: list[Influence]) -> float | None:
    """The norm of the influence on loss(t) - (1-t) loss(0) - t loss(1) at the highest t.

    Draw s of component k has the same noise at every point, so its influences add up before they are squared. That
    the highest t may itself move with the noise changes the height in second order only. None if a loss is infinite.
    """
    if not all(math.isfinite(excess) for excess in curve.excess):
        return None
    peak = curve.excess.index(curve.height)
    t = curve.t[peak]
    terms = [(1.0, influences[peak]), (t - 1, influences[0]), (-t, influences[-1])]
    total: dict[tuple[int, int], float] = {}
    for factor, influence in terms:
        for k, part in enumerate(influence):
            for s, g in enumerate(part):
                total[k, s] = total.get((k, s), 0.0) + factor * g
    return math.hypot(*total.values())


def repairer(repair: Data | None, batch_size: int, device: torch.device) -> Prepare | None:
    """What recomputes the statistics of a state's norms on `repair`."""
    if repair is None:
        return None
    split = as_split(repair).to(device)
    return lambda model, state: recompute_norms(model, state, split, batch_size=batch_size)
