"""Hamiltonian Monte Carlo on all of the data."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from coset.core.capture import captured
from coset.core.errors import CosetError
from coset.core.functional import matmul_precision
from coset.data import Split
from coset.inference.posterior import ChainState, LogPosterior, require_noise
from coset.inference.sampling import Chains
from coset.solutions.ensemble import Ensemble
from coset.solutions.solution import Solution
from coset.training.loop import SolutionRun
from coset.training.network import Network, TrainingProblem
from coset.training.optimizers import check_choices, check_positive

GAMMA, DELAY, KAPPA = 0.05, 10, 0.75  # as in Hoffman & Gelman 2014 and in Stan
BOLDER = 10  # the steps that are tried are drawn to so many times the first, since short ones cost more


class DualAveraging:
    """log e, for some chains (rows,), such that their mean acceptance becomes `target` (Hoffman & Gelman 2014, Eq. 6).

    After m trajectories of acceptance a: h <- (1 - 1/(m + 10)) h + (target - a) / (m + 10),
    log e = mu - sqrt(m) / 0.05 h, and the average that is used in the end,
    log e' <- m^-0.75 log e + (1 - m^-0.75) log e'.
    """

    def __init__(self, step: Tensor, target: float) -> None:
        """step: (rows,) float64, where to begin."""
        self._target = target
        self._count = torch.zeros_like(step)
        self._mean = torch.zeros_like(step)
        self._centre = torch.zeros_like(step)
        self._log_step = torch.zeros_like(step)
        self._log_average = torch.zeros_like(step)
        self.state = [self._count, self._mean, self._centre, self._log_step, self._log_average]
        self.restart(step)

    def restart(self, step: Tensor) -> None:
        """Forget the past, and begin at `step`."""
        for x in (self._count, self._mean):
            x.zero_()
        self._log_step.copy_(step.log())
        self._log_average.copy_(step.log())
        self._centre.copy_(step.log() + math.log(BOLDER))

    def update(self, acceptance: Tensor) -> None:
        """Take in the acceptance (rows,) of a trajectory."""
        self._count += 1
        self._mean.lerp_(self._target - acceptance, 1 / (self._count + DELAY))
        self._log_step.copy_(self._centre - self._count.sqrt() / GAMMA * self._mean)
        self._log_average.lerp_(self._log_step, self._count**-KAPPA)

    @property
    def step(self) -> Tensor:
        """To try next, (rows,)."""
        return self._log_step.exp()

    @property
    def average(self) -> Tensor:
        """To use from now on, (rows,)."""
        return self._log_average.exp()


FIRST_STEP = 0.01
SHRINKAGE, SMALL = 5, 1e-3  # a variance of n draws counts n, and 1e-3 counts 5


class WarmUp:
    """For each chain by itself, as Stan does (reference manual, "HMC algorithm parameters").

    step: (rows,) float64, by dual averaging. variance: (rows, p), the inverse of the diagonal mass: that of the
    chain's own draws in a window, shrunk, after which the steps are adapted anew.
    """

    def __init__(self, start: Tensor, target: float, windows: list[tuple[int, int]], trajectories: int) -> None:
        """start: (rows, p). target: the acceptance. trajectories: after so many the warm-up ends."""
        self._windows, self._trajectories = windows, trajectories
        self.step = torch.full((len(start),), FIRST_STEP, dtype=torch.float64, device=start.device)
        self.variance = torch.ones_like(start)
        self._averaging = DualAveraging(self.step, target)
        self._mean, self._squares = (torch.zeros_like(start, dtype=torch.float64) for _ in range(2))
        self.state = [self.step, self.variance, self._mean, self._squares, *self._averaging.state]

    def update(self, done: int, weights: Tensor, acceptance: Tensor) -> None:
        """Take in where trajectory number `done`, counted from 1, ended (rows, p), and its acceptance (rows,)."""
        if done > self._trajectories:
            return
        self._averaging.update(acceptance)
        for begin, end in self._windows:
            if begin < done <= end:
                self._take(weights, done - begin)
            if done == end:
                self._rescale(end - begin)
        self.step.copy_(self._averaging.average if done == self._trajectories else self._averaging.step)

    def _take(self, weights: Tensor, count: int) -> None:
        """Welford's sums."""
        if count == 1:
            self._mean.zero_()
            self._squares.zero_()
        deviation = weights - self._mean
        self._mean += deviation / count
        self._squares += deviation * (weights - self._mean)

    def _rescale(self, count: int) -> None:
        variance = self._squares / (count - 1)
        self.variance.copy_((count * variance + SHRINKAGE * SMALL) / (count + SHRINKAGE))
        self._averaging.restart(self._averaging.average)


