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

import torch
from torch import Tensor

from coset_papers.gelberg2024 import reverse_kl_exact as exact
from coset_papers.gelberg2024.reverse_kl import Descent, Fits, minimise
from coset_papers.outcome import Claim, Outcome
from coset_papers.settings import Settings

HALFWAY = 0.25  # between the interpolation of the midpoint and that of a mode
PUBLISHED = {0.25: 1.25, 0.5: 2.5, 1.0: 5.0, 2.0: 10.0}  # sigma and its threshold, Figure 5
NEAR = 0.1  # relative distance of a threshold that is still the published one, which is read off a plot
OPTIMIZERS: tuple[Literal["sgd", "adam"], ...] = ("sgd", "adam")
LARGEST = 8.0  # alpha / sigma
CLOSE = 4.0  # surely below the threshold
SHOWN = (2.0, 4.0, 5.0, 6.0)  # the distances of Figure 2


@dataclass(frozen=True)
class Sizes:
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

    def descent(self, optimizer: Literal["sgd", "adam"] = "sgd", dimension: int = 2) -> Descent:
        """How to minimise at this scale."""
        return Descent(self.samples, self.steps, self.rate, optimizer, dimension)


SIZES = {
    "smoke": Sizes(samples=100, steps=1000, rate=3e-2, spacing=0.5, fine=0.25),
    "short": Sizes(samples=500, steps=3000, rate=1e-2, spacing=0.2, fine=0.1),
    "paper": Sizes(samples=5000, steps=3000, rate=1e-2, spacing=0.1, fine=0.05),
}


def fig2(settings: Settings) -> Outcome:
    """Figure 2: target and minimiser on a line."""
    descent = SIZES[settings.scale].descent(dimension=1)
    fit = _fit(settings, SHOWN, [1.0] * len(SHOWN), descent)
    means = [mean for (mean,) in fit["mean"]]
    a = torch.tensor(SHOWN, dtype=torch.float64)
    data = {
        "alpha": SHOWN,
        "descent": asdict(descent),
        "fitted": {"mean": means, "std": [abs(std) for ((std,),) in fit["factor"]]},
        "from_mode": _line(exact.from_mode(a)),
        "optimum": _line(exact.optimum(a)),
    }
    below = [k for k, alpha in enumerate(SHOWN) if alpha < exact.fold()]
    above = [k for k in range(len(SHOWN)) if k not in below]
    shares = [abs(mean) / alpha for mean, alpha in zip(means, SHOWN, strict=True)]
    where = ", ".join(f"{share:.2f}" for share in shares)
    best = ", ".join(f"{float(m) / alpha:.2f}" for m, alpha in zip(exact.optimum(a).m, SHOWN, strict=True))
    names = ", ".join(f"{alpha:g}" for alpha in SHOWN)
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
    fitted = _summary(_fit(settings, alphas, [1.0] * len(alphas), descent), alphas)
    curves = _exact(settings, 1.0, sizes)
    data = {"alpha": alphas, "descent": asdict(descent), "fitted": fitted, "exact": curves}
    return Outcome(data, (*_threshold_claims(alphas, fitted), *_shape_claims(alphas, fitted, curves)))


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
        for name, fitted in (("sgd", by_sgd), ("adam", by_adam)):
            row[name] = {key: values[part] for key, values in fitted.items()}
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


def _fit(settings: Settings, alphas: Sequence[float], sigmas: Sequence[float], descent: Descent) -> Any:
    def compute() -> dict[str, Any]:
        alpha, sigma = (torch.tensor(values, device=settings.device) for values in (alphas, sigmas))
        found = minimise(alpha, sigma, descent, settings.generator(), settings.say)
        return {key: getattr(found, key).tolist() for key in Fits.__dataclass_fields__}

    known = {"alphas": list(alphas), "sigmas": list(sigmas), **asdict(descent)}
    return settings.keep("gelberg2024-reverse-kl", compute, **known)


def _summary(fit: Any, alphas: list[float]) -> dict[str, list[float]]:
    lengths = torch.tensor(fit["mean"]).norm(dim=-1)
    determinants = torch.tensor(fit["factor"]).diagonal(dim1=-2, dim2=-1).prod(-1).square()
    return {
        "interpolation": (lengths / torch.tensor(alphas)).tolist(),
        "determinant": determinants.tolist(),
        "kl": fit["kl"],
    }


def _exact(settings: Settings, sigma: float, sizes: Sizes) -> Any:
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

    known = {"sigma": sigma, "rate": sizes.rate, "steps": sizes.steps, "spacing": sizes.fine}
    return settings.keep("gelberg2024-reverse-kl-exact", compute, **known)


def _line(q: exact.Line, a: Tensor | None = None) -> dict[str, list[float]]:
    if a is None:
        return {"mean": q.m.tolist(), "std": q.s.tolist()}
    return {
        "interpolation": (q.m / a).tolist(),
        "determinant": q.s.square().tolist(),  # times sigma^(2 d); across, the deviations are sigma
        "kl": exact.kl(q, a).tolist(),
    }


def _threshold_claims(alphas: list[float], fitted: dict[str, list[float]]) -> tuple[Claim, ...]:
    ours = threshold(alphas, fitted["interpolation"])
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


def _shape_claims(alphas: list[float], fitted: dict[str, list[float]], curves: Any) -> tuple[Claim, ...]:
    below = [k for k, alpha in enumerate(alphas) if 1.0 <= alpha <= CLOSE]  # nearer to 0 noise decides
    off = max(abs(fitted["interpolation"][k] - 0.5) for k in below)
    determinants = [fitted["determinant"][k] for k in below]
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
            f"{fitted['kl'][-1]:.3f} at alpha {alphas[-1]:g}",
            abs(fitted["kl"][-1] - math.log(2)) < 0.1,
        ),
    )


def _scaling_claims(rows: list[dict[str, Any]], sizes: Sizes) -> tuple[Claim, ...]:
    found = [
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
    left = _number(wide["sgd"]["threshold"])
    linear = Claim(
        "the threshold is linear in sigma",
        "linear",
        f"{exact.fold():.6f} sigma",
        True,
        "x -> x / sigma maps the problem of one sigma to that of another, so every threshold is exactly linear. SGD "
        f"at one rate for all is not: in units of sigma it is {sizes.rate:g} / sigma^2, and at sigma "
        f"{wide['sigma']:g} {sizes.steps} steps do not arrive (threshold {left}, and no jump). The published "
        "thresholds are those of Adam, or of more steps.",
    )
    return (*found, linear)


def _near(ours: float | None, published: float) -> bool:
    return ours is not None and abs(ours / published - 1) < NEAR


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.3g}"
