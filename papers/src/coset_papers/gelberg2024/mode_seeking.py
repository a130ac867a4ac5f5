"""Does a Gaussian fitted by reverse KL seek one of two modes? gelberg2024 Figures 2, 3 and 5, and what is exact.

Lengths of the exact solution are in units of sigma (see `reverse_kl_exact`). The interpolation of a fit is
||mean|| / alpha: one half at the midpoint, zero at the mode where the descent starts. The paper does not say how many
dimensions it uses, nor which distances alpha; here there are two dimensions (one in Figure 2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from coset.plot.palette import HUES
from coset_papers.catalogue import exhibit
from coset_papers.gelberg2024 import reverse_kl_exact as exact
from coset_papers.gelberg2024.reverse_kl import GaussianFits, KLDescent, minimise
from coset_papers.outcome import Claim, Outcome
from coset_papers.plotting import FAINT, INK, legend, panels, style
from coset_papers.settings import Settings

HALFWAY = 0.25  # between the interpolation of the midpoint and that of a mode
PUBLISHED = {0.25: 1.25, 0.5: 2.5, 1.0: 5.0, 2.0: 10.0}  # sigma and its threshold, Figure 5
NEAR = 0.1  # relative distance of a threshold that is still the published one, which is read off a plot
OPTIMIZERS: tuple[Literal["sgd", "adam"], ...] = ("sgd", "adam")
LARGEST = 8.0  # alpha / sigma
CLOSE = 4.0  # surely below the threshold
DISTANCES = (2.0, 4.0, 5.0, 6.0)  # the distances of Figure 2
FIT_COLOUR, STEPS_COLOUR, LIMIT_COLOUR, OPTIMUM_COLOUR = HUES[1], HUES[2], HUES[0], HUES[3]
DASHED, DOTTED = (0, (4, 3)), (0, (1, 2))
Dashes = str | tuple[int, tuple[int, int]]
Look = tuple[str, str, str, Dashes]  # the key of a curve, its label, colour and dashes


@dataclass(frozen=True)
class ModeSeekingSizes:
    """Samples of an estimate, steps and rate; alpha / sigma is each multiple of `spacing` up to LARGEST.

    fine: the spacing of exact curves.
    """

    samples: int
    steps: int
    rate: float
    spacing: float
    fine: float

    def distances(self) -> list[float]:
        """The grid, in units of sigma."""
        return _grid(self.spacing)

    def descent(self, optimizer: Literal["sgd", "adam"] = "sgd", dimension: int = 2) -> KLDescent:
        """How to minimise at this scale."""
        return KLDescent(self.samples, self.steps, self.rate, optimizer, dimension)


SIZES = {
    "smoke": ModeSeekingSizes(samples=100, steps=1000, rate=3e-2, spacing=0.5, fine=0.25),
    "short": ModeSeekingSizes(samples=500, steps=3000, rate=1e-2, spacing=0.2, fine=0.1),
    "paper": ModeSeekingSizes(samples=5000, steps=3000, rate=1e-2, spacing=0.1, fine=0.05),
}


def fig2(settings: Settings) -> Outcome:
    """Figure 2: target and minimiser on a line."""
    descent = SIZES[settings.scale].descent(dimension=1)
    fit = _fit(settings, DISTANCES, [1.0] * len(DISTANCES), descent)
    means = [mean for (mean,) in fit["mean"]]
    a = torch.tensor(DISTANCES, dtype=torch.float64)
    data = {
        "alpha": DISTANCES,
        "descent": asdict(descent),
        "fitted": {"mean": means, "std": [abs(std) for ((std,),) in fit["factor"]]},
        "from_mode": _line(exact.from_mode(a)),
        "optimum": _line(exact.optimum(a)),
    }
    below = [k for k, alpha in enumerate(DISTANCES) if alpha < exact.fold()]
    above = [k for k in range(len(DISTANCES)) if k not in below]
    shares = [abs(mean) / alpha for mean, alpha in zip(means, DISTANCES, strict=True)]
    where = ", ".join(f"{share:.2f}" for share in shares)
    best = ", ".join(f"{float(m) / alpha:.2f}" for m, alpha in zip(exact.optimum(a).m, DISTANCES, strict=True))
    names = ", ".join(f"{alpha:g}" for alpha in DISTANCES)
    holds = all(shares[k] > HALFWAY for k in below) and all(shares[k] < HALFWAY for k in above)
    claim = Claim(
        "close modes are covered by one wide Gaussian, though KL is reversed; of distant ones it takes one",
        None,
        f"mean / alpha {where} at alpha {names}",
        holds,
        f"The best Gaussian has {best}: at alpha 5 the fit has stayed in a local minimum.",
    )
    return Outcome(data, (claim,))


def fig3(settings: Settings) -> Outcome:
    """Figure 3: interpolation, determinant of the covariance, and KL against the distance of the modes."""
    sizes = SIZES[settings.scale]
    descent, alphas = sizes.descent(), sizes.distances()
    fits = _summary(_fit(settings, alphas, [1.0] * len(alphas), descent), alphas)
    curves = _exact(settings, 1.0, sizes)
    data = {"alpha": alphas, "descent": asdict(descent), "fitted": fits, "exact": curves}
    return Outcome(data, (*_threshold_claims(alphas, fits), *_shape_claims(alphas, fits, curves)))


def fig5(settings: Settings) -> Outcome:
    """Figure 5: interpolation and KL for four standard deviations of the modes."""
    sizes = replace(SIZES[settings.scale], spacing=max(0.2, SIZES[settings.scale].spacing))
    distances = sizes.distances()
    alphas = [distance * sigma for sigma in PUBLISHED for distance in distances]
    sigmas = [sigma for sigma in PUBLISHED for _ in distances]
    by_sgd, by_adam = (
        _summary(_fit(settings, alphas, sigmas, sizes.descent(optimizer)), alphas) for optimizer in OPTIMIZERS
    )
    rows: list[dict[str, Any]] = []
    for k, sigma in enumerate(PUBLISHED):
        part = slice(k * len(distances), (k + 1) * len(distances))
        row: dict[str, Any] = {"sigma": sigma, "alpha": alphas[part]}
        for name, fits in (("sgd", by_sgd), ("adam", by_adam)):
            row[name] = {key: values[part] for key, values in fits.items()}
            row[name]["threshold"] = threshold(alphas[part], row[name]["interpolation"])
        rows.append(row | {"exact": _exact(settings, sigma, sizes)})
    return Outcome({"rows": rows, "descent": asdict(sizes.descent())}, _scaling_claims(rows, sizes))


def threshold(alphas: list[float], interpolation: list[float]) -> float | None:
    """The first alpha at which the interpolation falls below HALFWAY, on the line between two of the grid."""
    for k in range(1, len(alphas)):
        before, after = interpolation[k - 1], interpolation[k]
        if before >= HALFWAY > after:
            return alphas[k - 1] + (before - HALFWAY) / (before - after) * (alphas[k] - alphas[k - 1])
    return None


def _grid(spacing: float) -> list[float]:
    return [round(spacing * k, 6) for k in range(1, round(LARGEST / spacing) + 1)]


def _fit(settings: Settings, alphas: Sequence[float], sigmas: Sequence[float], descent: KLDescent) -> Any:
    def compute() -> dict[str, Any]:
        alpha, sigma = (torch.tensor(values, device=settings.device) for values in (alphas, sigmas))
        fits = minimise(alpha, sigma, descent, settings.generator(), settings.say)
        return {key: getattr(fits, key).tolist() for key in GaussianFits.__dataclass_fields__}

    key = {"alphas": list(alphas), "sigmas": list(sigmas), **asdict(descent)}
    return settings.keep("gelberg2024-reverse-kl", compute, **key)


def _summary(fit: Any, alphas: list[float]) -> dict[str, list[float]]:
    lengths = torch.tensor(fit["mean"]).norm(dim=-1)
    determinants = torch.tensor(fit["factor"]).diagonal(dim1=-2, dim2=-1).prod(-1).square()
    return {
        "interpolation": (lengths / torch.tensor(alphas)).tolist(),
        "determinant": determinants.tolist(),
        "kl": fit["kl"],
    }


def _exact(settings: Settings, sigma: float, sizes: ModeSeekingSizes) -> Any:
    """Without noise: where as many steps lead, where all steps lead, and the optimum; with both thresholds."""

    def compute() -> dict[str, Any]:
        settings.say(f"exact descent, sigma {sigma}")
        a = torch.tensor(_grid(sizes.fine), dtype=torch.float64)
        ends = {
            "same_steps": exact.descend(a, sizes.rate / sigma**2, sizes.steps),
            "from_mode": exact.from_mode(a),
            "optimum": exact.optimum(a),
        }
        curvature, _, _ = exact.hessian(exact.midpoint(a), a)
        return {
            "alpha": (a * sigma).tolist(),
            **{name: _line(q, a) for name, q in ends.items()},
            "midpoint_curvature": curvature.tolist(),
            "fold": exact.fold() * sigma,
            "crossing": exact.crossing() * sigma,
        }

    key = {"sigma": sigma, "rate": sizes.rate, "steps": sizes.steps, "spacing": sizes.fine}
    return settings.keep("gelberg2024-reverse-kl-exact", compute, **key)


def _line(q: exact.Line, a: Tensor | None = None) -> dict[str, list[float]]:
    if a is None:
        return {"mean": q.m.tolist(), "std": q.s.tolist()}
    return {
        "interpolation": (q.m / a).tolist(),
        "determinant": q.s.square().tolist(),  # times sigma^(2 d); across, the deviations are sigma
        "kl": exact.kl(q, a).tolist(),
    }


def _threshold_claims(alphas: list[float], fits: dict[str, list[float]]) -> tuple[Claim, ...]:
    ours = threshold(alphas, fits["interpolation"])
    return (
        Claim(
            "there is a threshold alpha*; beyond it the fit stays at the mode where it starts",
            PUBLISHED[1.0],
            "none" if ours is None else ours,
            _near(ours, PUBLISHED[1.0]),
            f"Exact descent stays from alpha = {exact.fold():.6f} on, where a second minimum appears in a fold.",
        ),
        Claim(
            "that threshold is the one of the minimiser of KL",
            PUBLISHED[1.0],
            exact.crossing(),
            _near(exact.crossing(), PUBLISHED[1.0]),
            f"alpha* is where descent from a mode gets stuck. The optimum leaves the midpoint only at "
            f"{exact.crossing():.6f}; between the two, the fit at the mode is the worse one.",
        ),
    )


def _shape_claims(alphas: list[float], fits: dict[str, list[float]], curves: Any) -> tuple[Claim, ...]:
    below = [k for k, alpha in enumerate(alphas) if 1.0 <= alpha <= CLOSE]  # nearer to 0 noise decides
    off = max(abs(fits["interpolation"][k] - 0.5) for k in below)
    determinants = [fits["determinant"][k] for k in below]
    widest = float(exact.midpoint(torch.tensor([CLOSE], dtype=torch.float64)).s.square())
    return (
        Claim(
            "below alpha* the mean is the midpoint, mean / alpha = 1/2",
            0.5,
            f"0.5 +- {off:.3f} for alpha from 1 to {CLOSE:g}",
            off < 0.1,
            "The midpoint is a local minimum at every alpha here: its curvature is at least "
            f"{min(curves['midpoint_curvature']):.3f}.",
        ),
        Claim(
            "below alpha* the variance is overestimated, det Sigma > 1",
            "> 1",
            f"{min(determinants):.2f} to {max(determinants):.2f} for alpha from 1 to {CLOSE:g}",
            min(determinants) > 1,
            f"Without noise, det Sigma is {widest:.4f} at alpha {CLOSE:g}.",
        ),
        Claim(
            "KL rises with alpha, to log 2 = 0.693, the price of one of two modes",
            None,
            f"{fits['kl'][-1]:.3f} at alpha {alphas[-1]:g}",
            abs(fits["kl"][-1] - math.log(2)) < 0.1,
        ),
    )


def _scaling_claims(rows: list[dict[str, Any]], sizes: ModeSeekingSizes) -> tuple[Claim, ...]:
    claims = [
        Claim(
            f"sigma {row['sigma']:g}: the threshold is {PUBLISHED[row['sigma']]:g}",
            PUBLISHED[row["sigma"]],
            f"Adam {_number(row['adam']['threshold'])}, SGD {_number(row['sgd']['threshold'])}, "
            f"exact {row['exact']['fold']:.3f} (optimum {row['exact']['crossing']:.3f})",
            any(_near(row[name]["threshold"], PUBLISHED[row["sigma"]]) for name in ("sgd", "adam")),
        )
        for row in rows
    ]
    wide = rows[-1]
    of_sgd = _number(wide["sgd"]["threshold"])
    linear = Claim(
        "the threshold is linear in sigma",
        "linear",
        f"{exact.fold():.6f} sigma",
        True,
        "x -> x / sigma maps the problem of one sigma to that of another, so every threshold is exactly linear. SGD "
        f"at one rate for all is not: in units of sigma it is {sizes.rate:g} / sigma^2, and at sigma "
        f"{wide['sigma']:g} {sizes.steps} steps do not arrive (threshold {of_sgd}, and no jump). The published "
        "thresholds are those of Adam, or of more steps.",
    )
    return (*claims, linear)


def _near(ours: float | None, published: float) -> bool:
    return ours is not None and abs(ours / published - 1) < NEAR


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.3g}"


def draw_fig2(data: Any) -> Figure:
    """A panel for each distance."""
    figure, (row,) = panels(1, len(data["alpha"]), "Reverse KL from one Gaussian to two, on a line", 2.4)
    for k, (axes, alpha) in enumerate(zip(row, data["alpha"], strict=True)):
        x = np.linspace(-4, alpha + 4, 400)
        target = (_normal(x, 0, 1) + _normal(x, alpha, 1)) / 2
        axes.fill_between(x, target, color=FAINT, alpha=0.35, linewidth=0, label="target")
        looks: tuple[Look, ...] = (
            ("fitted", "fitted on samples, from the left mode", FIT_COLOUR, "solid"),
            ("from_mode", "exact descent from the left mode", LIMIT_COLOUR, DASHED),
            ("optimum", "the best Gaussian", OPTIMUM_COLOUR, DOTTED),
        )
        for name, label, colour, dashes in looks:
            density = _normal(x, data[name]["mean"][k], data[name]["std"][k])
            axes.plot(x, density, color=colour, linewidth=1.8, linestyle=dashes, label=label)
        style(axes, "x", "density" if k == 0 else "", f"alpha = {alpha:g}")
        axes.set_ylim(bottom=0)
    legend(figure, row[0], 4)
    return figure


def draw_fig3(data: Any) -> Figure:
    """Interpolation, determinant and KL against alpha."""
    figure, (row,) = panels(1, 3, "The Gaussian of least reverse KL to two standard normals at distance alpha")
    labels = {"interpolation": "||mean|| / alpha", "determinant": "det Sigma", "kl": "KL (nats)"}
    for axes, (key, label) in zip(row, labels.items(), strict=True):
        style(axes, "alpha", label)
        _draw_exact(axes, data["exact"], key)
        axes.plot(
            data["alpha"], data["fitted"][key], ".", color=FIT_COLOUR, markersize=4, label=_sampling_label(data, "SGD")
        )
        _thresholds(axes, data["exact"], published=5.0)
    legend(figure, row[0], 3)
    return figure


def draw_fig5(data: Any) -> Figure:
    """Interpolation above, KL below, a column for each sigma."""
    figure, grid = panels(2, len(data["rows"]), "The threshold scales with the deviation sigma of the modes", 2.4)
    for column, row in enumerate(data["rows"]):
        for axes, key, label in (
            (grid[0][column], "interpolation", "||mean|| / alpha"),
            (grid[1][column], "kl", "KL (nats)"),
        ):
            title = f"sigma = {row['sigma']:g}" if key == "interpolation" else ""
            style(axes, "alpha", label if column == 0 else "", title)
            _draw_exact(axes, row["exact"], key)
            axes.plot(
                row["alpha"], row["sgd"][key], ".", color=FIT_COLOUR, markersize=4, label=_sampling_label(data, "SGD")
            )
            axes.plot(
                row["alpha"], row["adam"][key], "x", color=INK, markersize=3.5, label=_sampling_label(data, "Adam")
            )
            _thresholds(axes, row["exact"], published=5 * row["sigma"])
        grid[0][column].set_ylim(-0.04, 0.74)  # the smallest alpha is all noise
    legend(figure, grid[0][0], 4)
    return figure


def _draw_exact(axes: Axes, data: Any, key: str) -> None:
    looks: tuple[Look, ...] = (
        ("same_steps", "as many steps of SGD, without noise", STEPS_COLOUR, "solid"),
        ("from_mode", "descent from a mode to its end, without noise", LIMIT_COLOUR, "solid"),
        ("optimum", "the best Gaussian", OPTIMUM_COLOUR, DASHED),
    )
    for name, label, colour, dashes in looks:
        axes.plot(data["alpha"], data[name][key], color=colour, linewidth=1.4, linestyle=dashes, label=label)


def _thresholds(axes: Axes, data: Any, published: float) -> None:
    for x, colour, dashes, label in (
        (published, INK, "solid", "published threshold"),
        (data["fold"], LIMIT_COLOUR, DOTTED, "exact threshold of descent from a mode"),
        (data["crossing"], OPTIMUM_COLOUR, DOTTED, "exact threshold of the optimum"),
    ):
        axes.axvline(x, color=colour, linewidth=0.9, linestyle=dashes, label=label, zorder=1)


def _sampling_label(data: Any, optimizer: str) -> str:
    return f"{optimizer}, {data['descent']['steps']} steps of {data['descent']['samples']} samples"


def _normal(x: NDArray[np.float64], mean: float, std: float) -> NDArray[np.float64]:
    density: NDArray[np.float64] = np.exp(-(((x - mean) / std) ** 2) / 2) / (std * np.sqrt(2 * np.pi))
    return density


exhibit("gelberg2024/fig2", "the Gaussian fitted by reverse KL to two modes, on a line", fig2, draw_fig2)
exhibit("gelberg2024/fig3", "mean, variance and KL of that Gaussian by the distance of the modes", fig3, draw_fig3)
exhibit("gelberg2024/fig5", "the threshold of mode seeking by the deviation of the modes", fig5, draw_fig5)
