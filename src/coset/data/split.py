"""A split: inputs and targets of the same examples, held in memory on one device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from coset.errors import DataError


# Tensors have no truth value as a whole, so the generated comparison could only raise: identity is meant.
@dataclass(frozen=True, eq=False, repr=False)
class Split:
    """Examples as two tensors; unpacks as `inputs, targets = split`.

    inputs: (n, ...); targets: (n,) int64 classes, or (n, 1) float32 values for regression.
    """

    inputs: Tensor
    targets: Tensor

    def __post_init__(self) -> None:
        shapes = f"inputs {tuple(self.inputs.shape)} and targets {tuple(self.targets.shape)}"
        if self.inputs.ndim == 0 or self.targets.ndim == 0 or len(self.inputs) != len(self.targets):
            raise DataError(f"{shapes} must have the same number of examples as their first dimension")
        if len(self.inputs) == 0:
            raise DataError(f"{shapes} hold no example")
        if self.inputs.device != self.targets.device:
            devices = f"{self.inputs.device} and {self.targets.device}"
            raise DataError(f"{shapes} are on two devices, {devices}: move them to one")

    def __len__(self) -> int:
        """The number of examples n."""
        return len(self.inputs)

    def __iter__(self) -> Iterator[Tensor]:
        yield self.inputs
        yield self.targets

    def __repr__(self) -> str:
        parts = (f"{tuple(t.shape)} {str(t.dtype).removeprefix('torch.')}" for t in self)
        return f"Split({' -> '.join(parts)}, {self.inputs.device})"

    def to(self, device: torch.device | str) -> Split:
        """The same examples on `device`."""
        return Split(self.inputs.to(device), self.targets.to(device))

    def subset(self, n: int, generator: torch.Generator) -> Split:
        """`n` different examples drawn at random, in random order."""
        if not 1 <= n <= len(self):
            raise DataError(f"cannot draw {n} different examples from a split of {len(self)}")
        rows = self._shuffled(generator)[:n]
        return Split(self.inputs[rows], self.targets[rows])

    def minibatches(
        self,
        batch_size: int,
        generator: torch.Generator | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """One epoch of `(inputs, targets)` pairs of `batch_size` examples, each example exactly once.

        The order is drawn from `generator` at the call, not while iterating, so it does not depend on
        what else draws from it meanwhile. The last pair is shorter when `batch_size` does not divide n;
        `drop_last` leaves it out. Without `shuffle` the pairs are views of the split.
        """
        n = len(self)
        if batch_size < 1:
            raise DataError(f"a batch size of {batch_size} is not positive")
        if drop_last and batch_size > n:
            raise DataError(f"batches of {batch_size} with drop_last leave nothing of a split of {n}")
        stop = n - n % batch_size if drop_last else n
        starts = range(0, stop, batch_size)
        if not shuffle:
            return ((self.inputs[i : i + batch_size], self.targets[i : i + batch_size]) for i in starts)
        if generator is None:
            raise DataError("a shuffled epoch needs a torch.Generator")
        order = self._shuffled(generator)[:stop]
        rows = (order[i : i + batch_size] for i in starts)
        return ((self.inputs[chosen], self.targets[chosen]) for chosen in rows)

    def _shuffled(self, generator: torch.Generator) -> Tensor:
        """All row numbers (n,) in random order, on the split's device."""
        order = torch.randperm(len(self), generator=generator, device=generator.device)
        return order.to(self.inputs.device)
