"""Posteriors by transport: flows learned from Markov chains, checked against chains that they have not seen.

The thesis was written for this, and its draft has no numbers on it.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from coset import VI, DeepEnsemble, Ensemble, SymmetrizedVI, convergence, fit
from coset.flow.flow import Flow
from coset.inference.elbo import elbo
from coset.populations.sliced_wasserstein import sliced_wasserstein
from coset_papers.ledger import seconds_of
from coset_papers.outcome import Outcome, noted_once
from coset_papers.settings import Settings
from coset_papers.weightflow.posterior_cases import CASES, Case
from coset_papers.weightflow.posterior_claims import HELD, OTHERS, PRIOR, posterior_claims
from coset_papers.weightflow.posterior_evidence import annealed_evidence
from coset_papers.weightflow.posterior_measure import apart, predicted, thinned, weighed

REACH, PLACES = 1.3, 81  # of the grid: its range times that of the data, and its size
STARTS = 4  # of a variational posterior


def posterior(settings: Settings) -> Outcome:
    """Draws of flows beside chains, variational posteriors and an ensemble: what they predict, and how far they are."""
    rows = [_row(settings, case) for case in CASES[settings.scale]]
    claims = [claim for row in rows for claim in posterior_claims(settings.scale, row)]
    return Outcome({"rows": rows}, noted_once(claims))


def _row(settings: Settings, case: Case) -> dict[str, Any]:
    """All that is known of one posterior; each long part is kept."""
    problem = case.problem
    train, test = problem.splits(settings)
    q, took = problem.chains(settings)
    first, held = problem.halves(settings)
    found = convergence(q, problem.build(), train.inputs, problem.hmc.chains)
    reach = REACH * float(train.inputs[:, 0].abs().max())
    grid = torch.linspace(-reach, reach, PLACES, device=settings.device)[:, None]
    kinds: dict[str, Any] = {}
    reference = thinned(held, case.samples)

    def compared(population: dict[str, Tensor], other: dict[str, Tensor]) -> dict[str, Any]:
        """What networks predict, and how far they are from others."""
        distance = sliced_wasserstein(population, other, problem.sym, _first(held), seed=settings.seed)
        far = {"sliced": distance.distance, "sliced_error": distance.error}
        return predicted(settings, problem, population, grid) | far

    def measure(name: str, population: dict[str, Tensor], more: dict[str, Any]) -> None:
        kinds[name] = compared(population, reference if name != HELD else thinned(first, case.samples)) | more

    def moved(name: str, starts: dict[str, Tensor]) -> dict[str, Any]:
        """What becomes of networks that go on as chains do, by the number of gradients that this takes."""
        found = {}
        for trajectories in (0, *case.trajectories):
            settings.say(f"{problem.title}: {name}, {trajectories} trajectories")
            one = compared(_moved(settings, case, starts, trajectories) if trajectories else starts, reference)
            kept = {key: one[key] for key in ("nll", "rmse", "coverage", "sliced")}
            found[str(trajectories * case.leaps)] = kept | {"apart": apart(one, kinds[HELD])}
        return found

    draws = {"seconds": took, "per_second": len(q) / took}
    measure(HELD, reference, draws)
    measure(OTHERS, thinned(first, case.samples), draws)
    for name, recipe in case.flows.items():
        flow, learning = recipe.learned(settings, problem)
        made, rate = _drawn(settings, flow, case)
        known = {"count": case.weighed, "steps": case.weighed_steps, "recipe": asdict(recipe)}
        settings.say(f"{problem.title}: densities of the {name}")
        weights = settings.keep(
            "weightflow-posterior-weights",
            partial(weighed, settings, problem, flow, case.weighed, case.weighed_steps),
            problem=problem.known(),
            **known,
        )
        more = {"seconds": learning, "per_second": rate, "weights": weights}
        measure(name, made, more | {"moved": moved(name, made)})
    decay = 1 / (len(train) * problem.hmc.prior_variance)  # that of the same prior
    rivals: dict[str, VI | DeepEnsemble] = {
        "VI": case.vi,
        "symmetrized VI": SymmetrizedVI(**asdict(case.vi)),
        "deep ensemble": replace(case.ensemble, base=replace(case.ensemble.base, weight_decay=decay)),
    }
    for name, method in rivals.items():
        measure(name, *_fitted(settings, case, name, method))
    for one in kinds.values():
        one["apart"] = apart(one, kinds[HELD])
    generator = settings.generator()
    fresh = {
        name: problem.prior_std * torch.randn(case.samples, *x.shape[1:], generator=generator, device=x.device)
        for name, x in held.items()
    }
    return {
        "title": problem.title,
        "model": problem.model,
        "weights": sum(x[0].numel() for x in held.values()),
        "units": problem.sym.groups[0].size,
        "points": [len(train), len(test)],
        "x": train.inputs[:, 0].tolist(),
        "y": train.targets[:, 0].tolist(),
        "grid": grid[:, 0].tolist(),
        "chains": {
            "chains": problem.hmc.chains,
            "draws": len(q),
            "r_hat": float(found.r_hat.max()),
            "ess": float(found.ess.min()),
            "seconds": took,
        },
        "evidence": _evidence(settings, case),
        "kinds": kinds,
        "moved": moved(PRIOR, fresh),
    }


def _first(population: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: x[0] for name, x in population.items()}


def _drawn(settings: Settings, flow: Flow, case: Case) -> tuple[dict[str, Tensor], float]:
    """Networks of the flow, and how many there are a second."""
    flow.sample(8, 1, generator=settings.generator())  # so that nothing is prepared while time counts
    begin = time.perf_counter()
    made = flow.sample(case.samples, case.steps, generator=settings.generator())
    return made.states, case.samples / (time.perf_counter() - begin)


def _moved(settings: Settings, case: Case, starts: dict[str, Tensor], trajectories: int) -> dict[str, Tensor]:
    """Where networks are after so many trajectories of a chain each, whose steps are adapted on the way."""
    problem = case.problem
    hmc = replace(problem.hmc, chains=case.samples, draws=1, warm_up=trajectories - 1, steps=case.leaps)
    train, _ = problem.splits(settings)
    (q,) = fit(problem.build(), train, hmc, 1, settings.seed, settings.device, starts=starts)
    assert isinstance(q, Ensemble)
    return q.population


def _fitted(
    settings: Settings, case: Case, name: str, method: VI | DeepEnsemble
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Networks of a solution of `fit`, its seconds and how many there are a second, which for an ensemble are those of
    its training; and bounds of the evidence where it is Gaussian.

    Of several Gaussians that with the largest bound, since each goes to the mode next to its start. bound: that of all
    its images under permutations and signs; of signs as if no two images overlapped.
    """
    problem = case.problem
    settings.say(f"{problem.title}: {name}")
    folder = settings.folder("weightflow-posterior-fit", problem=problem.known(), kind=name, method=asdict(method))
    train, _ = problem.splits(settings)
    model = problem.build()
    starts = 1 if isinstance(method, DeepEnsemble) else STARTS
    spent = settings.working(folder)
    found = fit(model, train, method, starts, settings.seed, settings.device, folder)
    took = seconds_of(folder)
    spent(took)
    if isinstance(found[0], Ensemble):
        return found[0].population, {"seconds": took, "per_second": len(found[0]) / took}
    bounds = [elbo(q, model, train, problem.hmc.prior_variance, sym=problem.sym) for q in found]
    best = max(range(len(bounds)), key=lambda k: bounds[k].value)
    begin = time.perf_counter()
    made = found[best].sample(case.samples, settings.generator())
    rate = case.samples / (time.perf_counter() - begin)
    low = bounds[best]
    assert low.symmetrized is not None
    bound = low.symmetrized + problem.odd_units * math.log(2)
    every = [one.value for one in bounds]
    return made, {"seconds": took, "per_second": rate, "elbo": low.value, "elbos": every, "bound": bound}


def _evidence(settings: Settings, case: Case) -> dict[str, Any]:
    problem = case.problem

    def compute() -> dict[str, Any]:
        settings.say(f"{problem.title}: annealing")
        train, _ = problem.splits(settings)
        model = problem.build().to(settings.device)
        found = annealed_evidence(model, train, problem.prior_std, problem.noise, case.annealing, settings.generator())
        return {"log": found.log_evidence, "error": found.log_evidence_error, "ess": found.ess}

    known = {"problem": problem.known(), "annealing": asdict(case.annealing)}
    kept: dict[str, Any] = settings.keep("weightflow-posterior-evidence", compute, **known)
    return kept
