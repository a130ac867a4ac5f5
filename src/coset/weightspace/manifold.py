"""The manifold of canonical states: a product of spheres, one for each unit with a free factor, and a flat rest."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from coset.core.errors import CosetError, StateError
from coset.core.show import Shown, Table
from coset.core.state import StateLike, as_state, refuse_names
from coset.symmetries.symmetry import Symmetry
from coset.weightspace import sphere
from coset.weightspace.canonical_chart import Chart, Directions, canonical_chart
from coset.weightspace.canonical_order import in_the_order_of
from coset.weightspace.canonical_scales import refuse_whole_numbers, scale_conditions, scaled_weights


@dataclass(frozen=True, eq=False, repr=False)
class Manifold(Shown):
    """What canonical states live on: spheres, each [count, size] flattened, then a flat rest.

    Points x and tangent vectors v are tensors [..., D]. The metric is that of the coordinates. All operations broadcast
    over leading dimensions and can be differentiated. `coset.manifold` makes it.

    Args:
        chart: how coordinates and states belong together.
        exponents: for `coset.log_volume`, the sum of the powers that a unit's factor takes in all weights, for each
            scaling.
        log_powers: for `coset.log_volume`, the sum over all conditions of log |power|.
        factors: for `coset.log_volume`, how many factors each scaling has.
        sym: what `state` finds the order of the units by, if they have signs or whole numbers of their own.

    Example:
        >>> M = coset.manifold(sym)
        >>> x, y = M.random(2, torch.Generator().manual_seed(0))
        >>> torch.allclose(M.exp(x, M.log(x, y)), y, atol=1e-5)
        True
    """

    chart: Chart
    exponents: Mapping[str, float]
    log_powers: float
    factors: Mapping[str, int] = field(default_factory=dict)
    sym: Symmetry | None = None

    def _shown(self) -> Table:
        title = f"Manifold of dimension {self.dimension:,}, in {self.size:,} coordinates"
        spheres = [(f"{block.count:,} spheres", f"in R^{block.size:,}", block.name) for block in self.spheres]
        return Table(title, [("flat", f"{self.flat:,} coordinates"), *spheres])

    @property
    def spheres(self) -> tuple[Directions, ...]:
        """Blocks of unit vectors, whose coordinates come first."""
        return self.chart.directions + self.chart.polar

    @property
    def flat(self) -> int:
        """How many coordinates are Euclidean."""
        return self.size - self._round

    @property
    def size(self) -> int:
        """D, the number of coordinates."""
        return len(self.chart.index) + len(self.chart.polar)

    @property
    def dimension(self) -> int:
        """That of the manifold: a sphere in R^d has d - 1."""
        return self.size - sum(block.count for block in self.spheres)

    @property
    def _round(self) -> int:
        return sum(block.count * block.size for block in self.spheres)

    def coordinates(self, state: StateLike) -> Tensor:
        """The coordinates of canonical networks.

        Args:
            state: a canonical state, a module or a Dirac; or the tensors of a population.

        Returns:
            [D], or [n, D] of a population.
        """
        return self.chart.coordinates(as_state(state))

    def state(self, x: Tensor, like: StateLike) -> dict[str, Tensor]:
        """The network at a point: the inverse of `coordinates`.

        What units have beside coordinates, such as the sign of their only weight or whole numbers in a buffer, is that
        of the units of `like` that are nearest to them.

        Args:
            x: [D], or [n, D] for a population.
            like: a state, a module or a Dirac, whose dtypes and tensors without coordinates the result has. It need
                not be canonical; or a population, with one network for each point.

        Returns:
            The tensors of a state, or of a population.
        """
        self.check(x)
        own = as_state(like, "the state to be like")
        if self.sym is not None and self.chart.units_have_more(own, self.sym):
            own = in_the_order_of(x, own, self.chart, self.sym)
        return self.chart.state(x, own)

    def project(self, x: Tensor) -> Tensor:
        """The nearest point: directions get norm one.

        Args:
            x: [..., D], near the manifold.
        """
        return self._each(sphere.project, lambda x: x, x)

    def tangent(self, x: Tensor, v: Tensor) -> Tensor:
        """The part of v that is tangent at x.

        Args:
            x: points [..., D].
            v: vectors [..., D].
        """
        return self._each(sphere.tangent, lambda x, v: v, x, v)

    def exp(self, x: Tensor, v: Tensor) -> Tensor:
        """Where the geodesic from x with velocity v is at time one.

        Args:
            x: points [..., D].
            v: vectors [..., D], tangent at x.
        """
        return self._each(sphere.exp, torch.add, x, v)

    def log(self, x: Tensor, y: Tensor) -> Tensor:
        """The velocity at x of the shortest geodesic to y.

        Args:
            x: points [..., D].
            y: points [..., D].
        """
        return self._each(sphere.log, lambda x, y: y - x, x, y)

    def transport(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """A tangent vector carried in parallel along the geodesic from x to y.

        Args:
            x: points [..., D].
            y: points [..., D].
            v: vectors [..., D], tangent at x.
        """
        return self._each(sphere.transport, lambda x, y, v: v, x, y, v)

    def geodesic(self, x: Tensor, y: Tensor, t: Tensor | float) -> Tensor:
        """The point at time t of the shortest geodesic from x to y.

        Args:
            x: points [..., D].
            y: points [..., D].
            t: a number or [...]; x is at 0 and y at 1.
        """
        time = torch.as_tensor(t, dtype=x.dtype, device=x.device)

        def flat(x: Tensor, y: Tensor) -> Tensor:
            return x + time.unsqueeze(-1) * (y - x)

        return self._each(lambda x, y: sphere.geodesic(x, y, time.unsqueeze(-1)), flat, x, y)

    def velocity(self, x: Tensor, y: Tensor, t: Tensor | float) -> Tensor:
        """The derivative of `geodesic` in t.

        Args:
            x: points [..., D].
            y: points [..., D].
            t: a number or [...].
        """
        time = torch.as_tensor(t, dtype=x.dtype, device=x.device)

        def flat(x: Tensor, y: Tensor) -> Tensor:
            return (y - x) * torch.ones_like(time).unsqueeze(-1)

        return self._each(lambda x, y: sphere.velocity(x, y, time.unsqueeze(-1)), flat, x, y)

    def inner(self, x: Tensor, u: Tensor, v: Tensor) -> Tensor:
        """The inner product of vectors tangent at x.

        Args:
            x: points [..., D].
            u: vectors [..., D].
            v: vectors [..., D].

        Returns:
            [...].
        """
        self.check(x, u, v)
        return (u * v).sum(-1)

    def dist(self, x: Tensor, y: Tensor) -> Tensor:
        """The length of the shortest geodesic: sqrt(sum of squared angles + |flat difference|^2).

        Args:
            x: points [..., D].
            y: points [..., D].

        Returns:
            [...].
        """
        parts = [sphere.angle(a, b) for a, b in zip(self._blocks(x), self._blocks(y), strict=True)]
        rest = y[..., self._round :] - x[..., self._round :]
        length: Tensor = torch.linalg.vector_norm(torch.cat([*parts, rest], -1), dim=-1)
        return length

    def random(
        self,
        n: int,
        generator: torch.Generator | None = None,
        sigma: float = 1.0,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Points with uniform directions, and N(0, sigma^2) for the flat rest, on the device of the generator.

        Args:
            n: how many.
            generator: what they come from; None is torch's own.
            sigma: deviation of the flat rest.
            dtype: of the points.

        Returns:
            [n, D].
        """
        device = generator.device if generator is not None else torch.device("cpu")
        noise = torch.randn((n, self.size), generator=generator, device=device, dtype=dtype)
        return self.project(torch.cat([noise[:, : self._round], sigma * noise[:, self._round :]], -1))

    def log_prob(self, x: Tensor, sigma: float = 1.0) -> Tensor:
        """The log density of `random`, by area and volume.

        Args:
            x: points [..., D].
            sigma: deviation of the flat rest.

        Returns:
            [...].
        """
        _check_deviation(sigma)
        self.check(x)
        areas = sum(block.count * sphere.log_area(block.size) for block in self.spheres)
        return _normal(x[..., self._round :], sigma) - areas

    def wrapped(self, mean: Tensor, sigma: float, generator: torch.Generator | None = None) -> Tensor:
        """A draw around each mean: exp(mean, v) with v ~ N(0, sigma^2) in all tangent directions.

        Args:
            mean: points [..., D].
            sigma: deviation in every direction.
            generator: what v comes from; None is torch's own.

        Returns:
            [..., D].
        """
        device = generator.device if generator is not None else mean.device
        noise = torch.randn(mean.shape, generator=generator, device=device, dtype=mean.dtype).to(mean.device)
        return self.exp(mean, sigma * self.tangent(mean, noise))

    def wrapped_log_prob(self, x: Tensor, mean: Tensor, sigma: float) -> Tensor:
        """The log density of `wrapped`, all windings summed: see `coset.weightspace.sphere.wrapped_log_prob`.

        Args:
            x: points [..., D].
            mean: points [..., D].
            sigma: deviation in every direction.

        Returns:
            [...].
        """
        _check_deviation(sigma)
        pairs = zip(self._blocks(x), self._blocks(mean), strict=True)
        round_parts = [sphere.wrapped_log_prob(a, m, sigma).sum(-1) for a, m in pairs]
        flat = _normal(x[..., self._round :] - mean[..., self._round :], sigma)
        return flat + sum(round_parts)

    def _each(self, on_sphere: Callable[..., Tensor], on_flat: Callable[..., Tensor], *args: Tensor) -> Tensor:
        """One function for the unit vectors [..., count, size] of every block, another for the flat rest."""
        blocks = zip(*(self._blocks(x) for x in args), strict=True)
        parts = [on_sphere(*block).flatten(-2) for block in blocks]
        rest = on_flat(*(x[..., self._round :] for x in args))
        lead = torch.broadcast_shapes(*(part.shape[:-1] for part in (*parts, rest)))  # type: ignore[no-untyped-call]
        return torch.cat([part.expand(*lead, -1) for part in (*parts, rest)], -1)

    def _blocks(self, x: Tensor) -> list[Tensor]:
        self.check(x)
        sizes = [block.count * block.size for block in self.spheres]
        parts = torch.split(x[..., : self._round], sizes, -1) if sizes else ()
        return [torch.unflatten(p, -1, (b.count, b.size)) for p, b in zip(parts, self.spheres, strict=True)]

    def check(self, *points: Tensor) -> None:
        """Refuse points or vectors with another number of coordinates.

        Args:
            points: tensors [..., D].
        """
        for x in points:
            if x.dim() == 0 or x.shape[-1] != self.size:
                raise CosetError(f"A point of this manifold has {self.size} coordinates, not shape {tuple(x.shape)}.")


