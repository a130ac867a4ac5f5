"""The posterior, the loss and the accuracy on the plane through three networks."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from coset.core import state as states
from coset.core.errors import CosetError, ModelError
from coset.core.functional import evaluating, resolve
from coset.core.progress import Event, Progress
from coset.core.show import Table
from coset.core.state import State, StateLike, check, is_coordinate
from coset.data import Data, as_split
from coset.paths.barrier import Path, repairer
from coset.plot.pictured import Pictured
from coset.plot.plane import What, contours
from coset.solutions.as_solution import with_order
from coset.solutions.likelihood import Classification, likelihood_of
from coset.solutions.model_outputs import model_outputs, states_at_once
from coset.solutions.predictive import BATCH

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Grid = tuple[tuple[float, ...], ...]
# How many points of a path are shown.
TRACK = 25
# Points are on one line if the third is no further from it than this much of its distance to the first.
COLLINEAR = 1e-5


@dataclass(frozen=True, repr=False)
class Plane(Pictured):
    """Log-likelihood and log-prior on a grid, log_likelihood[i][j] at (x[j], y[i]), summed over so many examples.

    Args:
        x: Coordinates along the first of two orthonormal axes, so that distances are those of the parameters.
        y: Coordinates along the second.
        points: Coordinates of the three networks, the first at (0, 0) and the second at (distance, 0).
        log_likelihood: In nats, a row for each y.
        log_prior: The same; None without a prior.
        examples: How many the log-likelihood is summed over.
        accuracy: The share of right classes at each place; None for regression.
        track: Coordinates of the points of a path.

    Example:
        >>> result = coset.plane(a, b, sym.act(coset.align(a, b, sym).element, b), model, digits.test, points=3)
        >>> result.points[0], len(result.loss)
        ((0.0, 0.0), 3)
    """

    x: tuple[float, ...]
    y: tuple[float, ...]
    points: tuple[tuple[float, float], ...]
    log_likelihood: Grid
    log_prior: Grid | None
    examples: int
    accuracy: Grid | None = None
    track: tuple[tuple[float, float], ...] = ()

    @property
    def loss(self) -> Grid:
        """-log_likelihood / examples, in nats."""
        return tuple(tuple(-value / self.examples for value in row) for row in self.log_likelihood)

    @property
    def log_posterior(self) -> Grid | None:
        """log_likelihood + log_prior, which lacks the constant -log p(data)."""
        if self.log_prior is None:
            return None
        rows = zip(self.log_likelihood, self.log_prior, strict=True)
        return tuple(tuple(f + p for f, p in zip(*row, strict=True)) for row in rows)

    def plot(self, labels: Sequence[str] = ("a", "b", "c"), what: What = "posterior") -> Figure:
        """Contours with the three points and the track.

        Args:
            labels: Of the three networks.
            what: "posterior": the log-likelihood, and also prior and posterior if there is a prior; "loss"; or
                "accuracy".
        """
        return contours(self, labels, what=what)

    def _picture(self) -> Figure:
        return self.plot()

    def _shown(self) -> Table:
        losses = [value for row in self.loss for value in row]
        rows: list[tuple[object, ...]] = [
            ("networks at", "  ".join(f"({x:.4g}, {y:.4g})" for x, y in self.points)),
            ("x", f"{self.x[0]:.4g} to {self.x[-1]:.4g}"),
            ("y", f"{self.y[0]:.4g} to {self.y[-1]:.4g}"),
            ("loss", f"{min(losses):.6g} to {max(losses):.6g} nats"),
        ]
        if self.accuracy is not None:
            shares = [value for row in self.accuracy for value in row]
            rows.append(("accuracy", f"{min(shares):.2%} to {max(shares):.2%}"))
        rows.append(("prior", "none" if self.log_prior is None else "yes"))
        return Table(f"Plane of {len(self.x)} x {len(self.y)} places, {self.examples:,} examples", rows)

    def to_json(self) -> str:
        """All numbers as one JSON object; what is not finite is null, since JSON has no infinity."""

        def finite(grid: Grid | None) -> list[list[float | None]] | None:
            return None if grid is None else [[v if math.isfinite(v) else None for v in row] for row in grid]

        record = {
            "x": self.x,
            "y": self.y,
            "points": self.points,
            "log_likelihood": finite(self.log_likelihood),
            "log_prior": finite(self.log_prior),
            "log_posterior": finite(self.log_posterior),
            "examples": self.examples,
            "loss": finite(self.loss),
            "accuracy": finite(self.accuracy),
            "track": self.track,
        }
        return json.dumps(record, allow_nan=False)


def plane(
    a: StateLike,
    b: StateLike,
    c: StateLike,
    model: nn.Module,
    data: Data,
    points: int = 25,
    margin: float = 0.25,
    prior_variance: float | None = None,
    *,
    path: Path | None = None,
    repair: Data | None = None,
    batch_size: int = BATCH,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
) -> Plane:
    """log p(data | w) and log N(w; 0, prior_variance I) for w on the plane through three means (rossi2023 Fig. 6, A16).

    The same grid has the loss, and the accuracy for classes (tatro2020 Fig. 3, 5, 7).

    The axes are those of Gram and Schmidt for b - a and c - a, with the parameters of the model as coordinates; other
    tensors, as the statistics of norms, follow. Values as targets have the noise of `a` everywhere, so that all places
    are judged alike.

    Args:
        a: The first network: a solution, of which the mean counts, a state or a module.
        b: The second.
        c: The third, which must not lie on one line with the others.
        model: The network, which is not changed.
        data: Inputs and targets.
        points: The grid has points x points places.
        margin: The grid is wider than the triangle by so much of its longer side, on each side.
        prior_variance: Of a normal prior; no log-prior when None.
        path: Its points are projected on the axes, which is exact for a quadratic Bezier curve on the plane of its ends
            and its control point. The grid is wide enough for them.
        repair: Data on which the statistics of norms are recomputed at each place.
        batch_size: Inputs in a call of the model.
        device: Where to compute; where `a` lies when None.
        progress: Told of the places that are done.

    Returns:
        The values on the grid.

    Raises:
        CosetError: If the three lie on one line, or a number is out of range.
        ModelError: If the model returns NaN.

    Example:
        >>> aligned = sym.act(coset.align(a, b, sym).element, b)
        >>> result = coset.plane(a, b, aligned, model, digits.test, points=3, path=coset.geodesic(a, aligned))
        >>> len(result.x), len(result.track)
        (3, 25)
    """
    _check_options(points, margin, prior_variance)
    first, second, third = (with_order(q) for q in (a, b, c))
    where = resolve(device, first.mean)
    split = as_split(data).to(where)
    corners: list[State] = [states.to(first.mean, where)]
    for q, name in ((second, "the second network"), (third, "the third network")):
        corners.append(states.to(check(q.mean, like=first.mean, where=name), where))
    frame = _frame(model, corners)
    track = () if path is None else _track(frame, path, first.mean)
    x, y = _axes([*frame.points, *track], points, margin)
    places = [(one, other) for other in y for one in x]
    likelihood = likelihood_of(split.targets)
    likelihood.check_noise(first.noise)
    prepare = repairer(repair, batch_size, where)
    total, hits = torch.zeros(2, len(places), dtype=torch.float64, device=where)
    with evaluating(model, where) as ready:
        networks = (prepare(ready, state) if prepare else state for state in frame.states(places))
        at_once = states_at_once(ready, where)
        for rows, examples, out in model_outputs(
            ready, networks, split.inputs, likelihood, at_once=at_once, batch_size=batch_size, device=where
        ):
            if rows.start == examples.start == 0:
                likelihood.check(out[0], split.targets)
            log_prob = likelihood.log_prob(out, split.targets[examples], first.noise)
            total[rows] += log_prob.flatten(1).sum(1, dtype=torch.float64)
            if isinstance(likelihood, Classification):
                hits[rows] += (out.argmax(-1) == split.targets[examples]).flatten(1).sum(1)
            if progress is not None and examples.stop == len(split):
                progress(Event(rows.stop, len(places), "point"))
    if bool(total.isnan().any()):
        raise ModelError(
            f"{type(model).__name__} returns NaN at some places of the plane: if it has norms with statistics, which "
            "do not extrapolate, give `repair`."
        )
    prior = None
    if prior_variance is not None:
        prior = _grid([frame.log_prior(place, prior_variance) for place in places], points)
    accuracy = None
    if isinstance(likelihood, Classification):
        accuracy = _grid((hits / split.targets.numel()).tolist(), points)
    return Plane(
        x=x,
        y=y,
        points=frame.points,
        log_likelihood=_grid(total.tolist(), points),
        log_prior=prior,
        examples=len(split),
        accuracy=accuracy,
        track=track,
    )


@dataclass(frozen=True, eq=False)
class _Frame:
    """w = origin + alpha (b - a) + beta (c - a); points: the coordinates of a, b and c on the orthonormal axes.

    axes: directions of x and y over the parameters alone, of lengths points[1][0] and points[2][1];
    norms: |w|^2 at (x, y) is norms[0] + 2 x norms[1] + 2 y norms[2] + x^2 + y^2, over `size` parameters.
    """

    origin: State
    moves: tuple[State, State]
    axes: tuple[State, State]
    points: tuple[tuple[float, float], ...]
    norms: tuple[float, float, float]
    size: int

    def states(self, places: list[tuple[float, float]]) -> Iterator[State]:
        """The state at each place."""
        first, second = self.moves
        _, (length, _), (shift, height) = self.points
        for x, y in places:
            beta = y / height
            alpha = (x - beta * shift) / length
            yield {
                name: (z + alpha * first[name] + beta * second[name]).to(z.dtype) if name in first else z
                for name, z in self.origin.items()
            }

    def place(self, state: State) -> tuple[float, float]:
        """The coordinates of the place nearest to a state."""
        along, across = self.axes
        step = {name: state[name].to(z.device) - self.origin[name] for name, z in along.items()}
        _, (length, _), (_, height) = self.points
        return float(states.inner(step, along)) / length, float(states.inner(step, across)) / height

    def log_prior(self, place: tuple[float, float], variance: float) -> float:
        """log N(w; 0, variance I)."""
        x, y = place
        square = self.norms[0] + 2 * x * self.norms[1] + 2 * y * self.norms[2] + x * x + y * y
        return -square / (2 * variance) - self.size * math.log(2 * math.pi * variance) / 2


def _frame(model: nn.Module, corners: list[State]) -> _Frame:
    """The axes through three states, which must not lie on one line."""
    own = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    a, b, c = ({n: z for n, z in states.untie(model, corner).items() if n in own} for corner in corners)
    u, v, w = states.sub(b, a), states.sub(c, a), states.sub(c, b)
    for move, names in ((u, "first and the second"), (v, "first and the third"), (w, "second and the third")):
        if not float(states.norm(move)):
            raise CosetError(f"The {names} of the three networks are the same, so no plane is set by them.")
    length = float(states.norm(u))
    shift = float(states.inner(u, v)) / length
    across = states.sub(v, states.scale(u, shift / length))
    height = float(states.norm(across))
    if height <= COLLINEAR * float(states.norm(v)):
        raise CosetError("The first, the second and the third network lie on one line, so no plane is set by them.")
    norms = float(states.inner(a, a)), float(states.inner(a, u)) / length, float(states.inner(a, across)) / height
    points = (0.0, 0.0), (length, 0.0), (shift, height)
    moves = _difference(corners[1], corners[0]), _difference(corners[2], corners[0])
    return _Frame(corners[0], moves, (u, across), points, norms, sum(z.numel() for z in a.values()))


def _track(frame: _Frame, path: Path, like: State) -> tuple[tuple[float, float], ...]:
    """The coordinates of equally spaced points of a path."""
    places = []
    for t in (k / (TRACK - 1) for k in range(TRACK)):
        places.append(frame.place(check(with_order(path(t)).mean, like=like, where=f"the path at t = {t:.3g}")))
    return tuple(places)


def _difference(q: State, origin: State) -> State:
    """q - origin over all coordinates, in float32 or wider."""
    wide = {name: torch.promote_types(z.dtype, torch.float32) for name, z in origin.items() if is_coordinate(z)}
    return {name: q[name].to(dtype) - origin[name].to(dtype) for name, dtype in wide.items()}


def _axes(
    corners: Sequence[tuple[float, float]], points: int, margin: float
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Equally spaced coordinates around the corners, with the same margin on all sides."""
    ends = [(min(values), max(values)) for values in zip(*corners, strict=True)]
    extra = margin * max(high - low for low, high in ends)
    x, y = (
        tuple(torch.linspace(low - extra, high + extra, points, dtype=torch.float64).tolist()) for low, high in ends
    )
    return x, y


def _grid(values: list[float], width: int) -> Grid:
    return tuple(tuple(values[start : start + width]) for start in range(0, len(values), width))


def _check_options(points: int, margin: float, prior_variance: float | None) -> None:
    if points < 2:
        raise CosetError(f"A grid of {points} x {points} shows nothing: give two points or more.")
    if not 0 <= margin < math.inf:
        raise CosetError(f"The margin of a plane must be zero or positive, not {margin}.")
    if prior_variance is not None and not 0 < prior_variance < math.inf:
        raise CosetError(f"The variance of a prior must be positive and finite, not {prior_variance}.")
