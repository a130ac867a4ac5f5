"""What a caller may pass as `data`, and how it becomes a split."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from coset.data.dataset import DataSet
from coset.data.split import Split
from coset.errors import DataError

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
