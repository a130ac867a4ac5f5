"""How numbers, one a network, are spread."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

LEVELS = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


@dataclass(frozen=True)
class Spread:
    """Of n numbers the mean, the standard deviation (None for one), the extremes, and the quantiles at `LEVELS`."""

    n: int
    mean: float
    std: float | None
    least: float
    largest: float
    quantiles: tuple[float, ...]

    def record(self) -> dict[str, object]:
        """For JSON; what is not finite is None."""
        return {
            "n": self.n,
            "mean": finite(self.mean),
            "std": finite(self.std),
            "least": finite(self.least),
            "largest": finite(self.largest),
            "quantiles": {f"{level:g}": finite(x) for level, x in zip(LEVELS, self.quantiles, strict=True)},
        }


def spread(values: Tensor) -> Spread:
    """The spread of values [n]; quantiles are linear between the values next to them."""
    x = values.double().cpu()
    return Spread(
        n=len(x),
        mean=float(x.mean()),
        std=float(x.std()) if len(x) > 1 else None,
        least=float(x.min()),
        largest=float(x.max()),
        quantiles=tuple(torch.quantile(x, torch.tensor(LEVELS, dtype=torch.float64)).tolist()),
    )


def finite(x: float | None) -> float | None:
    """`x`, or None if JSON has no such number."""
    return x if x is not None and math.isfinite(x) else None
