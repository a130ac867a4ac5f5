"""The manifold of canonical states: a product of spheres, one for each unit with a free factor, and a flat rest."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from coset.core.errors import CosetError
from coset.core.state import State, refuse_names
from coset.symmetries.symmetry import Symmetry
from coset.weightspace import sphere
from coset.weightspace.chart import Chart, Directions, chart, refuse_unreal
from coset.weightspace.gauge import gauge, slots


@dataclass(frozen=True, eq=False)
class Manifold:
    """Points x and tangent vectors v as tensors [..., D]: `spheres`, each [count, size] flattened, then a flat rest.

    The metric is that of the coordinates. All operations broadcast over leading dimensions and can be differentiated.

    chart
        how coordinates and states belong together
    exponents, log_powers, factors
        what `coset.weightspace.log_volume` needs: the sum of the powers that a unit's factor takes in all weights, for
        each scaling; the sum over all conditions of log |power|; how many factors each scaling has
    """

    chart: Chart
    exponents: Mapping[str, float] = field(repr=False)
    log_powers: float = field(repr=False)
    factors: Mapping[str, int] = field(default_factory=dict, repr=False)

    @property
    def spheres(self) -> tuple[Directions, ...]:
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

    def coordinates(self, state: State) -> Tensor:
        """[D] of a canonical state, [n, D] of a population."""
        return self.chart.coordinates(state)

    def state(self, x: Tensor, like: State) -> dict[str, Tensor]:
        """The state at x, or population at [n, D]; dtypes and what has no coordinates are those of `like`."""
        self.check(x)
        return self.chart.state(x, like)

    def project(self, x: Tensor) -> Tensor:
        """The nearest point: directions get norm one."""
        return self._each(sphere.project, lambda x: x, x)

    def tangent(self, x: Tensor, v: Tensor) -> Tensor:
        """The part of v that is tangent at x."""
        return self._each(sphere.tangent, lambda x, v: v, x, v)

    def exp(self, x: Tensor, v: Tensor) -> Tensor:
        """Where the geodesic from x with velocity v is at time one."""
        return self._each(sphere.exp, torch.add, x, v)

    def log(self, x: Tensor, y: Tensor) -> Tensor:
        """The velocity at x of the shortest geodesic to y."""
        return self._each(sphere.log, lambda x, y: y - x, x, y)

    def transport(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """v, tangent at x, carried in parallel along the geodesic to y."""
        return self._each(sphere.transport, lambda x, y, v: v, x, y, v)

    def geodesic(self, x: Tensor, y: Tensor, t: Tensor | float) -> Tensor:
        """The point at time t, a number or [...], of the shortest geodesic from x to y."""
        time = torch.as_tensor(t, dtype=x.dtype, device=x.device)

        def flat(x: Tensor, y: Tensor) -> Tensor:
            return x + time.unsqueeze(-1) * (y - x)

        return self._each(lambda x, y: sphere.geodesic(x, y, time.unsqueeze(-1)), flat, x, y)

    def velocity(self, x: Tensor, y: Tensor, t: Tensor | float) -> Tensor:
        """The derivative of `geodesic` in t."""
        time = torch.as_tensor(t, dtype=x.dtype, device=x.device)

        def flat(x: Tensor, y: Tensor) -> Tensor:
            return (y - x) * torch.ones_like(time).unsqueeze(-1)

        return self._each(lambda x, y: sphere.velocity(x, y, time.unsqueeze(-1)), flat, x, y)

    def inner(self, x: Tensor, u: Tensor, v: Tensor) -> Tensor:
        """[...] <u, v> of vectors tangent at x."""
        self.check(x, u, v)
        return (u * v).sum(-1)

    def dist(self, x: Tensor, y: Tensor) -> Tensor:
        """[...] the length of the shortest geodesic: sqrt(sum of squared angles + |flat difference|^2)."""
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
        """[n, D] uniform directions, and N(0, sigma^2) for the flat rest, on the device of the generator."""
        device = generator.device if generator is not None else torch.device("cpu")
        noise = torch.randn((n, self.size), generator=generator, device=device, dtype=dtype)
        return self.project(torch.cat([noise[:, : self._round], sigma * noise[:, self._round :]], -1))

    def log_prob(self, x: Tensor, sigma: float = 1.0) -> Tensor:
        """[...] log density of `random`, by area and volume."""
        _check_deviation(sigma)
        self.check(x)
        areas = sum(block.count * sphere.log_area(block.size) for block in self.spheres)
        return _normal(x[..., self._round :], sigma) - areas

    def wrapped(self, mean: Tensor, sigma: float, generator: torch.Generator | None = None) -> Tensor:
        """[..., D] a draw around each mean: exp(mean, v) with v ~ N(0, sigma^2) in all tangent directions."""
        device = generator.device if generator is not None else mean.device
        noise = torch.randn(mean.shape, generator=generator, device=device, dtype=mean.dtype).to(mean.device)
        return self.exp(mean, sigma * self.tangent(mean, noise))

    def wrapped_log_prob(self, x: Tensor, mean: Tensor, sigma: float) -> Tensor:
        """[...] log density of `wrapped`, all windings summed: see `coset.weightspace.sphere.wrapped_log_prob`."""
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
        """Refuse points or vectors with another number of coordinates."""
        for x in points:
            if x.dim() == 0 or x.shape[-1] != self.size:
                raise CosetError(f"A point of this manifold has {self.size} coordinates, not shape {tuple(x.shape)}.")


def manifold(sym: Symmetry, like: State | None = None, *, polar: bool = False) -> Manifold:
    """What the canonical states of a symmetry live on (see `coset.canonicalize`): spheres and a flat rest.

    For every unit with a free positive factor the direction of the weights that fix it, of norm one, is a point of a
    sphere; where that is a single weight, it is 1 or -1 and no coordinate. All other entries of floating tensors are
    flat, running statistics too.

    like
        a state, of which the floating tensors count; without it all tensors of the symmetry, but scalar buffers
    polar
        every weight (a trained tensor with two or more axes, and not just one entry) that no direction has a part in,
        such as that of the last layer, is a direction of its own and, as one more flat coordinate, the logarithm of its
        norm
    """
    if like is None:
        names = [name for name, axes in sym.axes.items() if axes or name not in sym.buffers]
    else:
        refuse_names(sym.missing(like), [], "the state")
        for name in [name for name in sym.axes if name in like and name not in sym.buffers]:
            refuse_unreal(name, like[name])
        names = [name for name, x in like.items() if x.is_floating_point()]
    exponents: dict[str, float] = {}
    for slot in slots(sym, "scaling", names):
        for name, power in slot.powers.items():
            exponents[name] = exponents.get(name, 0.0) + power * slot.entries
    sizes = {scaling.units: scaling.copies * scaling.size for scaling in sym.scalings}
    log_powers = sum(sizes[c.units] * math.log(abs(c.power)) for c in gauge(sym, "scaling", names))
    factors = {scaling.name: scaling.copies * scaling.size for scaling in sym.scalings if scaling.name in exponents}
    return Manifold(chart(sym, names, polar), exponents, log_powers, factors)


def _check_deviation(sigma: float) -> None:
    if not 0 < sigma < math.inf:
        raise CosetError(f"A density needs a positive and finite deviation, not {sigma}.")


def _normal(x: Tensor, sigma: float) -> Tensor:
    """[...] log density of N(0, sigma^2 I) at x, [..., k]."""
    return -(x / sigma).square().sum(-1) / 2 - x.shape[-1] * math.log(sigma * math.sqrt(2 * math.pi))
