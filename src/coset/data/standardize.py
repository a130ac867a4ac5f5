"""The change of units between raw values and what a network sees."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Standardization:
    """`raw -> (raw - mean) / std`; mean and std broadcast over the examples.

    A predicted standard deviation goes back by `* std`, a log density by `- log(std)`.
    """

    mean: Tensor
    std: Tensor

    def apply(self, raw: Tensor) -> Tensor:
        """Raw values (n, ...) to standardized ones."""
        return (raw - self.mean) / self.std

    def invert(self, standardized: Tensor) -> Tensor:
        """Standardized values (n, ...) back to raw ones."""
        return standardized * self.std + self.mean

    def to(self, device: torch.device | str) -> Standardization:
        """The same on `device`."""
        return Standardization(self.mean.to(device), self.std.to(device))


def standardize(values: NDArray[np.float64], train: NDArray[np.int64]) -> tuple[NDArray[np.float64], Standardization]:
    """Standardize columns (n, d) by the mean and population deviation of the rows `train`.

    Works in float64: naval's columns span six orders of magnitude. A column that is constant on the
    training rows is only centred, since it has no scale of its own.
    """
    rows = values[train]
    # Found by comparison: the computed mean of a constant is not always that constant (naval has one).
    constant = rows.max(axis=0) == rows.min(axis=0)
    mean = np.where(constant, rows[0], rows.mean(axis=0))
    std = np.where(constant, 1.0, rows.std(axis=0))
    scale = Standardization(torch.from_numpy(mean).float(), torch.from_numpy(std).float())
    return (values - mean) / std, scale
