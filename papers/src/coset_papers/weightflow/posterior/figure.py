"""Posteriors by transport: flows learned from Markov chains, checked against chains that they have not seen.

The thesis was written for this, and its draft has no numbers on it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from coset import VI, DeepEnsemble, Ensemble, SymmetrizedVI, convergence, fit
from coset.flow.flow import Flow
from coset.inference.elbo import elbo
from coset.plot.palette import HUES
from coset.populations.sliced_wasserstein import sliced_wasserstein
from coset_papers.catalogue import exhibit
from coset_papers.ledger import seconds_of
from coset_papers.outcome import Outcome, without_repeated_notes
from coset_papers.plotting import FAINT, INK, panels, style
from coset_papers.settings import Settings
from coset_papers.weightflow.posterior.annealing import annealed_evidence
from coset_papers.weightflow.posterior.cases import CASES, EUCLIDEAN, GEOMETRIC, PosteriorCase
from coset_papers.weightflow.posterior.claims import HELD_OUT, OTHERS, PRIOR, posterior_claims
from coset_papers.weightflow.posterior.quality import differences, predict, thin, weigh

REACH, PLACES = 1.3, 81  # of the grid: its range times that of the data, and its size
STARTS = 4  # of a variational posterior
COLOURS = {
    HELD_OUT: INK,
    OTHERS: FAINT,
    EUCLIDEAN: HUES[0],
    GEOMETRIC: HUES[2],
    PRIOR: FAINT,
    "VI": HUES[1],
    "symmetrized VI": HUES[3],
    "deep ensemble": HUES[4],
}
DEVIATIONS = 2


def posterior(settings: Settings) -> Outcome:
    """Draws of flows beside chains, variational posteriors and an ensemble: what they predict, and how far they are."""
    rows = [_row(settings, case) for case in CASES[settings.scale]]
    claims = [claim for row in rows for claim in posterior_claims(settings.scale, row)]
    return Outcome({"rows": rows}, without_repeated_notes(claims))


def _row(settings: Settings, case: PosteriorCase) -> dict[str, Any]:
    """All that is known of one posterior; each long part is kept."""
    problem = case.problem
    train, test = problem.splits(settings)
    q, seconds = problem.chains(settings)
    first, unseen = problem.halves(settings)
    diagnosis = convergence(q, problem.build(), train.inputs, problem.hmc.chains)
    reach = REACH * float(train.inputs[:, 0].abs().max())
    grid = torch.linspace(-reach, reach, PLACES, device=settings.device)[:, None]
    kinds: dict[str, Any] = {}
    reference = thin(unseen, case.samples)

    def compare(population: dict[str, Tensor], other: dict[str, Tensor]) -> dict[str, Any]:
        """What networks predict, and how far they are from others."""
        distance = sliced_wasserstein(population, other, problem.sym, _first(unseen), seed=settings.seed)
        far = {"sliced": distance.distance, "sliced_error": distance.error}
        return predict(settings, problem, population, grid) | far

    def measure(name: str, population: dict[str, Tensor], more: dict[str, Any]) -> None:
        kinds[name] = compare(population, reference if name != HELD_OUT else thin(first, case.samples)) | more

    def continued(name: str, starts: dict[str, Tensor]) -> dict[str, Any]:
        """What becomes of networks that go on as chains do, by the number of gradients that this takes."""
        rows = {}
        for trajectories in (0, *case.trajectories):
            settings.say(f"{problem.title}: {name}, {trajectories} trajectories")
            one = compare(_continue(settings, case, starts, trajectories) if trajectories else starts, reference)
            scores = {key: one[key] for key in ("nll", "rmse", "coverage", "sliced")}
            rows[str(trajectories * case.leaps)] = scores | {"apart": differences(one, kinds[HELD_OUT])}
        return rows

    draws = {"seconds": seconds, "per_second": len(q) / seconds}
    measure(HELD_OUT, reference, draws)
    measure(OTHERS, thin(first, case.samples), draws)
    for name, recipe in case.flows.items():
        flow, learning = recipe.flow(settings, problem)
        samples, rate = _sample(settings, flow, case)
        key = {"count": case.weighed, "steps": case.weighed_steps, "recipe": asdict(recipe)}
        settings.say(f"{problem.title}: densities of the {name}")
        weights = settings.keep(
            "weightflow-posterior-weights",
            partial(weigh, settings, problem, flow, case.weighed, case.weighed_steps),
            problem=problem.key(),
            **key,
        )
        more = {"seconds": learning, "per_second": rate, "weights": weights}
        measure(name, samples, more | {"moved": continued(name, samples)})
    decay = 1 / (len(train) * problem.hmc.prior_variance)  # that of the same prior
    rivals: dict[str, VI | DeepEnsemble] = {
        "VI": case.vi,
        "symmetrized VI": SymmetrizedVI(**asdict(case.vi)),
        "deep ensemble": replace(case.ensemble, base=replace(case.ensemble.base, weight_decay=decay)),
    }
    for name, method in rivals.items():
        measure(name, *_rival(settings, case, name, method))
    for one in kinds.values():
        one["apart"] = differences(one, kinds[HELD_OUT])
    generator = settings.generator()
    fresh = {
        name: problem.prior_std * torch.randn(case.samples, *x.shape[1:], generator=generator, device=x.device)
        for name, x in unseen.items()
    }
    return {
        "title": problem.title,
        "model": problem.model,
        "weights": sum(x[0].numel() for x in unseen.values()),
        "units": problem.sym.groups[0].size,
        "points": [len(train), len(test)],
        "x": train.inputs[:, 0].tolist(),
        "y": train.targets[:, 0].tolist(),
        "grid": grid[:, 0].tolist(),
        "chains": {
            "chains": problem.hmc.chains,
            "draws": len(q),
            "r_hat": float(diagnosis.r_hat.max()),
            "ess": float(diagnosis.ess.min()),
            "seconds": seconds,
        },
        "evidence": _evidence(settings, case),
        "kinds": kinds,
        "moved": continued(PRIOR, fresh),
    }


def _first(population: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: x[0] for name, x in population.items()}


def _sample(settings: Settings, flow: Flow, case: PosteriorCase) -> tuple[dict[str, Tensor], float]:
    """Networks of the flow, and how many there are a second."""
    flow.sample(8, 1, generator=settings.generator())  # so that nothing is prepared while time counts
    begin = time.perf_counter()
    samples = flow.sample(case.samples, case.steps, generator=settings.generator())
    return samples.states, case.samples / (time.perf_counter() - begin)


def _continue(
    settings: Settings, case: PosteriorCase, starts: dict[str, Tensor], trajectories: int
) -> dict[str, Tensor]:
    """Where networks are after so many trajectories of a chain each, whose steps are adapted on the way."""
    problem = case.problem
    hmc = replace(problem.hmc, chains=case.samples, draws=1, warm_up=trajectories - 1, steps=case.leaps)
    train, _ = problem.splits(settings)
    (q,) = fit(problem.build(), train, hmc, 1, settings.seed, settings.device, starts=starts)
    assert isinstance(q, Ensemble)
    return q.population


def _rival(
    settings: Settings, case: PosteriorCase, name: str, method: VI | DeepEnsemble
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Networks of a solution of `fit`, its seconds and how many there are a second, which for an ensemble are those of
    its training; and bounds of the evidence where it is Gaussian.

    Of several Gaussians that with the largest bound, since each goes to the mode next to its start. bound: that of all
    its images under permutations and signs; of signs as if no two images overlapped.
    """
    problem = case.problem
    settings.say(f"{problem.title}: {name}")
    folder = settings.folder("weightflow-posterior-fit", problem=problem.key(), kind=name, method=asdict(method))
    train, _ = problem.splits(settings)
    model = problem.build()
    starts = 1 if isinstance(method, DeepEnsemble) else STARTS
    spent = settings.working(folder)
    solutions = fit(model, train, method, starts, settings.seed, settings.device, folder)
    seconds = seconds_of(folder)
    spent(seconds)
    if isinstance(solutions[0], Ensemble):
        return solutions[0].population, {"seconds": seconds, "per_second": len(solutions[0]) / seconds}
    bounds = [elbo(q, model, train, problem.hmc.prior_variance, sym=problem.sym) for q in solutions]
    best = max(range(len(bounds)), key=lambda k: bounds[k].value)
    begin = time.perf_counter()
    samples = solutions[best].sample(case.samples, settings.generator())
    rate = case.samples / (time.perf_counter() - begin)
    low = bounds[best]
    assert low.symmetrized is not None
    bound = low.symmetrized + problem.odd_units * math.log(2)
    every = [one.value for one in bounds]
    return samples, {"seconds": seconds, "per_second": rate, "elbo": low.value, "elbos": every, "bound": bound}


