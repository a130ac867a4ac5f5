"""What is known about each network, as numbers that a field takes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coset.core.errors import CosetError

log = logging.getLogger(__name__)

FAR = 10.0  # deviations from the mean


@dataclass(frozen=True, eq=False)
class Conditions:
    """Labels of a population by name, each of one or more numbers, in units of their deviation.

    sizes: how many numbers each label has; mean, std: [k] of all of them, one after the other.
    """

    sizes: Mapping[str, int]
    mean: Tensor
    std: Tensor

    @classmethod
    def measured(cls, names: Sequence[str], populations: Sequence[Mapping[str, Tensor]]) -> Conditions:
        """The conditions `names`, with mean and deviation over the labels of all populations."""
        for labels in populations:
            missing = [name for name in names if name not in labels]
            if missing:
                names_of_labels = ", ".join(map(repr, labels)) or "none"
                raise CosetError(
                    f"The population has no label {missing[0]!r} to be conditioned on; it has {names_of_labels}."
                )
        columns = {}
        for name in names:
            parts = [columns_of(labels[name]).cpu() for labels in populations]
            if len({part.shape[1] for part in parts}) > 1:
                raise CosetError(f"The label {name!r} has more numbers in one population than in another.")
            columns[name] = torch.cat(parts)
        matrix = torch.cat(list(columns.values()), 1).double()
        std = matrix.std(0, correction=0)
        return cls(
            {name: x.shape[1] for name, x in columns.items()},
            matrix.mean(0).float(),
            torch.where(std > 0, std, 1.0).float(),
        )

    @property
    def size(self) -> int:
        return len(self.mean)

    def matrix(self, values: Mapping[str, Tensor | float], n: int) -> Tensor:
        """[n, k] in units, of a value for each name: see `values`."""
        return (torch.cat(list(self.values(values, n).values()), 1) - self.mean) / self.std

    def values(self, values: Mapping[str, Tensor | float], n: int) -> dict[str, Tensor]:
        """name -> [n, size], of a value for each name: a number for all networks, or [n] or [n, size] for each."""
        odd = [name for name in values if name not in self.sizes] + [name for name in self.sizes if name not in values]
        if odd:
            names = ", ".join(map(repr, self.sizes))
            raise CosetError(f"This flow is conditioned on {names}: give a value for each of them and nothing else.")
        columns = {}
        for name, size in self.sizes.items():
            x = torch.as_tensor(values[name], dtype=torch.float32, device=self.mean.device)
            if x.dim() == 0 or (x.dim() == 1 and len(x) == size):
                x = x.expand(n, size)
            x = columns_of(x)
            if tuple(x.shape) != (n, size):
                raise CosetError(f"Condition {name!r} needs {size} numbers for each of {n} networks.")
            if not bool(x.isfinite().all()):
                raise CosetError(f"Condition {name!r} has NaN or infinite values.")
            columns[name] = x
        return columns

    def warn_if_far(self, matrix: Tensor) -> None:
        """Of conditions [n, k] in units that are nowhere near those that were learned."""
        names = [name for name, size in self.sizes.items() for _ in range(size)]
        for name, far in zip(names, matrix.abs().amax(0).tolist(), strict=True):
            if far > FAR:
                log.warning(
                    "the condition %r is %.3g deviations from the mean of those that this flow was learned from",
                    name,
                    far,
                )

    def to(self, device: torch.device) -> Conditions:
        return Conditions(self.sizes, self.mean.to(device), self.std.to(device))


def columns_of(x: Tensor) -> Tensor:
    """[n, k] of a label [n] or [n, k]."""
    return x[:, None] if x.dim() == 1 else x
