"""How well is the mutual information estimated? The open problem of gelberg2024 section 5, its first part.

The units of a hidden layer have d = 4 weights each (two inputs, a bias, an output), with means separation * N(0, 1) and
standard deviation DEVIATION. All estimators see the same drawn weights, so that the difference to the exact permanent
has little noise. I is in nats, and at most log|G|.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from coset import symmetry, zoo
from coset.assignment.bethe import log_bethe
from coset.core import state as states
from coset.plot.palette import HUES
from coset.solutions.orbit_map import OrbitMap
from coset.solutions.overlap_estimators import Bethe, Estimator, Exact, ImportanceSampling, InfoNCE
from coset_papers.catalogue import exhibit
from coset_papers.outcome import Claim, Outcome
from coset_papers.plotting import INK, legend, panels, style
from coset_papers.settings import Settings

DEVIATION = 0.5
UNIFORM = (5, 20, 500)  # permutations of InfoNCE
PROPOSED = 20  # permutations of importance sampling
EXACT, BELOW, ABOVE, FAST, CONVERGED = "exact", "importance, below", "importance, above", "Bethe, 5 rounds", "Bethe"
TRUSTED = 3.0  # standard errors by which a bound may miss
CHUNK = 16  # states at once
Estimate = Callable[[Tensor, Tensor, Tensor, torch.Generator], dict[str, Tensor]]
LEAST = 1e-4  # of a relative error that is shown


@dataclass(frozen=True)
class InformationSizes:
    """Widths with and without an exact value, separations, deep networks, and drawn states."""

    widths: tuple[int, ...]
    large: tuple[int, ...]
    separations: tuple[float, ...]
    deep: tuple[str, ...]
    samples: int


DEEP = ("mlp:1-3-3-1", "mlp:2-4-4-1", "mlp:1-3-3-3-1")
SIZES = {
    "smoke": InformationSizes((2, 4, 8), (30,), (0.1, 1.0, 3.0), DEEP[:1], 16),
    "short": InformationSizes(tuple(range(2, 13)), (30, 100), (0.1, 0.3, 0.5, 1.0, 3.0), DEEP, 64),
    "paper": InformationSizes(tuple(range(2, 13)), (30, 100, 300), (0.1, 0.3, 0.5, 1.0, 2.0, 3.0), DEEP, 512),
}


def information(settings: Settings) -> Outcome:
    """The mutual information by each estimator, by width and separation; and for deep networks."""
    sizes = SIZES[settings.scale]
    layers = [
        _measure(settings, f"mlp:2-{n}-1", separation, n in sizes.widths)
        | {"units": n, "separation": separation, "exact": n in sizes.widths}
        for separation in sizes.separations
        for n in (*sizes.widths, *sizes.large)
    ]
    deep = [
        _measure(settings, name, separation, True) | {"model": name, "separation": separation}
        for name in sizes.deep
        for separation in sizes.separations
    ]
    return Outcome({"sizes": asdict(sizes), "layers": layers, "deep": deep}, _claims(sizes, layers, deep))


def _measure(settings: Settings, name: str, separation: float, exact: bool) -> dict[str, Any]:
    """All estimators of one posterior."""
    samples = SIZES[settings.scale].samples

    def compute() -> dict[str, Any]:
        settings.say(f"{name}, separation {separation:g}")
        return estimates(name, separation, exact, samples, settings.seed, settings.device)

    key = {"model": name, "separation": separation, "samples": samples, "exact": exact}
    record: dict[str, Any] = settings.keep("gelberg2024-information", compute, **key)
    return record


def estimates(name: str, separation: float, exact: bool, samples: int, seed: int, device: str) -> dict[str, Any]:
    """log|G| of a network, and for each estimator the mean of I, its error, the bias with its error, and seconds.

    The bias is the mean difference to the exact value, and seconds are for one state.
    """
    generator = torch.Generator().manual_seed(seed)
    model = zoo.build(name)
    like = states.of(model)
    sym = symmetry(model, (torch.randn(4, like["layers.0.weight"].shape[1], generator=generator),))
    orbit = OrbitMap(sym, {key: x.shape for key, x in like.items()}, torch.device(device))
    mean = separation * torch.randn(orbit.size, generator=generator).to(device)
    draws = torch.Generator(device).manual_seed(seed)
    w = mean + DEVIATION * torch.randn(samples, orbit.size, generator=draws, device=device)
    logs_of: dict[str, Tensor] = {}
    seconds: dict[str, float] = {}
    for estimate in _estimators(orbit, exact):
        values, took = _run(estimate, w, mean, draws)
        logs_of |= values
        seconds |= dict.fromkeys(values, took / samples)
    total = orbit.log_order
    truth = logs_of.get(EXACT)
    rows: dict[str, Any] = {}
    for key, logs in logs_of.items():
        row = {"information": total - float(logs.mean()), "error": _error(logs), "seconds": seconds[key]}
        if truth is not None:
            row |= {"bias": float((truth - logs).mean()), "bias_error": _error(truth - logs)}
        rows[key] = row
    return {"log_order": total, "estimates": rows}


def _estimators(orbit: OrbitMap, exact: bool) -> list[Estimate]:
    def single(name: str, estimator: Estimator) -> Estimate:
        return lambda w, mean, std, generator: {name: estimator(w, mean, std, generator)}

    importance, bethe = ImportanceSampling(orbit, PROPOSED), Bethe(orbit)

    def sandwich(w: Tensor, mean: Tensor, std: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        less, more = importance.sandwich(w, mean, std, generator)
        return {BELOW: more, ABOVE: less}  # more of the sum over G is less information

    def converged(w: Tensor, mean: Tensor, std: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        sums = [log_bethe(bethe.pairs_of(name, w, mean, std)).sum(-1) for name in bethe.independent]
        constant = orbit.log_order - sum(orbit.log_orders[name] for name in bethe.independent)
        return {CONVERGED: torch.stack(sums).sum(0) + constant}

    estimators = [single(f"InfoNCE, K = {k}", InfoNCE(orbit, k)) for k in UNIFORM]
    estimators += [sandwich, single(FAST, bethe), converged]
    return [single(EXACT, Exact(orbit)), *estimators] if exact else estimators


@torch.no_grad()
def _run(estimate: Estimate, w: Tensor, mean: Tensor, generator: torch.Generator) -> tuple[dict[str, Tensor], float]:
    parts = []
    start = time.perf_counter()
    for chunk in torch.split(w, CHUNK):
        parts.append(estimate(chunk, mean.expand_as(chunk), torch.full_like(chunk, DEVIATION), generator))
    logs = {name: torch.cat([part[name] for part in parts]).cpu() for name in parts[0]}
    return logs, time.perf_counter() - start


def _error(values: Tensor) -> float:
    return float(values.std()) / math.sqrt(len(values))


def _claims(sizes: InformationSizes, layers: list[dict[str, Any]], deep: list[dict[str, Any]]) -> tuple[Claim, ...]:
    exact_rows = [row for row in layers if row["exact"]]
    last = exact_rows[-1]
    n, far = last["units"], last["separation"]
    values = {name: row["information"] for name, row in last["estimates"].items()}
    uniform = [(k, row["estimates"][f"InfoNCE, K = {k}"]["information"]) for row in layers + deep for k in UNIFORM]
    others = (BELOW, ABOVE, FAST, CONVERGED)
    inside = [_bracketed(row) for row in exact_rows]
    deep_inside = [_bracketed(row) for row in deep]
    wide = [row for row in layers if not row["exact"]]
    gaps = {
        separation: max(_gap(row) for row in wide if row["separation"] == separation)
        for separation in sizes.separations
    }
    bethe = [
        (row["estimates"][CONVERGED]["bias"], row["units"] / 2 * math.log(2), row["estimates"][CONVERGED]["bias_error"])
        for row in exact_rows
    ]
    times = {name: f"{1e3 * row['seconds']:.2g}" for name, row in wide[-1]["estimates"].items()}
    return (
        Claim(
            "InfoNCE finds at most log K of the information, which it approaches as K grows (Theorem 4.3)",
            None,
            f"n = {n}, separation {far:g}: exact {values[EXACT]:.2f}; "
            + ", ".join(f"K = {k} {values[f'InfoNCE, K = {k}']:.2f}" for k in UNIFORM),
            all(value <= math.log(k) + 1e-9 for k, value in uniform),
            f"Not above log K in any of {len(uniform)} cases, while the information of separate modes is log n!.",
        ),
        Claim(
            "importance sampling reduces the variance (proposed in section 6)",
            None,
            f"there: {', '.join(f'{name} {values[name]:.2f}' for name in others)}",
            all(abs(values[name] - values[EXACT]) < 0.05 * values[EXACT] for name in (BELOW, ABOVE, CONVERGED)),
            "Neither importance sampling nor the Bethe permanent stops at log K.",
        ),
        Claim(
            "importance sampling with and without the identity brackets the exact value",
            None,
            f"{sum(inside)} of {len(inside)} layers, {sum(deep_inside)} of {len(deep_inside)} deep networks",
            all(inside) and all(deep_inside),
            f"Up to {TRUSTED:g} standard errors of the paired difference. Deep networks are enumerated.",
        ),
        Claim(
            "the Bethe value is above I, by at most (n / 2) log 2",
            None,
            f"by {min(b for b, _, _ in bethe):.3f} to {max(b for b, _, _ in bethe):.3f} nats",
            all(-TRUSTED * error - 0.002 * 12 <= bias <= bound for bias, bound, error in bethe),
            "permB <= perm <= 2^(n/2) permB, each up to its tolerance. Furthest off where modes coincide.",
        ),
        Claim(
            "which is nearest to the exact value, by separation (mean error / log n!)",
            None,
            "; ".join(_nearest(exact_rows, separation) for separation in sizes.separations),
            None,
            "At most 20 permutations, 5 rounds or all rounds; InfoNCE with 500 beside.",
        ),
        Claim(
            f"at {', '.join(str(k) for k in sizes.large)} units, the two sides are apart by this share of log n!",
            None,
            "; ".join(f"separation {separation:g}: {gap:.3f}" for separation, gap in gaps.items()),
            None,
            f"The largest of these widths. Milliseconds a state at n = {wide[-1]['units']}: "
            + ", ".join(f"{name} {value}" for name, value in times.items())
            + ".",
        ),
    )


def _bracketed(row: dict[str, Any]) -> bool:
    below, above = (row["estimates"][name] for name in (BELOW, ABOVE))
    slack = 1e-9 * row["log_order"]
    return bool(
        below["bias"] <= TRUSTED * below["bias_error"] + slack
        and above["bias"] >= -TRUSTED * above["bias_error"] - slack
    )


def _gap(row: dict[str, Any]) -> float:
    below, above = (row["estimates"][name]["information"] for name in (BELOW, ABOVE))
    return float((above - below) / row["log_order"])


def _nearest(rows: list[dict[str, Any]], separation: float) -> str:
    rows = [row for row in rows if row["separation"] == separation]
    errors = {
        name: sum(abs(row["estimates"][name]["bias"]) / row["log_order"] for row in rows) / len(rows)
        for name in (f"InfoNCE, K = {PROPOSED}", BELOW, FAST, CONVERGED, f"InfoNCE, K = {UNIFORM[-1]}")
    }
    first = min(list(errors)[:-1], key=lambda name: errors[name])
    return f"{separation:g}: {first} ({', '.join(f'{name} {error:.3f}' for name, error in errors.items())})"


def draw_information(data: Any) -> Figure:
    """Above the share of log n! that each estimator finds, below its relative error; a column for each separation."""
    separations = data["sizes"]["separations"]
    figure, (above, below) = panels(2, len(separations), "Mutual information of a permutation and the weights", 2.5)
    for column, separation in enumerate(separations):
        rows = [row for row in data["layers"] if row["separation"] == separation]
        first = f"separation {separation:g}"
        style(above[column], "", "I / log n!" if column == 0 else "", first)
        style(below[column], "units n", "|estimate - I| / I" if column == 0 else "")
        for k, name in enumerate(rows[0]["estimates"]):
            colour = INK if name == "exact" else HUES[k - 1]
            estimated = [row for row in rows if name in row["estimates"]]
            n = [row["units"] for row in estimated]
            share, error = (
                [row["estimates"][name][key] / row["log_order"] for row in estimated]
                for key in ("information", "error")
            )
            if name == "exact":
                above[column].plot(n, share, "+", color=INK, markersize=5, zorder=3, label=name)
                continue
            above[column].errorbar(n, share, error, fmt=".-", markersize=3, linewidth=1, color=colour, label=name)
            exact_rows = [row for row in estimated if row["exact"]]
            truth = np.array([row["estimates"]["exact"]["information"] for row in exact_rows])
            bias = np.array([row["estimates"][name]["bias"] for row in exact_rows])
            relative = np.maximum(np.abs(bias) / np.maximum(truth, 1e-12), LEAST)
            below[column].plot(
                [row["units"] for row in exact_rows], relative, ".-", markersize=3, linewidth=1, color=colour
            )
        above[column].set_xscale("log")
        below[column].set_yscale("log")
    legend(figure, above[0], 4)
    return figure


exhibit(
    "gelberg2024/information", "estimates of the mutual information beside the exact one", information, draw_information
)