def _evidence(settings: Settings, case: PosteriorCase) -> dict[str, Any]:
    problem = case.problem

    def compute() -> dict[str, Any]:
        settings.say(f"{problem.title}: annealing")
        train, _ = problem.splits(settings)
        model = problem.build().to(settings.device)
        evidence = annealed_evidence(
            model, train, problem.prior_std, problem.noise, case.annealing, settings.generator()
        )
        return {"log": evidence.log_evidence, "error": evidence.log_evidence_error, "ess": evidence.ess}

    key = {"problem": problem.key(), "annealing": asdict(case.annealing)}
    record: dict[str, Any] = settings.keep("weightflow-posterior-evidence", compute, **key)
    return record


def draw_posterior(data: Any) -> Figure:
    """A row for each posterior: predictions, test loss, distance to held-out chains, both after some gradients, and
    importance weights.
    """
    rows = data["rows"]
    figure, grid = panels(len(rows), 5, "Posteriors by transport, beside chains that the flows have not seen", 3.1)
    for axes, row in zip(grid, rows, strict=True):
        _predictions(axes[0], row)
        _bars(axes[1], row, "nll", "test nll (nats)")
        _bars(axes[2], row, "sliced", "distance to held-out chains")
        _draw_continued(axes[3], row)
        _weights(axes[4], row)
    return figure


