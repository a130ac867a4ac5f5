"""Curves through model space: mixtures of control points by functions of t."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from coset.core import state as states
from coset.core.checkpoint import CURVE as METADATA, load_state, open_state, save_state
from coset.core.contents import description, once, reading, tensor
from coset.core.errors import CosetError, StateError
from coset.core.files import require_file
from coset.core.show import Shown, Table
from coset.core.state import StateLike, check, owners, tie
from coset.solutions.as_solution import with_order
from coset.solutions.dirac import Dirac
from coset.solutions.gaussian import Gaussian
from coset.solutions.gaussian_forms import as_gaussian
from coset.solutions.load import unpack
from coset.solutions.solution import Solution


class Curve(Shown, ABC):
    """t -> sum_k B_k(t) theta_k for control points theta_0 ... theta_n, of which the first and the last are the ends.

    The functions B_k sum to one, and sum_k B_k(t) k / n = t, so that control points at equal distances on a line make
    the line at constant speed. Between Gaussians the means mix like this, and the standard deviations s_k as
    prod_k s_k^B_k(t), which is positive wherever all of them are; the noise mixes like the means.

    Statistics of norms mix like weights, which is right at the ends only: recompute them at every point that is
    evaluated, as `barrier(..., repair=data)` does.

    Args:
        points: Two control points or more, in order: Diracs or Gaussians, states or modules. A curve with a
            Gaussian has Gaussians only.

    Raises:
        CosetError: If there are fewer than two, one is neither a Dirac nor a Gaussian, or only some have noise.
        StateError: If their names or shapes differ.

    Example:
        >>> curve = coset.Bezier(a, coset.state.lerp(a, b, 0.5), b)
        >>> isinstance(curve, coset.Curve), curve(0.5)
        (True, Dirac(4 tensors, 1,210 coordinates))
    """

    kind: ClassVar[str]

    def __init__(self, *points: StateLike) -> None:
        if len(points) < 2:
            raise CosetError(f"A {type(self).__name__} needs two ends, so {len(points)} control points are too few.")
        solutions = [with_order(point) for point in points]
        for k, q in enumerate(solutions[1:], 1):
            check(q.mean, like=solutions[0].mean, where=f"control point {k}")
        if len({q.noise is None for q in solutions}) > 1:
            raise CosetError("A curve needs the noise of all control points or of none, and only some have it.")
        kinds = [plain(q) for q in solutions]
        random = any(isinstance(q, Gaussian) for q in kinds)
        self.points: tuple[Dirac | Gaussian, ...] = tuple(as_gaussian(q) if random else q for q in kinds)

    @staticmethod
    @abstractmethod
    def basis(t: Tensor, n: int) -> Tensor:
        """B_0 ... B_n; without constants that would have to be sent to a device.

        Args:
            t: Any number of times, (...).
            n: One less than there are control points.

        Returns:
            The weights of the control points, (..., n + 1).
        """

    def __call__(self, t: float) -> Solution:
        """The point of the curve at a time.

        Args:
            t: From 0 to 1; of a `Bezier` any number.

        Returns:
            A Dirac or a Gaussian.
        """
        weights = self.basis(torch.tensor(t, dtype=torch.float64), len(self.points) - 1)
        tied = owners(self.points[0].mean)
        mean = tie(_mixed([q.mean for q in self.points], weights), tied)
        noises = [q.noise for q in self.points if q.noise is not None]
        noise = float(weights @ torch.tensor(noises, dtype=torch.float64)) if noises else None
        deviations = [q.std for q in self.points if isinstance(q, Gaussian)]
        if not deviations:
            return Dirac(mean, noise)
        std = {name: _product([s[name] for s in deviations], weights) for name in deviations[0]}
        return Gaussian(mean, std, noise)

    def save(self, path: str | Path) -> None:
        """Write a file, atomically; `load_curve` reads it.

        Args:
            path: Its name, which ends with `.safetensors`.
        """
        packed = [q.pack() for q in self.points]
        tensors = {f"{k}.{name}": x for k, (_, part) in enumerate(packed) for name, x in part.items()}
        description = {"kind": self.kind, "points": [own for own, _ in packed], "owners": owners(tensors)}
        save_state(tensors, path, {METADATA: json.dumps(description)})

    def _shown(self) -> Table:
        return Table(repr(self), [(f"control point {k}", repr(q)) for k, q in enumerate(self.points)])

    def __repr__(self) -> str:
        """In one line; the table of `_shown` is for notebooks."""
        return f"{type(self).__name__}({len(self.points)} control points, {self.points[0]!r})"


def is_curve(path: str | Path) -> bool:
    """Whether a file holds a curve, and not a single network."""
    path = Path(path)
    return path.suffix == ".safetensors" and path.is_file() and METADATA in open_state(path).metadata


def plain(q: Solution) -> Dirac | Gaussian:
    """The solution, refused if it is of a kind that no curve goes through."""
    if not isinstance(q, Dirac | Gaussian):
        raise CosetError(f"A curve goes through Diracs or Gaussians, not through a {type(q).__name__}.")
    return q


def _mixed(points: list[dict[str, Tensor]], weights: Tensor) -> dict[str, Tensor]:
    return states.mean(states.stack(points), weights)


def _product(deviations: list[Tensor], weights: Tensor) -> Tensor:
    """prod_k s_k^w_k, where 0^0 = 1."""
    wide = torch.stack([s.double() for s in deviations])
    powers = wide ** weights.to(wide.device).reshape(-1, *[1] * (wide.ndim - 1))
    return powers.prod(0).to(deviations[0].dtype)


class Bezier(Curve):
    """B_k(t) = C(n, k) t^k (1-t)^(n-k), the polynomials of Bernstein; with one control point tatro2020 Eq. 7.

    Every B_k lies in [0, 1] on [0, 1], so the curve stays in the convex hull of its control points.

    Args:
        points: The control points, as of any `Curve`.

    Example:
        >>> line = coset.Bezier(a, b)
        >>> coset.state.allclose(line(0.25), coset.state.lerp(a, b, 0.25), atol=1e-6)
        True
    """

    kind: ClassVar[str] = "bezier"

    @staticmethod
    def basis(t: Tensor, n: int) -> Tensor:
        return torch.stack([math.comb(n, k) * t**k * (1 - t) ** (n - k) for k in range(n + 1)], -1)


class Chain(Curve):
    """B_k(t) = max(1 - |n t - k|, 0): straight from each control point to the next, in equal times.

    Args:
        points: The control points, as of any `Curve`.

    Example:
        >>> corner = coset.Chain(a, model, b)
        >>> coset.state.allclose(corner(0.5), model)
        True
    """

    kind: ClassVar[str] = "chain"

    def __call__(self, t: float) -> Solution:
        if not 0 <= t <= 1:
            raise CosetError(f"A Chain goes from t = 0 to 1, not to {t}.")
        return super().__call__(t)

    @staticmethod
    def basis(t: Tensor, n: int) -> Tensor:
        return torch.stack([(1 - (n * t - k).abs()).clamp(min=0) for k in range(n + 1)], -1)


CURVES: dict[str, type[Curve]] = {kind.kind: kind for kind in (Bezier, Chain)}


def load_curve(path: str | Path, device: str | torch.device = "cpu") -> Curve:
    """The curve that `Curve.save` or `coset curve` wrote.

    Args:
        path: The file.
        device: Where its tensors are to lie.

    Returns:
        A `Bezier` or a `Chain`.

    Raises:
        StateError: If there is no such file, or no curve in it.

    Example:
        >>> coset.Bezier(a, b).save("curve.safetensors")
        >>> coset.load_curve("curve.safetensors")
        Bezier(2 control points, Dirac(4 tensors, 1,210 coordinates))
    """
    path = Path(path)
    require_file(path, StateError)
    text = open_state(path).metadata.get(METADATA) if path.suffix == ".safetensors" else None
    if text is None:
        raise StateError(f"{path} holds no curve: `Curve.save` and `coset curve` write such files.")
    tensors = load_state(path, device)
    with reading(path, "a curve"):
        record = description(text)
        state = once(record.names("owners"), lambda name: tensor(tensors, name))
        points = []
        for k, point in enumerate(record.objects("points")):
            own = {name.partition(".")[2]: x for name, x in state.items() if name.partition(".")[0] == str(k)}
            points.append(unpack(point, own))
        return CURVES[record.text("kind", tuple(CURVES))](*points)
