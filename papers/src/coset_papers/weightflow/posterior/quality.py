"""What draws of a posterior are worth: predictions, and the weights that turn draws of a flow into exact ones."""

from __future__ import annotations

import math
import time
from typing import Any

import torch
from torch import Tensor

from coset.core.state import State
from coset.flow.flow import Flow
from coset.flow.importance import importance, log_likelihood, log_posterior, quotient_log_prior
from coset.populations.population_outputs import predictions
from coset.solutions.likelihood import Regression
from coset_papers.settings import Settings
from coset_papers.weightflow.posterior.regression import BayesianRegression

LEVELS = (0.5, 0.9, 0.95)


def outputs(settings: Settings, problem: BayesianRegression, population: State, inputs: Tensor) -> Tensor:
    """f(x; w) [networks, inputs] float64."""
    device = torch.device(settings.device)
    parts = predictions(population, problem.build(), inputs, Regression(), device)
    return torch.cat([values.double() for _, values in parts], 1).squeeze(-1)


def predict(settings: Settings, problem: BayesianRegression, population: State, grid: Tensor) -> dict[str, Any]:
    """Test nll and rmse of the mixture of N(f(x; w), noise^2), the share of targets in its central intervals, and the
    mean and deviation of f on a grid.

    A target y lies in the central interval of a level l if |2 F(y) - 1| <= l, with F the distribution function.
    """
    _, test = problem.splits(settings)
    f = outputs(settings, problem, population, test.inputs)
    y = test.targets[:, 0].double()
    z = (y - f) / problem.noise
    logs = -z.square() / 2 - math.log(problem.noise * math.sqrt(2 * math.pi))
    place = torch.special.ndtr(z).mean(0)
    line = outputs(settings, problem, population, grid)
    return {
        "networks": len(f),
        "nll": -float((logs.logsumexp(0) - math.log(len(f))).mean()),
        "rmse": float((f.mean(0) - y).square().mean().sqrt()),
        "coverage": {f"{level:g}": float(((2 * place - 1).abs() <= level).double().mean()) for level in LEVELS},
        "mean": line.mean(0).tolist(),
        "deviation": line.std(0).tolist(),
    }


def differences(prediction: dict[str, Any], reference: dict[str, Any]) -> dict[str, float]:
    """Differences on the grid: of the means, in deviations of the reference, root mean square; and the typical factor
    between the deviations.
    """
    means, deviations = (
        [torch.tensor(one[key], dtype=torch.float64) for one in (prediction, reference)]
        for key in ("mean", "deviation")
    )
    ratio = (deviations[0] / deviations[1]).log().abs().mean().exp()
    return {
        "means": float(((means[0] - means[1]) / deviations[1]).square().mean().sqrt()),
        "deviations": float(ratio),
    }


def log_target(problem: BayesianRegression, flow: Flow, population: State, settings: Settings) -> Tensor:
    """[n] log density of posterior times evidence, on the coordinates of the flow; the signs are canonical.

    Of 2^h networks that differ by signs of h units one has canonical ones, and has the mass of all of them.
    """
    train, _ = problem.splits(settings)
    model = problem.build()
    if flow.plan.geometry == "euclidean":
        log = log_posterior(population, model, train, problem.prior_std, problem.noise)
    else:
        room = flow.sampler.space
        x = flow.sampler.encode(population)
        prior = quotient_log_prior(x, room.ends, problem.sym, room.template, problem.prior_std)
        log = log_likelihood(population, model, train, problem.noise) + prior
    canonical = problem.canonical_signs(population)
    same = torch.stack([(canonical[name] == x).flatten(1).all(1) for name, x in population.items()]).all(0)
    return torch.where(same, log + problem.odd_units * math.log(2), -math.inf)


def weigh(settings: Settings, problem: BayesianRegression, flow: Flow, count: int, steps: int) -> dict[str, Any]:
    """Importance weights of `count` draws of the flow, with exact divergences; and of held-out draws of the chains.

    lower, upper: mean log w over draws of the flow q and of the chains, which are log Z - KL(q, p) and
    log Z + KL(p, q).
    """
    generator = settings.generator()
    begin = time.perf_counter()
    samples, log_q = flow.sample_with_log_prob(count, steps, divergence="exact", generator=generator)
    seconds = time.perf_counter() - begin
    target = log_target(problem, flow, samples.states, settings)
    weights = importance(target, log_q)
    logs = (target - log_q)[target.isfinite()]
    unseen = problem.canonical_signs(thin(problem.halves(settings)[1], count))
    others = log_target(problem, flow, unseen, settings) - flow.log_prob(unseen, steps, divergence="exact")
    return {
        "count": count,
        "inside": len(logs) / count,
        "ess": weights.ess,
        "log_evidence": weights.log_evidence,
        "error": weights.log_evidence_error,
        "lower": float(logs.mean()) if len(logs) == count else None,
        "upper": float(others.mean()),
        "median": float(logs.median()),
        "deviation": float(logs.std()),
        "logs": logs.tolist(),
        "held_logs": others.tolist(),
        "seconds": seconds,
    }


def thin(population: State, count: int) -> dict[str, Tensor]:
    """At most `count` networks, evenly from all."""
    total = len(next(iter(population.values())))
    at = torch.linspace(0, total - 1, min(count, total)).long()
    return {name: x[at.to(x.device)] for name, x in population.items()}
