"""The evidence of a network with Gaussian weights, by annealing from the prior: what flows are checked against."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from coset.data import Split
from coset.flow.importance import ImportanceWeights, importance
from coset.inference.posterior import log_prior
from coset.training.network import Network

ACCEPTANCE, GAIN, JITTER = 0.8, 0.1, 0.2  # of trajectories: the share that is wanted, how fast steps follow, and vary
FIRST = 0.3  # length of steps at the prior, beside its deviation
LogLikelihood = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Annealing:
    """particles go from the prior to the posterior by `stages` powers b_k = (k / stages)^power of the likelihood.

    steps: leapfrog steps of the trajectory at each. pilot: particles that find the lengths of steps before.
    """

    particles: int = 128
    stages: int = 400
    steps: int = 8
    power: float = 4.0
    pilot: int = 32


def annealed_evidence(
    model: nn.Module, split: Split, prior_std: float, noise: float, how: Annealing, generator: torch.Generator
) -> ImportanceWeights:
    """log Z by annealed importance sampling (Neal 2001), with Hamiltonian transitions.

        log w = sum_k (b_{k+1} - b_k) log p(y | x, w_k),    w_0 ~ N(0, prior_std^2),

    with w_k left invariant by the k-th tempered posterior; mean w is an unbiased estimate of Z. Lengths of steps are
    adapted by other particles, so that the estimate stays so.
    """
    likelihood, size = _log_likelihood(model, split, noise)
    lengths = [FIRST * prior_std]
    anneal = partial(_anneal, likelihood, size, prior_std, how, lengths=lengths, generator=generator)
    anneal(particles=how.pilot, adapt=True)
    logs = anneal(particles=how.particles, adapt=False)
    return importance(logs, torch.zeros_like(logs))


def _log_likelihood(model: nn.Module, split: Split, noise: float) -> tuple[LogLikelihood, int]:
    """weights [n, p] -> sum_i log N(y_i; f(x_i; w), noise^2) [n]; and p."""
    network = Network(model)
    inputs, targets = split
    constant = -targets.numel() * math.log(noise * math.sqrt(2 * math.pi))

    def likelihood(weights: Tensor) -> Tensor:
        outputs = network(weights, inputs.expand(len(weights), *inputs.shape))
        return constant - ((outputs - targets) / noise).square().flatten(1).sum(1) / 2

    return likelihood, network.size


def _anneal(
    likelihood: LogLikelihood,
    size: int,
    prior_std: float,
    how: Annealing,
    particles: int,
    lengths: list[float],
    adapt: bool,
    generator: torch.Generator,
) -> Tensor:
    """log w [particles] float64. With `adapt`, `lengths` gets one length of steps for each stage after the first."""
    device = generator.device

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device)

    def joint(w: Tensor, power: float) -> tuple[Tensor, Tensor, Tensor]:
        """log p(y | x, w), the log density of the stage, and its gradient."""
        with torch.enable_grad():
            at = w.detach().requires_grad_()
            log = likelihood(at)
            density = power * log + log_prior(at, prior_std**2)
            (gradient,) = torch.autograd.grad(density.sum(), at)
        return log.detach(), density.detach(), gradient

    w = prior_std * noise(particles, size)
    total = torch.zeros(particles, dtype=torch.float64, device=device)
    powers = [(k / how.stages) ** how.power for k in range(how.stages + 1)]
    for k in range(how.stages):
        log, density, gradient = joint(w, powers[k + 1])
        total += (powers[k + 1] - powers[k]) * log.double()
        momentum = noise(*w.shape)
        before = density - momentum.square().sum(1) / 2
        vary = 1 + JITTER * (2 * torch.rand(particles, 1, generator=generator, device=device) - 1)
        length = lengths[k] * vary
        proposal = w
        for _ in range(how.steps):
            momentum = momentum + length / 2 * gradient
            proposal = proposal + length * momentum
            log, density, gradient = joint(proposal, powers[k + 1])
            momentum = momentum + length / 2 * gradient
        gain = (density - momentum.square().sum(1) / 2 - before).nan_to_num(-torch.inf, -torch.inf, -torch.inf)
        uniform = torch.rand(particles, generator=generator, device=device)
        w = torch.where((uniform.log() < gain).unsqueeze(1), proposal, w)
        if adapt:
            accepted = float(gain.clamp(max=0).exp().mean())
            lengths.append(lengths[k] * math.exp(GAIN * (accepted - ACCEPTANCE)))
    return total