def manifold(sym: Symmetry, like: StateLike | None = None, *, polar: bool = False) -> Manifold:
    """The manifold of the canonical states of a symmetry (see `coset.canonicalize`): spheres and a flat rest.

    For every unit with a free positive factor the direction of the weights that fix it, of norm one, is a point of a
    sphere; where that is a single weight, it is 1 or -1 and no coordinate. All other entries of floating tensors are
    flat, running statistics too.

    Args:
        sym: the symmetry of the network.
        like: a state, a module or a Dirac, of which the floating tensors count; without it all tensors of the
            symmetry, but scalar buffers.
        polar: every weight (a trained tensor with two or more axes, and not just one entry) that no direction has a
            part in, such as that of the last layer, is a direction of its own and, as one more flat coordinate, the
            logarithm of its norm.

    Returns:
        The manifold, with maps between its points and states.

    Raises:
        StateError: weights are not real.
        SymmetryError: scalings act on the same weights, so that none can be fixed alone.

    Example:
        >>> M = coset.manifold(sym)
        >>> x = M.coordinates(coset.canonicalize(a, sym).state)
        >>> x.shape == (M.size,), M.dimension < M.size
        (True, True)
    """
    if like is None:
        names = [name for name, axes in sym.axes.items() if axes or name not in sym.buffers]
    else:
        tensors = as_state(like)
        refuse_names(sym.missing(tensors), [], "the state")
        for name in [name for name in sym.axes if name in tensors and name not in sym.buffers]:
            if tensors[name].is_complex():
                raise StateError(f"Tensor '{name}' is {tensors[name].dtype}, and coordinates are real numbers.")
            refuse_whole_numbers(name, tensors[name])
        names = [name for name, x in tensors.items() if x.is_floating_point()]
    exponents: dict[str, float] = {}
    for slot in scaled_weights(sym, "scaling", names):
        for name, power in slot.powers.items():
            exponents[name] = exponents.get(name, 0.0) + power * slot.entries
    sizes = {scaling.units: scaling.copies * scaling.size for scaling in sym.scalings}
    log_powers = sum(sizes[c.units] * math.log(abs(c.power)) for c in scale_conditions(sym, "scaling", names))
    factors = {scaling.name: scaling.copies * scaling.size for scaling in sym.scalings if scaling.name in exponents}
    return Manifold(canonical_chart(sym, names, polar), exponents, log_powers, factors, sym)


def _check_deviation(sigma: float) -> None:
    if not 0 < sigma < math.inf:
        raise CosetError(f"A density needs a positive and finite deviation, not {sigma}.")


def _normal(x: Tensor, sigma: float) -> Tensor:
    """[...] log density of N(0, sigma^2 I) at x, [..., k]."""
    return -(x / sigma).square().sum(-1) / 2 - x.shape[-1] * math.log(sigma * math.sqrt(2 * math.pi))