def windows(trajectories: int) -> list[tuple[int, int]]:
    """Stan's windows (begin, end] of a warm-up, each about twice as long as the one before.

    None in the first 75 trajectories, which travel, and in the last 50, which settle the step; in a warm-up of fewer
    than 150 trajectories it is one window from 15 to 90 percent, and none at all in fewer than 20.
    """
    if trajectories < 20:
        return []
    if trajectories < 150:
        return [(round(0.15 * trajectories), round(0.9 * trajectories))]
    all_windows, begin, size, last = [], 75, 25, trajectories - 50
    while begin < last:
        end = last if begin + 3 * size > last else begin + size
        all_windows.append((begin, end))
        begin, size = end, 2 * size
    return all_windows


class Leapfrog:
    """Moves weights w and momenta r, each (rows, p), under H(w, r) = -log p(w) + sum_i s_i r_i^2 / 2.

    density: weights to a `ChainState`. at: where the chains are, and momentum: r; both are changed in place.
    step: (rows, 1), the length e of a step. variance: (rows, p), the inverse s of the diagonal mass.
    """

    def __init__(self, density: Callable[[Tensor], ChainState], start: ChainState) -> None:
        self._density = density
        self.at = start.clone()
        self.momentum = torch.zeros_like(start.weights)
        self.step = torch.ones_like(start.weights[:, :1])
        self.variance = torch.ones_like(start.weights)
        self._advance: Callable[[], None] | None = None

    def run(self, steps: int) -> None:
        """Some steps; captured at the first call, after which all has to stay where it is."""
        if self._advance is None:
            self._advance = self._step
            if self.momentum.is_cuda:
                self._advance = captured(self._step, [*self.at.tensors, self.momentum], [], self.momentum.device)
        for _ in range(steps):
            self._advance()

    def _step(self) -> None:
        """r <- r + e/2 grad log p(w), w <- w + e s r, r <- r + e/2 grad log p(w) (Neal 2011, Eqs. 2.28 to 2.30)."""
        self._kick()
        self.at.weights.addcmul_(self.step * self.variance, self.momentum)
        self.at.copy_(self._density(self.at.weights))
        self._kick()

    def _kick(self) -> None:
        self.momentum.addcmul_(self.step, self.at.gradient, value=0.5)

    def energy(self) -> Tensor:
        """H, (rows,) float64."""
        return (self.variance * self.momentum.square()).sum(1, dtype=torch.float64) / 2 - self.at.log_density


DIVERGENT = 1000.0  # an error of the energy above which a trajectory has left the dynamics, as in Stan


@dataclass(frozen=True, repr=False)
class HMC(Chains):
    """Hamiltonian Monte Carlo: draws from p(w | data)^(1/T), exact but for how long the chains run (Neal 2011).

    The prior is N(0, v). A trajectory draws momenta r ~ N(0, T M), follows H(w, r) = -log p(w, data) + r' M^-1 r / 2
    for `steps` leapfrog steps of length e, and is accepted with probability min(1, exp(-(H' - H) / T)). An epoch is one
    trajectory, of all chains at once; its loss and accuracy are those of where it ended. The model runs as in
    evaluation: without dropout, and with the statistics of its norms fixed. The solution is an `Ensemble`.

    Args:
        chains: How many, each from its own start.
        draws: Of each chain.
        warm_up: Trajectories before, in which e and M are adapted, for each chain by itself.
        steps: More make draws less alike, and cost as much.
        acceptance: What e is adapted to.
        jitter: e is e (1 - jitter) to e (1 + jitter), uniformly, for each trajectory and chain, so that no orbit
            closes.
        mass: The "unit" matrix, or "diagonal", from the variances of the weights in the warm-up, which must then be
            long: with few draws they are mostly noise, and worse than nothing.
        temperature: T.
        prior_variance: v.
        noise: Standard deviation of the targets, which a regression needs.
        precision: "float64" runs the model in 64 bits, whatever its own; draws are in its own.
        chunk: Examples at once, which decides the memory only.

    Raises:
        CosetError: If a setting is out of range.

    Example:
        >>> (chains,) = coset.fit(model, digits.train, coset.HMC(chains=2, draws=3, warm_up=2, steps=2))
        >>> len(chains)
        6
    """

    chains: int = 4
    draws: int = 500
    warm_up: int = 500
    steps: int = 64
    acceptance: float = 0.8
    jitter: float = 0.2
    mass: Literal["unit", "diagonal"] = "unit"
    temperature: float = 1.0
    prior_variance: float = 1.0
    noise: float | None = None
    precision: Literal["float32", "float64"] = "float32"
    chunk: int = 8192

    def __post_init__(self) -> None:
        check_choices(self)
        check_positive(self, "chains", "draws", "warm_up", "steps", "chunk")
        check_positive(self, "temperature", "prior_variance", "noise")
        if not 0 < self.acceptance < 1:
            raise CosetError(f"HMC: acceptance must be between 0 and 1, not {self.acceptance!r}.")
        if not 0 <= self.jitter < 1:
            raise CosetError(f"HMC: jitter must be in [0, 1), not {self.jitter!r}.")

    @property
    def epochs(self) -> int:  # type: ignore[override]
        return self.warm_up + self.draws

    def start(self, problem: TrainingProblem) -> SolutionRun:
        return _Hamiltonian(self, problem)


