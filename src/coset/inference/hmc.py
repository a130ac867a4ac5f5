"""Hamiltonian Monte Carlo on all of the data."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from coset.data import Split
from coset.errors import CosetError
from coset.inference.chains import Chains, ensemble
from coset.inference.leapfrog import Leapfrog
from coset.inference.method import Problem, Run
from coset.inference.network import Network
from coset.inference.posterior import Posterior, require_noise
from coset.inference.stepping import check_choices, check_positive, matmul_precision
from coset.inference.warm_up import WarmUp, windows
from coset.solutions import Solution
from coset.solutions.likelihood import Classification

DIVERGENT = 1000.0  # an error of the energy above which a trajectory has left the dynamics, as in Stan


@dataclass(frozen=True)
class HMC(Chains):
    """Draws from p(w | data)^(1/T), where p(w) = N(0, v): exact but for how long the chains run (Neal 2011).

    A trajectory draws momenta r ~ N(0, T M), follows H(w, r) = -log p(w, data) + r' M^-1 r / 2 for `steps` leapfrog
    steps of length e, and is accepted with probability min(1, exp(-(H' - H) / T)). An epoch is one trajectory, of all
    chains at once; its loss and accuracy are those of where it ended.

    chains: how many, each from its own start. draws: kept of each chain. warm_up: trajectories before, in which e
    and M are adapted, for each chain by itself. steps: more make draws less alike, and cost as much. acceptance: what
    e is adapted to. jitter: e is e (1 - jitter) to e (1 + jitter), uniformly, for each trajectory and chain, so that
    no orbit closes. mass: the unit matrix, or diagonal, from the variances of the weights in the warm-up, which must
    then be long: with few draws they are mostly noise, and worse than nothing. temperature: T.
    prior_variance: v. noise: standard deviation of the targets, which a regression needs. precision: float64 runs the
    model in 64 bits, whatever its own; draws are in its own. chunk: examples at once, which decides the memory only.
    The model runs as in evaluation: without dropout, and with the statistics of its norms fixed.
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
        check_positive(self, "chains", "draws", "warm_up", "steps", "temperature", "prior_variance", "noise", "chunk")
        if not 0 < self.acceptance < 1:
            raise CosetError(f"HMC: acceptance must be between 0 and 1, not {self.acceptance!r}.")
        if not 0 <= self.jitter < 1:
            raise CosetError(f"HMC: jitter must be in [0, 1), not {self.jitter!r}.")

    @property
    def epochs(self) -> int:  # type: ignore[override]
        return self.warm_up + self.draws

    def start(self, problem: Problem) -> Run:
        return _Hamiltonian(self, problem)


class _Hamiltonian(Run):
    """Chains under way. draws: (rows, draws, p)."""

    def __init__(self, settings: HMC, problem: Problem) -> None:
        noise = require_noise(settings, problem.likelihood, settings.noise)
        self._settings, self._network = settings, problem.network
        self._classifies = isinstance(problem.likelihood, Classification)
        self._problem = _double(problem) if settings.precision == "float64" else problem
        self._problem.network.model.eval()
        start = self._problem.start.clone()
        density = Posterior(self._problem, settings.prior_variance, start.new_tensor(noise), settings.chunk)
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
        kept = max(self._done - self._settings.warm_up, 0)
        noise = None if self._classifies else self._settings.noise
        return [ensemble(self._network, draws[:kept], noise) for draws in self._draws]

    @property
    def _changes(self) -> list[Tensor]:
        return [*self._at.tensors, *self._warm_up.state, self._acceptance, self._divergences]

    def state_dict(self) -> dict[str, Any]:
        kept = self._draws[:, : max(self._done - self._settings.warm_up, 0)]
        return {"done": self._done, "draws": kept.clone(), "changes": [x.clone() for x in self._changes]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._done = state["done"]
        self._draws[:, : state["draws"].shape[1]] = state["draws"]
        for x, saved in zip(self._changes, state["changes"], strict=True):
            x.copy_(saved)


def _double(problem: Problem) -> Problem:
    """The same in float64."""
    inputs, targets = (x.double() if x.is_floating_point() else x for x in problem.split)
    network = Network(copy.deepcopy(problem.network.model).double())
    return replace(problem, network=network, start=problem.start.double(), split=Split(inputs, targets))
