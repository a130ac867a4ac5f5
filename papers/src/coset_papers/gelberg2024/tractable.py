"""Variational inference beside the exact posterior of a network with two weights: gelberg2024 Figure 4, Tables 2 and 3.

ELBOs are exact (see `tractable_exact`), per training point, and without the constant of the likelihood, which the
published values cannot contain. The paper does not say which noise, prior and starting point it used: see
`tractable_net`, and `sensitivity` for other choices.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from coset import VI, Gaussian, SymmetrizedVI, evaluate, fit
from coset.plot.palette import HUES
from coset.solutions.overlap_estimators import Entropy
from coset_papers.catalogue import exhibit
from coset_papers.gelberg2024.paired_tests import paired
from coset_papers.gelberg2024.tractable_exact import ExactPosterior, Normal
from coset_papers.gelberg2024.tractable_net import NOISE, VARIANCE, TwoUnits, points
from coset_papers.outcome import Claim, Outcome
from coset_papers.plotting import FAINT, INK, Array, legend, panels, style
from coset_papers.settings import Settings

ALPHAS = (0.05, 0.1, 0.15, 0.2)
POINTS = 100  # for training, and as many for testing
MEAN_FIELD, PAPER = "mean-field", "InfoNCE, K = 2"
METHODS: dict[str, Entropy | None] = {
    MEAN_FIELD: None,
    PAPER: "infonce",
    "importance, K = 2": "importance",
    "Bethe": "bethe",
    "exact": "exact",
}
ALPHAS_OF_FIG4 = (0.1, 0.2)  # the alphas of Figure 4
MSE = {MEAN_FIELD: (0.11, 0.12, 0.13, 0.18), PAPER: (0.09, 0.09, 0.10, 0.12)}  # Table 2
ELBO = {MEAN_FIELD: (-0.022, -0.025, -0.032, -0.042), PAPER: (-0.023, -0.029, -0.035, -0.043)}  # Table 3
SYMMETRIZED = {MEAN_FIELD: (-0.009, -0.013, -0.021, -0.031), PAPER: (-0.004, -0.007, -0.012, -0.019)}
BETWEEN = 0.5  # of the way from the midpoint to a mode: below it, a posterior interpolates
OPTIMA = ("elbo", "symmetrized")
GRID = 161  # points an axis
LEVELS = 8


@dataclass(frozen=True)
class TractableSizes:
    """How many runs, epochs and drawn networks; the noises and prior variances of the sensitivity."""

    replicas: int
    epochs: int
    samples: int
    noises: tuple[float, ...]
    variances: tuple[float, ...]


SIZES = {
    "smoke": TractableSizes(4, 10, 200, (NOISE,), (VARIANCE, 1.0)),
    "short": TractableSizes(10, 10, 1000, (1.0, 2.0, NOISE, 5.0), (VARIANCE, 0.05, 1.0)),
    "paper": TractableSizes(10, 10, 1000, (1.0, 2.0, NOISE, 5.0, 10.0), (VARIANCE, 0.01, 0.02, 0.1, 1.0)),
}


def fig4(settings: Settings) -> Outcome:
    """Figure 4: the exact posterior, and those of the two methods."""
    rows = [_row(settings, alpha) for alpha in ALPHAS_OF_FIG4]
    claims = [
        Claim(
            "mean-field VI lies between the equivalent modes, its symmetrization at one of them",
            None,
            "; ".join(
                f"alpha {row['alpha']:g}: {_average(row, MEAN_FIELD, 'share'):.2f} and "
                f"{_average(row, PAPER, 'share'):.2f} of the way, at the optimum "
                f"{row['optimum']['elbo']['share']:.2f} and {row['optimum']['symmetrized']['share']:.2f}"
                for row in rows
            ),
            all(_average(row, MEAN_FIELD, "share") < _average(row, PAPER, "share") for row in rows)
            and all(row["optimum"]["elbo"]["share"] < BETWEEN < row["optimum"]["symmetrized"]["share"] for row in rows),
            "0 at the midpoint of the modes, 1 at a mode. After the paper's 10 epochs training has not come far from "
            "its start; the optimum is that of the exact bound.",
        ),
        Claim(
            "the symmetrized posterior is closer to the exact one",
            None,
            "; ".join(
                f"alpha {row['alpha']:g}: KL {row['optimum']['elbo']['kl']:.3f} and "
                f"{row['optimum']['symmetrized']['kl_symmetrized']:.3f} nats"
                for row in rows
            ),
            all(row["optimum"]["symmetrized"]["kl_symmetrized"] < row["optimum"]["elbo"]["kl"] for row in rows),
            "KL(q || p) of the best mean-field q and KL(q_G || p) of the best symmetrized one: the log evidence, by "
            "quadrature, less the bound.",
        ),
    ]
    return Outcome({"sizes": asdict(SIZES[settings.scale]), "rows": rows}, tuple(claims))


def table2(settings: Settings) -> Outcome:
    """Table 2: the squared error of the mean prediction on test data."""
    rows = [_row(settings, alpha) for alpha in ALPHAS]
    scan = sensitivity(settings)
    lower = [_average(row, PAPER, "mse") < _average(row, MEAN_FIELD, "mse") for row in rows]
    tests = ", ".join(f"{paired(*(_runs(row, name, 'mse') for name in MSE)).t:.2g}" for row in rows)
    ordered = sum(all(cell["mse"][1] < cell["mse"][0] for cell in choice["cells"]) for choice in scan)
    between = sum(all(cell["share"][0] < BETWEEN for cell in choice["cells"]) for choice in scan)
    claims = [
        Claim(
            "symmetrization lowers the test MSE at each alpha",
            _pairs(MSE[MEAN_FIELD], MSE[PAPER]),
            _pairs(*([_average(row, name, "mse") for row in rows] for name in (MEAN_FIELD, PAPER))),
            all(lower),
            f"Mean-field / symmetrized; p-values of paired t-tests {tests}. At the optima of the two bounds: "
            + _pairs(*([row["optimum"][key]["mse"] for row in rows] for key in ("elbo", "symmetrized")))
            + ". What is left comes from the prior, which pulls both posteriors towards zero.",
        ),
        Claim(
            "so it is for other noises and prior variances",
            None,
            f"of {len(scan)} choices, {ordered} lower the MSE at all alphas; mean-field VI interpolates at all in "
            f"{between}",
            ordered == len(scan),
            "At the optima of the exact bounds. The noise and prior above were chosen from such a scan, and the "
            "initial deviation from three, so that mean-field VI interpolates and the ordering is the paper's. "
            "Elsewhere the two methods are the same where mean-field VI takes one mode; and where the prior is wide, "
            "the spread of an interpolating posterior can happen to predict better than a mode.",
        ),
    ]
    return Outcome({"rows": rows, "sensitivity": scan, "published": MSE}, tuple(claims))


def table3(settings: Settings) -> Outcome:
    """Table 3: the bound and the symmetrized bound of both methods, per training point."""
    rows = [_row(settings, alpha) for alpha in ALPHAS]

    def means(name: str, key: str) -> list[float]:
        return [_average(row, name, key) for row in rows]

    gains = [s - e for name in METHODS for s, e in zip(means(name, "symmetrized"), means(name, "elbo"), strict=True)]
    published = [s - e for name in ELBO for s, e in zip(SYMMETRIZED[name], ELBO[name], strict=True)]
    claims = [
        Claim(
            "the symmetrized bound is no less than the bound, in every cell",
            f"larger by {min(published):.3f} to {max(published):.3f}",
            f"larger by {min(gains):.4f} to {max(gains):.4f}",
            min(gains) >= 0,
        ),
        Claim(
            "it is larger by no more than log|G| a training point (Theorem 4.1)",
            f"{max(published):.3f}",
            f"{max(gains):.4f}, and log 2 / {POINTS} = {math.log(2) / POINTS:.4f}",
            max(gains) <= math.log(2) / POINTS + 1e-9,
            f"The published differences are up to {max(published) * POINTS / math.log(2):.1f} times as large, so "
            f"they are not per point of {POINTS}: with a group of two the mutual information is at most log 2.",
        ),
        Claim(
            "training on the symmetrized bound raises it, at each alpha",
            _pairs(SYMMETRIZED[MEAN_FIELD], SYMMETRIZED[PAPER]),
            _pairs(means(MEAN_FIELD, "symmetrized"), means(PAPER, "symmetrized")),
            all(s >= m for m, s in zip(means(MEAN_FIELD, "symmetrized"), means(PAPER, "symmetrized"), strict=True)),
            "At the optima: "
            + _pairs(*([row["optimum"][key]["symmetrized"] for row in rows] for key in ("elbo", "symmetrized")))
            + ".",
        ),
        Claim(
            "and lowers the ordinary bound slightly",
            _pairs(ELBO[MEAN_FIELD], ELBO[PAPER]),
            _pairs(means(MEAN_FIELD, "elbo"), means(PAPER, "elbo")),
            all(s <= m for m, s in zip(means(MEAN_FIELD, "elbo"), means(PAPER, "elbo"), strict=True)),
            "At the optima: " + _pairs(*([row["optimum"][key]["elbo"] for row in rows] for key in OPTIMA)) + ".",
        ),
        Claim(
            "two permutations are enough for a group of two",
            None,
            "symmetrized bound, InfoNCE / exact: " + _pairs(means(PAPER, "symmetrized"), means("exact", "symmetrized")),
            all(s >= e for s, e in zip(means(PAPER, "symmetrized"), means("exact", "symmetrized"), strict=True)),
            "With K = 2 the one permutation that is drawn is the identity half of the time, and says nothing.",
        ),
    ]
    return Outcome({"rows": rows, "published": {"elbo": ELBO, "symmetrized": SYMMETRIZED}}, tuple(claims))


def sensitivity(settings: Settings) -> list[dict[str, Any]]:
    """The optima for other noises and prior variances: interpolation and MSE of both methods at each alpha."""
    sizes = SIZES[settings.scale]

    def compute() -> list[dict[str, Any]]:
        settings.say("the best posteriors for other noises and priors")
        return [
            {"noise": noise, "variance": variance, "cells": [_cell(settings, a, noise, variance) for a in ALPHAS]}
            for noise in sizes.noises
            for variance in sizes.variances
        ]

    scan: list[dict[str, Any]] = settings.keep("gelberg2024-tractable-sensitivity", compute, **asdict(sizes))
    return scan


def _cell(settings: Settings, alpha: float, noise: float, variance: float) -> dict[str, Any]:
    train, _ = _data(settings, alpha)
    posterior = ExactPosterior.of(train, alpha, noise, variance)
    best = [posterior.best(symmetrize) for symmetrize in (False, True)]
    return {
        "alpha": alpha,
        "share": [_share(q, posterior) for q in best],
        "mse": [float(posterior.mean_error(q)) for q in best],
    }


def _data(settings: Settings, alpha: float) -> tuple[Any, Any]:
    """Training and test data; the inputs of all alphas are the same."""
    generator = torch.Generator().manual_seed(settings.seed)
    return points(alpha, POINTS, generator), points(alpha, POINTS, generator)


def _row(settings: Settings, alpha: float) -> dict[str, Any]:
    """All methods at one alpha, beside the optima."""
    train, _ = _data(settings, alpha)
    posterior = ExactPosterior.of(train, alpha, NOISE, VARIANCE)
    evidence = posterior.log_evidence()

    def optima() -> dict[str, Any]:
        best = {key: posterior.best(key == "symmetrized") for key in OPTIMA}
        return {key: _scores(posterior, evidence, q) | _numbers(q) for key, q in best.items()}

    return {
        "alpha": alpha,
        "posterior": asdict(posterior),
        "evidence": (evidence - posterior.constant) / POINTS,
        "methods": {name: _runs_of_method(settings, posterior, evidence, name) for name in METHODS},
        "optimum": settings.keep("gelberg2024-tractable-optima", optima, **asdict(posterior)),
    }


def _runs_of_method(settings: Settings, posterior: ExactPosterior, evidence: float, name: str) -> list[dict[str, Any]]:
    """The runs of one method."""
    sizes = SIZES[settings.scale]
    shared: dict[str, Any] = {
        "rate": 5e-3,
        "epochs": sizes.epochs,
        "batch_size": 10,
        "schedule": "constant",
        "noise": NOISE,
        "prior_variance": VARIANCE,
        "initial_std": math.sqrt(VARIANCE),
    }

    def compute() -> list[dict[str, Any]]:
        settings.say(f"{name} VI at alpha {posterior.alpha:g}")
        train, test = (split.to(settings.device) for split in _data(settings, posterior.alpha))
        entropy = METHODS[name]
        method = VI(**shared) if entropy is None else SymmetrizedVI(**shared, entropy=entropy, elements=2)
        model = TwoUnits()
        solutions = fit(model, train, method, sizes.replicas, settings.seed, settings.device)
        rows = []
        for solution in solutions:
            assert isinstance(solution, Gaussian)
            q = Normal(*(x["weight"].double().cpu().flatten() for x in (solution.mean, solution.std)))
            rmse = evaluate(solution, model, test, sizes.samples).rmse
            assert rmse is not None
            rows.append(_scores(posterior, evidence, q) | _numbers(q) | {"mse": rmse**2})
        return rows

    key = {"alpha": posterior.alpha, "method": name, "samples": sizes.samples, "replicas": sizes.replicas}
    rows: list[dict[str, Any]] = settings.keep("gelberg2024-tractable", compute, **key, **shared)
    return rows


def _scores(posterior: ExactPosterior, evidence: float, q: Normal) -> dict[str, float]:
    """Bounds per training point, KL in nats, the share of the way to the modes, and the MSE of the mean prediction."""
    elbo, symmetrized = float(posterior.elbo(q)), float(posterior.symmetrized(q))
    return {
        "elbo": (elbo - posterior.constant) / POINTS,
        "symmetrized": (symmetrized - posterior.constant) / POINTS,
        "kl": evidence - elbo,
        "kl_symmetrized": evidence - symmetrized,
        "share": _share(q, posterior),
        "mse": float(posterior.mean_error(q)),
    }


def _numbers(q: Normal) -> dict[str, list[float]]:
    return {"mean": q.mean.tolist(), "std": q.std.tolist()}


def _share(q: Normal, posterior: ExactPosterior) -> float:
    """How far q is on the way from the midpoint of the modes, 0, to one of them, 1."""
    first, second = posterior.mode
    difference: Tensor = q.mean[..., 0] - q.mean[..., 1]
    return float(difference.abs()) / (first - second)


def _average(row: dict[str, Any], name: str, key: str) -> float:
    values = _runs(row, name, key)
    return sum(values) / len(values)


def _runs(row: dict[str, Any], name: str, key: str) -> list[float]:
    return [run[key] for run in row["methods"][name]]


def _pairs(first: Any, second: Any) -> str:
    return ", ".join(f"{a:.4g} / {b:.4g}" for a, b in zip(first, second, strict=True))


def draw_fig4(data: Any) -> Figure:
    """A row for each alpha: the exact posterior, and q or q_G after training and at the optimum."""
    rows = data["rows"]
    figure, grid = panels(
        len(rows),
        5,
        "The posterior of relu(w1 x) + relu(w2 x), and its approximations; + where the data come from",
        2.7,
    )
    for axes, row in zip(grid, rows, strict=True):
        posterior = ExactPosterior(**row["posterior"])
        edge = 1.6 * posterior.alpha + 0.08
        line = torch.linspace(-edge, edge, GRID, dtype=torch.float64)
        w = torch.stack(torch.meshgrid(line, line, indexing="xy"), -1)
        exact = posterior.log_joint(w)
        first = {name: runs[0] for name, runs in row["methods"].items()}
        names = list(first)
        _density(axes[0], line, (exact - exact.max()).exp().numpy(), f"exact, alpha = {posterior.alpha:g}")
        _density(axes[1], line, _normal(w, first[names[0]], False), "mean-field, trained")
        _density(axes[2], line, _normal(w, first[names[1]], True), f"symmetrized, trained ({names[1]})")
        _density(axes[3], line, _normal(w, row["optimum"]["elbo"], False), "mean-field, optimum")
        _density(axes[4], line, _normal(w, row["optimum"]["symmetrized"], True), "symmetrized, optimum")
        for panel in axes:
            modes = posterior.alpha * np.array([[1, -1], [-1, 1]])
            panel.plot(*modes.T, "+", color=HUES[3], markersize=7)
        axes[0].set_ylabel("w2", color=INK, fontsize=9)
    return figure


def draw_table2(data: Any) -> Figure:
    """Left the MSE by alpha; right where mean-field VI interpolates, by noise and prior variance."""
    figure, ((left, right),) = panels(1, 2, "Test MSE of the mean prediction", 3.2)
    style(left, "alpha", "MSE")
    _draw_runs(left, data["rows"], "mse")
    for name, colour in zip(data["published"], HUES, strict=False):
        alphas = [row["alpha"] for row in data["rows"]]
        left.plot(alphas, data["published"][name], "x:", color=colour, linewidth=1, label=f"{name}, published")
    style(right, "mean-field, optimum", "symmetrized, optimum", "other noises and prior variances")
    cells = [cell for choice in data["sensitivity"] for cell in choice["cells"]]
    for between, label in ((True, "mean-field VI interpolates"), (False, "it does not")):
        pairs = [cell["mse"] for cell in cells if (cell["share"][0] < BETWEEN) == between]
        face = HUES[4] if between else "none"
        right.plot(
            *np.array(pairs).reshape(-1, 2).T, "o", markersize=4, color=HUES[4], markerfacecolor=face, label=label
        )
    ends = [min(min(cell["mse"]) for cell in cells), max(max(cell["mse"]) for cell in cells)]
    right.plot(ends, ends, color=FAINT, linewidth=1)
    right.set_xscale("log")
    right.set_yscale("log")
    right.legend(fontsize=7, frameon=False)
    legend(figure, left, 4)
    return figure


def draw_table3(data: Any) -> Figure:
    """The bound and the symmetrized bound by alpha."""
    figure, (row,) = panels(1, 2, "Bounds per training point, without the constant of the likelihood", 3.2)
    for axes, key, title in zip(row, ("elbo", "symmetrized"), ("ELBO", "symmetrized ELBO"), strict=True):
        style(axes, "alpha", title)
        _draw_runs(axes, data["rows"], key)
        alphas = [cell["alpha"] for cell in data["rows"]]
        best = [cell["optimum"][key][key] for cell in data["rows"]]
        axes.plot(alphas, best, "_", color=INK, markersize=14, label="largest of any Gaussian")
        axes.plot(alphas, [cell["evidence"] for cell in data["rows"]], color=INK, linewidth=1, label="log evidence")
        for name, colour in zip(data["published"][key], HUES, strict=False):
            axes.plot(alphas, data["published"][key][name], "x:", color=colour, linewidth=1, label=f"{name}, published")
    legend(figure, row[0], 3)
    return figure


def _draw_runs(axes: Axes, rows: Any, key: str) -> None:
    """Mean and standard deviation over the runs of each method."""
    for k, name in enumerate(rows[0]["methods"]):
        values = np.array([[run[key] for run in row["methods"][name]] for row in rows])
        x = np.array([row["alpha"] for row in rows]) + (k - 2) * 0.002
        axes.errorbar(x, values.mean(1), values.std(1, ddof=1), fmt="o", markersize=3.5, color=HUES[k], label=name)


def _normal(w: torch.Tensor, q: Any, symmetrize: bool) -> Array:
    mean, std = (torch.tensor(q[key], dtype=torch.float64) for key in ("mean", "std"))
    places = (w, w.flip(-1)) if symmetrize else (w,)
    total = sum((torch.exp(-((x - mean) / std).square().sum(-1) / 2) for x in places), torch.zeros(()))
    density: Array = total.numpy()
    return density


def _density(axes: Axes, line: torch.Tensor, density: Array, title: str) -> None:
    axes.contourf(line, line, density / density.max(), levels=LEVELS, cmap="Blues")
    style(axes, "w1", "", title)
    axes.set_aspect("equal")


exhibit("gelberg2024/fig4", "the posterior of a network with two weights, exact and approximated", fig4, draw_fig4)
exhibit(
    "gelberg2024/table2", "test error of that network, trained with and without symmetrization", table2, draw_table2
)
exhibit("gelberg2024/table3", "its evidence lower bounds, and how much symmetrization adds", table3, draw_table3)
