"""Along a field of velocities from one time to another, without leaving the manifold."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Integral

import torch
from torch import Tensor

from coset.core.capture import captured
from coset.core.errors import CosetError
from coset.core.extras import require
from coset.core.progress import Event, Progress
from coset.weightspace.manifold import Manifold

VelocityFunction = Callable[[Tensor, Tensor], Tensor]
"""(x [n, D], t [n]) -> v [n, D], tangent at x."""
Rate = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(x [n, D], t [n]) -> (v [n, D], g [n]): a velocity, and what is added up on the way."""


@dataclass(frozen=True)
class RungeKutta:
    """An explicit method: stage i is taken at x + h sum_j stages[i][j] k_j, and the step is h sum_i weights[i] k_i."""

    stages: tuple[tuple[float, ...], ...]
    weights: tuple[float, ...]


# Heun's is the explicit trapezoidal rule.
METHODS = {
    "euler": RungeKutta(((),), (1.0,)),
    "midpoint": RungeKutta(((), (0.5,)), (0.0, 1.0)),
    "heun": RungeKutta(((), (1.0,)), (0.5, 0.5)),
    "rk4": RungeKutta(((), (0.5,), (0.0, 0.5), (0.0, 0.0, 1.0)), (1 / 6, 1 / 3, 1 / 3, 1 / 6)),
}
WORTH_CAPTURING = 8  # steps: a capture costs three of them
ADAPTIVE = ("dopri5", "dopri8", "bosh3", "adaptive_heun")  # of torchdiffeq


@dataclass(frozen=True)
class Solver:
    """How a differential equation is solved.

    steps: of the fixed methods. method: "euler" takes geodesic steps. "midpoint", "heun" and "rk4" take theirs in the
    ambient space, along the field extended by field(project(x), t), and project once after each. The extended field
    keeps the spheres as they are, so the projection moves x by no more than the error of the step and the order is that
    of the method, 2, 2 and 4 (Hairer, Lubich and Wanner, Geometric Numerical Integration, IV.4). Adaptive methods of
    torchdiffeq, "dopri5" and others, choose their own steps by `rtol` and `atol`; they know no spheres.
    noise: before each step x moves by as much times a tangent Gaussian (`weightflow`: 0.05), from `generator`.
    progress: hears of each step, or, of adaptive methods, how many percent of the time have passed.
    """

    steps: int = 32
    method: str = "heun"
    noise: float = 0.0
    generator: torch.Generator | None = None
    progress: Progress | None = None
    rtol: float = 1e-5
    atol: float = 1e-5

    def __post_init__(self) -> None:
        if not 0 <= self.noise < math.inf:
            raise CosetError(f"The noise of a sample must be finite and not negative, not {self.noise}.")
        if self.method not in (*METHODS, *ADAPTIVE):
            raise CosetError(f"There is no solver {self.method!r}: give {', '.join([*METHODS, *ADAPTIVE])}.")
        if self.method in METHODS and (not isinstance(self.steps, Integral) or self.steps < 1):
            raise CosetError(f"A flow cannot be followed in {self.steps} steps: give a whole number of one or more.")

    def in_batch(self, number: int, count: int) -> Solver:
        """The solver for one of `count` batches, which tells of the steps of all."""
        tell = self.progress
        if tell is None:
            return self

        def of_all(event: Event) -> None:
            total = event.total or 1
            tell(replace(event, done=number * total + event.done, total=count * total))

        return replace(self, progress=of_all)

    def tell(self, done: int, total: int, unit: str) -> None:
        """Let `progress` hear."""
        if self.progress is not None:
            self.progress(Event(done, total, unit))


def solve(
    field: VelocityFunction,
    x: Tensor,
    manifold: Manifold,
    solver: Solver | None = None,
    start: float = 0.0,
    stop: float = 1.0,
) -> Tensor:
    """[n, D] where dx/dt = field(x, t) leads from x [n, D] at time `start` to time `stop`, which may be the earlier."""

    def rate(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        return field(x, t), torch.zeros_like(t)

    return integrate(rate, x, manifold, solver or Solver(), start, stop)[0]


@torch.no_grad()
def integrate(
    rate: Rate, x: Tensor, manifold: Manifold, solver: Solver, start: float, stop: float
) -> tuple[Tensor, Tensor]:
    """(x at time `stop`, the integral [n] of g along the way in float64)."""
    if solver.method in ADAPTIVE:
        _require_flat(manifold, solver)
        return _adaptive(rate, x, solver, start, stop)
    method, steps, noise, generator = METHODS[solver.method], solver.steps, solver.noise, solver.generator
    x, total, done = x.clone(), x.new_zeros(len(x), dtype=torch.float64), x.new_zeros((), dtype=torch.float64)
    h = (stop - start) / steps

    def step() -> None:
        here = manifold.wrapped(x, noise, generator) if noise else x
        v, g = _step(rate, here, (start + h * done).to(x.dtype), h, method, manifold)
        x.copy_(manifold.exp(here, h * v) if solver.method == "euler" else manifold.project(here + h * v))
        total.add_(h * g)
        done.add_(1)

    drawn_from = [generator] if generator is not None and generator.device.type == "cuda" else []
    capture = x.is_cuda and steps >= WORTH_CAPTURING
    advance = captured(step, [x, total, done], drawn_from, x.device) if capture else step
    for k in range(steps):
        advance()
        solver.tell(k + 1, steps, "step")
    return x, total


def _step(rate: Rate, x: Tensor, t: Tensor, h: float, method: RungeKutta, manifold: Manifold) -> tuple[Tensor, Tensor]:
    """sum_i weights[i] k_i of the velocities, and of g in float64; t: []."""
    vs: list[Tensor] = []
    gs: list[Tensor] = []
    for row in method.stages:
        stage = x + h * _weighted(row, vs) if row else x
        v, g = rate(manifold.project(stage), (t + h * sum(row)).expand(len(x)))
        vs.append(v)
        gs.append(g.double())
    return _weighted(method.weights, vs), _weighted(method.weights, gs)


def _weighted(weights: tuple[float, ...], parts: list[Tensor]) -> Tensor:
    return torch.stack([w * part for w, part in zip(weights, parts, strict=True) if w]).sum(0)


def _adaptive(rate: Rate, x: Tensor, solver: Solver, start: float, stop: float) -> tuple[Tensor, Tensor]:
    """Progress is that of time, in percent, since nobody knows how many steps there will be."""
    odeint = require("torchdiffeq", "ode").odeint

    def both(t: Tensor, y: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        v, g = rate(y[0].to(x.dtype), t.to(x.dtype).expand(len(x)))
        # All is done once, below.
        solver.tell(min(int(100 * (float(t) - start) / (stop - start)), 99), 100, "percent")
        return v.double(), g.double()

    y = x.double(), x.new_zeros(len(x), dtype=torch.float64)
    times = torch.tensor([start, stop], dtype=torch.float64, device=x.device)
    # A step ends at the last time: fields may not be defined beyond, and values between steps are less exact.
    options = {"step_t": times[1:]}
    path, total = odeint(both, y, times, rtol=solver.rtol, atol=solver.atol, method=solver.method, options=options)
    solver.tell(100, 100, "percent")
    return path[-1].to(x.dtype), total[-1]


def _require_flat(manifold: Manifold, solver: Solver) -> None:
    if manifold.spheres:
        raise CosetError(f"The solver {solver.method!r} would leave the spheres of this manifold: use 'rk4'.")
    if solver.noise:
        raise CosetError(
            f"The solver {solver.method!r} has no steps of its own to add noise before: use 'heun' or 'euler'."
        )
