"""A named data set: a training and a test split, and the units of both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader

from coset.core.errors import DataError


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


@dataclass(frozen=True, eq=False)
class DataSet:
    """Two splits in standardized units.

    classes: the class names in the order of the targets, None for regression.
    input_scale: maps raw inputs (pixels in [0, 1] for images) to the splits' inputs and back.
    target_scale: the same for regression targets, so that predictions can be mapped back; None for
    classification.
    """

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...] | None
    input_scale: Standardization = field(repr=False)
    target_scale: Standardization | None = field(default=None, repr=False)

    def to(self, device: torch.device | str) -> DataSet:
        """The same data set with every tensor on `device`."""
        target_scale = None if self.target_scale is None else self.target_scale.to(device)
        return DataSet(
            self.name,
            self.train.to(device),
            self.test.to(device),
            self.classes,
            self.input_scale.to(device),
            target_scale,
        )


Data = Split | tuple[Tensor, Tensor] | DataLoader[Any]
"""`(inputs, targets)` tensors, a Split, or a DataLoader that yields such pairs."""


def as_split(data: Data) -> Split:
    """`data` as a Split; tensors are kept, not copied.

    A DataLoader is read through once, so random augmentation is frozen and what its sampler or
    `drop_last` leaves out is not in the split.
    """
    if isinstance(data, Split):
        return data
    if isinstance(data, DataLoader):
        return _read(data)
    if isinstance(data, DataSet):
        raise DataError(f"{data.name} holds two splits: pass its .train or its .test")
    return Split(*_pair(data, "data"))


def _read(loader: DataLoader[Any]) -> Split:
    # A shuffling loader draws its order from the global generator. A fixed seed makes the split the
    # same each time, and putting the state back leaves the caller's random numbers alone.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        batches = [_pair(batch, "a batch of the DataLoader") for batch in loader]
    if not batches:
        raise DataError("the DataLoader yields no batch")
    inputs, targets = zip(*batches, strict=True)
    try:
        return Split(torch.cat(inputs), torch.cat(targets))
    except RuntimeError as error:
        raise DataError(f"the batches of the DataLoader do not fit together: {error}") from error


def _pair(value: object, what: str) -> tuple[Tensor, Tensor]:
    if isinstance(value, tuple | list) and len(value) == 2:
        inputs, targets = value
        if isinstance(inputs, Tensor) and isinstance(targets, Tensor):
            return inputs, targets
    found = type(value).__name__
    if isinstance(value, tuple | list):
        found += f" of {', '.join(type(part).__name__ for part in value[:3]) or 'nothing'}"
    raise DataError(f"{what} must be a pair of tensors (inputs, targets), not a {found}")