class _Hamiltonian(SolutionRun):
    """Chains under way. draws: (rows, draws, p)."""

    def __init__(self, settings: HMC, problem: TrainingProblem) -> None:
        noise = require_noise(settings, problem.likelihood, settings.noise)
        self._settings, self._network = settings, problem.network
        self._classifies = problem.classifies
        self._problem = _double(problem) if settings.precision == "float64" else problem
        self._problem.network.model.eval()
        start = self._problem.start.clone()
        density = LogPosterior(self._problem, settings.prior_variance, start.new_tensor(noise), settings.chunk)
        self._at = density(start)
        self._leapfrog = Leapfrog(density, self._at)
        slow = windows(settings.warm_up) if settings.mass == "diagonal" else []
        self._warm_up = WarmUp(self._at.weights, settings.acceptance, slow, settings.warm_up)
        rows, p = self._at.weights.shape
        self._draws = problem.start.new_zeros(rows, settings.draws, p)
        self._acceptance, self._divergences = (torch.zeros_like(self._at.log_density) for _ in range(2))
        self._done = 0

    def epoch(self) -> list[tuple[float, float | None]]:
        with matmul_precision(self._settings.precision):
            self._trajectory()
        self._done += 1
        self._warm_up.update(self._done, self._at.weights, self._acceptance)
        if self._done > self._settings.warm_up:
            self._draws[:, self._done - self._settings.warm_up - 1] = self._at.weights.to(self._draws)
        split = self._problem.split
        losses = (-self._at.log_likelihood / len(split)).tolist()
        right = (self._at.right / split.targets.numel()).tolist()
        return [(loss, share if self._classifies else None) for loss, share in zip(losses, right, strict=True)]

    def more(self) -> dict[str, list[float]]:
        """Of the last trajectory; divergences since the warm-up."""
        return {
            "acceptance": self._acceptance.tolist(),
            "step": self._warm_up.step.tolist(),
            "divergences": self._divergences.tolist(),
        }

    def _trajectory(self) -> None:
        settings, moving = self._settings, self._leapfrog
        jitter = 1 + settings.jitter * (2 * self._problem.uniform() - 1)
        moving.at.copy_(self._at)
        moving.step.copy_((self._warm_up.step * jitter).unsqueeze(1))
        moving.variance.copy_(self._warm_up.variance)
        moving.momentum.copy_(self._problem.normal() * (settings.temperature / moving.variance).sqrt())
        before = moving.energy()
        moving.run(settings.steps)
        # What is not a number is a lost trajectory too.
        gain = ((before - moving.energy()) / settings.temperature).nan_to_num(-torch.inf, -torch.inf, -torch.inf)
        self._acceptance.copy_(gain.clamp_max(0).exp())
        self._at.move_(moving.at, self._problem.uniform().log() < gain)
        if self._done >= settings.warm_up:
            self._divergences += gain < -DIVERGENT

    def solutions(self) -> list[Solution]:
        count = max(self._done - self._settings.warm_up, 0)
        noise = None if self._classifies else self._settings.noise
        return [Ensemble(self._network.state(draws[:count]), noise=noise) for draws in self._draws]

    @property
    def _changes(self) -> list[Tensor]:
        return [*self._at.tensors, *self._warm_up.state, self._acceptance, self._divergences]

    def state_dict(self) -> dict[str, Any]:
        draws = self._draws[:, : max(self._done - self._settings.warm_up, 0)]
        return {"done": self._done, "draws": draws.clone(), "changes": [x.clone() for x in self._changes]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._done = state["done"]
        self._draws[:, : state["draws"].shape[1]] = state["draws"]
        for x, saved in zip(self._changes, state["changes"], strict=True):
            x.copy_(saved)


def _double(problem: TrainingProblem) -> TrainingProblem:
    """The same in float64."""
    inputs, targets = (x.double() if x.is_floating_point() else x for x in problem.split)
    network = Network(copy.deepcopy(problem.network.model).double())
    return replace(problem, network=network, start=problem.start.double(), split=Split(inputs, targets))
