"""From pixels and labels to a data set."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coset.data.dataset import DataSet, Split, Standardization

Labelled = tuple[NDArray[np.uint8], NDArray[np.uint8]]
"""Pixels (n, channels, height, width) and labels (n,)."""


def image_set(
    name: str,
    train: Labelled,
    test: Labelled,
    classes: Sequence[str],
    mean: Sequence[float],
    std: Sequence[float],
    *,
    white: int = 255,
    flatten: bool,
) -> DataSet:
    """Normalize pixels by the channels' `mean` and `std`, given for pixels in [0, 1]; `white` is their 1.

    The inputs are float32 (n, channels, height, width), or (n, channels * height * width) if `flatten`.
    """
    shape = train[0].shape[1:]
    scale = Standardization(
        torch.tensor(mean).reshape(-1, 1, 1).expand(shape),
        torch.tensor(std).reshape(-1, 1, 1).expand(shape),
    )
    if flatten:
        scale = Standardization(scale.mean.flatten(), scale.std.flatten())

    def split(pixels: NDArray[np.uint8], labels: NDArray[np.uint8]) -> Split:
        inputs: Tensor = torch.tensor(pixels, dtype=torch.float32)
        if flatten:
            inputs = inputs.flatten(1)
        # In place: CIFAR's 50000 training images are 0.6 GB.
        inputs.div_(white).sub_(scale.mean).div_(scale.std)
        return Split(inputs, torch.tensor(labels, dtype=torch.int64))

    return DataSet(name, split(*train), split(*test), tuple(classes), scale)
