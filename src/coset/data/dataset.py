"""A named data set: a training and a test split, and the units of both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader

from coset.core.errors import DataError
from coset.core.show import Shown, Table

LISTED = 8  # classes that are shown by name


# Tensors have no truth value as a whole, so the generated comparison could only raise: identity is meant.
@dataclass(frozen=True, eq=False, repr=False)
class Split(Shown):
    """Examples as two tensors; unpacks as `inputs, targets = split`.

    Args:
        inputs: (n, ...).
        targets: (n,) int64 classes, or (n, 1) float32 values for regression; (n, context) characters of a text.

    Raises:
        DataError: the tensors do not hold the same number of examples, at least one, on one device.

    Example:
        >>> split = coset.Split(torch.zeros(5, 3), torch.arange(5))
        >>> len(split)
        5
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

    def _shown(self) -> Table:
        return Table(f"Split({_arrow(self)}, {self.inputs.device})")

    def to(self, device: torch.device | str) -> Split:
        """The same examples on a device.

        Args:
            device: of both tensors of the result.
        """
        return Split(self.inputs.to(device), self.targets.to(device))

    def subset(self, n: int, generator: torch.Generator) -> Split:
        """Different examples, drawn at random and in random order.

        Args:
            n: how many.
            generator: what the choice and the order come from.

        Raises:
            DataError: there are not as many.
        """
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
        """One epoch of `(inputs, targets)` pairs, each example exactly once.

        The order is drawn at the call, not while iterating, so it does not depend on what else draws from the
        generator meanwhile.

        Args:
            batch_size: examples in each pair; the last one has fewer when it does not divide n.
            generator: what the order comes from; None only without `shuffle`.
            shuffle: in random order; without it the pairs are views of the split.
            drop_last: leave out the last pair if it has fewer examples.

        Raises:
            DataError: there would be no batch, or no generator to shuffle by.
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
        return ((self.inputs[batch], self.targets[batch]) for batch in rows)

    def _shuffled(self, generator: torch.Generator) -> Tensor:
        """All row numbers (n,) in random order, on the split's device."""
        order = torch.randperm(len(self), generator=generator, device=generator.device)
        return order.to(self.inputs.device)


@dataclass(frozen=True, eq=False, repr=False)
class Standardization(Shown):
    """From raw units to standardized ones, `(raw - mean) / std`, and back.

    A predicted standard deviation goes back by `* std`, a log density by `- log(std)`.

    Args:
        mean: what becomes zero; it broadcasts over the examples.
        std: what becomes one; it broadcasts over the examples.

    Example:
        >>> scale = coset.data.Standardization(torch.tensor([2.0]), torch.tensor([4.0]))
        >>> scale.apply(torch.tensor([6.0]))
        tensor([1.])
    """

    mean: Tensor
    std: Tensor

    def _shown(self) -> Table:
        size = "x".join(map(str, self.mean.shape)) or "one number"
        return Table(f"Standardization({size}, mean {_range(self.mean)}, std {_range(self.std)})")

    def apply(self, raw: Tensor) -> Tensor:
        """Raw values to standardized ones.

        Args:
            raw: (n, ...).
        """
        return (raw - self.mean) / self.std

    def invert(self, standardized: Tensor) -> Tensor:
        """Standardized values back to raw ones.

        Args:
            standardized: (n, ...).
        """
        return standardized * self.std + self.mean

    def to(self, device: torch.device | str) -> Standardization:
        """The same on a device.

        Args:
            device: of both tensors of the result.
        """
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


@dataclass(frozen=True, eq=False, repr=False)
class DataSet(Shown):
    """A training and a test split in standardized units.

    Args:
        name: what `coset.data.load` calls it.
        train: the examples to train on.
        test: the others.
        classes: the class names in the order of the targets, None for regression.
        input_scale: maps raw inputs (pixels in [0, 1] for images) to the splits' inputs and back.
        target_scale: the same for regression targets, so that predictions can be mapped back; None for classification.

    Example:
        >>> digits.name, len(digits.train), len(digits.test), len(digits.classes)
        ('digits', 1442, 355, 10)
    """

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...] | None
    input_scale: Standardization
    target_scale: Standardization | None = None

    def _shown(self) -> Table:
        rows: list[tuple[object, ...]] = [
            (part, f"{len(split):,} examples", _arrow(split))
            for part, split in (("train", self.train), ("test", self.test))
        ]
        if self.classes is not None:
            rest = ", ..." if len(self.classes) > LISTED else ""
            rows.append(("classes", len(self.classes), ", ".join(self.classes[:LISTED]) + rest))
        rows.append(("device", self.train.inputs.device))
        return Table(f"DataSet {self.name}", rows)

    def to(self, device: torch.device | str) -> DataSet:
        """The same data set with every tensor on a device.

        Args:
            device: of all tensors of the result.
        """
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
    """Any data as a `Split`; tensors are not copied.

    Args:
        data: `(inputs, targets)` tensors, a Split, or a DataLoader of such pairs. A DataLoader is read through once, so
            random augmentation is frozen and what its sampler or `drop_last` leaves out is not in the split.

    Raises:
        DataError: it is something else, or the batches do not fit together.

    Example:
        >>> coset.data.as_split((torch.zeros(5, 3), torch.arange(5)))
        Split((5, 3) float32 -> (5,) int64, cpu)
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
    kind = type(value).__name__
    if isinstance(value, tuple | list):
        kind += f" of {', '.join(type(part).__name__ for part in value[:3]) or 'nothing'}"
    raise DataError(f"{what} must be a pair of tensors (inputs, targets), not a {kind}")


def _arrow(split: Split) -> str:
    return " -> ".join(f"{tuple(x.shape)} {str(x.dtype).removeprefix('torch.')}" for x in split)


def _range(x: Tensor) -> str:
    """`0.305`, or `-1 to 2` for several values."""
    if x.is_meta:
        return "unknown"
    low, high = float(x.min()), float(x.max())
    return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
