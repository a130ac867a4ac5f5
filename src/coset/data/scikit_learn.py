"""The two data sets that come with scikit-learn, so that something works with no files at all: digits, breast cancer.

Neither has an official split. Here the fifth, tenth, ... example of each class, in file order, is for
testing: every class keeps its share, and no random number generator can change it.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
import torch
from numpy.typing import NDArray

from coset.core.extras import require
from coset.data.dataset import DataSet, Split, standardize
from coset.data.images import image_set

# Of the 1442 training images, with pixels in [0, 1].
DIGITS_MEAN, DIGITS_STD = (0.3051,), (0.3762,)


def digits(flatten: bool) -> DataSet:
    """Handwritten digits: 1442 + 355 grey images of 8x8 pixels."""
    source = _sets().load_digits()
    pixels = source.images.astype(np.uint8)[:, None]
    labels = source.target.astype(np.uint8)
    train, test = _every_fifth(source.target)
    return image_set(
        "digits",
        (pixels[train], labels[train]),
        (pixels[test], labels[test]),
        [str(digit) for digit in range(10)],
        DIGITS_MEAN,
        DIGITS_STD,
        white=16,
        flatten=flatten,
    )


def breast_cancer() -> DataSet:
    """Wisconsin diagnostic breast cancer: 456 + 113 rows of 30 features, two classes."""
    source = _sets().load_breast_cancer()
    train, test = _every_fifth(source.target)
    values, scale = standardize(source.data, train)
    inputs = torch.from_numpy(values).float()
    targets = torch.from_numpy(source.target).long()
    return DataSet(
        "breast-cancer",
        Split(inputs[train], targets[train]),
        Split(inputs[test], targets[test]),
        tuple(str(name) for name in source.target_names),
        scale,
    )


def _sets() -> ModuleType:
    """scikit-learn's own; importing it takes a second, so only those who need it wait."""
    return require("sklearn.datasets", "data")


def _every_fifth(labels: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row numbers of the training and of the test examples, both ascending."""
    held_out = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        held_out[np.flatnonzero(labels == label)[4::5]] = True
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)