def _predictions(axes: Axes, row: Any) -> None:
    axes.plot(row["x"], row["y"], ".", color=FAINT, markersize=3)
    names = [name for name in row["kinds"] if name in (HELD_OUT, "VI") or "flow" in name]
    for name in names:
        one, colour = row["kinds"][name], COLOURS[name]
        mean, width = np.array(one["mean"]), DEVIATIONS * np.array(one["deviation"])
        axes.plot(row["grid"], mean, color=colour, linewidth=1.2, label=name)
        for edge in (mean - width, mean + width):
            axes.plot(row["grid"], edge, ":", color=colour, linewidth=0.9)
    axes.set_ylim(min(row["y"]) - 1, max(row["y"]) + 1)
    axes.legend(fontsize=6, frameon=False)
    style(axes, "x", "f(x), two deviations", f"{row['title']}: {row['weights']} weights, {row['points'][0]} points")


def _bars(axes: Axes, row: Any, key: str, title: str) -> None:
    names = [name for name in row["kinds"] if key != "sliced" or name != HELD_OUT]
    values = [row["kinds"][name][key] for name in names]
    axes.barh(range(len(names)), values, color=[COLOURS[name] for name in names], height=0.6)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    floor = row["kinds"][HELD_OUT if key == "nll" else OTHERS][key]
    axes.axvline(floor, color=INK, linewidth=0.8)
    _numbers(axes, values)
    style(axes, title, "")


def _numbers(axes: Axes, values: Sequence[float]) -> None:
    axes.set_xlim(right=1.3 * max(values))
    for k, value in enumerate(values):
        place = (max(value, 0), k)
        label = axes.annotate(f"{value:.3g}", place, (4, 0), textcoords="offset points", fontsize=7, va="center")
        label.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.8})  # over the line of the chains


def _draw_continued(axes: Axes, row: Any) -> None:
    """Test loss of draws that go on as chains do, by the number of gradients."""
    flows = {name: one["moved"] for name, one in row["kinds"].items() if "moved" in one}
    for name, continued in {**flows, PRIOR: row["moved"]}.items():
        counts = [int(count) for count in continued]
        losses = [one["nll"] for one in continued.values()]
        axes.plot(range(len(counts)), losses, "o-", color=COLOURS[name], markersize=4, linewidth=1.4, label=name)
        axes.set_xticks(range(len(counts)), [str(count) for count in counts])
    axes.axhline(row["kinds"][HELD_OUT]["nll"], color=INK, linewidth=0.8, label=HELD_OUT)
    axes.legend(fontsize=7, frameon=False)
    style(axes, "gradients of each draw", "test nll (nats)", "going on by Hamiltonian dynamics")


def _weights(axes: Axes, row: Any) -> None:
    """log w - log Z of draws of the flows, solid, and of held-out chains, dashed: all zero for the posterior itself."""
    centre = row["evidence"]["log"]
    words = []
    for name, one in row["kinds"].items():
        if "weights" not in one:
            continue
        for key, line in (("logs", "-"), ("held_logs", "--")):
            logs = np.sort(np.array(one["weights"][key])) - centre
            axes.plot(logs, (np.arange(len(logs)) + 0.5) / len(logs), line, color=COLOURS[name], linewidth=1.4)
        words.append(f"{name}: ESS {one['weights']['ess']:.3g} of {one['weights']['count']}")
    axes.axvline(0, color=FAINT, linewidth=0.8)
    axes.set_xscale("symlog", linthresh=10)
    style(axes, "log w - log Z (solid: flow, dashed: chains)", "share below", "\n".join(words))


exhibit("weightflow/posterior", "posteriors sampled by a flow, beside Markov chains", posterior, draw_posterior)
