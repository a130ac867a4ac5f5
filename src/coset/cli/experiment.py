"""A model on a data set, as commands that train or measure run it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from coset import data
from coset.cli.model import ModelSpec
from coset.core import state as states
from coset.core.errors import ModelError
from coset.core.functional import evaluating


@dataclass(frozen=True, eq=False)
class Experiment:
    """A model, and data that it takes; `split_name` is that of the split that solutions are measured on."""

    module: nn.Module
    dataset: data.DataSet
    split_name: str

    @classmethod
    def of(cls, spec: ModelSpec, name: str, split: int | None) -> Experiment:
        """The model, and the data set `name` with its images as vectors where the model takes nothing else."""
        module = spec.build()
        dataset = data.load(name, split, spec.device)
        try:
            _run(module, dataset, spec.device)
        except ModelError:
            if dataset.train.inputs.ndim == 2:
                raise
            flat = data.load(name, split, spec.device, flatten=True)
            try:
                _run(module, flat, spec.device)
            except ModelError:
                flat = dataset  # whoever runs the model next says what is wrong
            dataset = flat
        # Snelson's test inputs are a grid without targets.
        targets = dataset.test.targets
        has_targets = not targets.is_floating_point() or bool(targets.isfinite().all())
        return cls(module, dataset, "test" if has_targets else "train")

    @property
    def split(self) -> data.Split:
        return self.dataset.test if self.split_name == "test" else self.dataset.train

    @property
    def target_std(self) -> float | None:
        """Of the targets of a regression, in the units of the data; None for classes."""
        scale = self.dataset.target_scale
        return None if scale is None else float(scale.std)

    @property
    def notes(self) -> list[str]:
        """What a reader of the scores should know."""
        notes = []
        if self.split_name == "train":
            notes.append(f"{self.dataset.name} has no test targets, so these are scores on the training split")
        if self.target_std is not None:
            notes.append(f"targets are standardized: times {self.target_std:.4g} the rmse is in the units of the data")
        return notes


def _run(module: nn.Module, dataset: data.DataSet, device: str) -> None:
    with evaluating(module, torch.device(device)) as ready, torch.no_grad():
        states.call(ready, states.of(ready), (dataset.train.inputs[:2],))
