"""A named data set: a training and a test split, and the units of both."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from coset.data.split import Split
from coset.data.standardize import Standardization


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
