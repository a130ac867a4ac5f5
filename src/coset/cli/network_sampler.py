"""Draws networks from a flow, as the options of `coset flow sample` say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from coset.cli.console import Display
from coset.cli.experiment import Experiment
from coset.cli.model import ModelSpec
from coset.cli.population_files import infer_symmetry, noise_of
from coset.core import state as states
from coset.core.progress import Progress
from coset.flow.flow import BATCH, Flow
from coset.flow.guidance import Guidance
from coset.flow.likelihood import DivergenceName
from coset.populations.population import Population

ON_CPU = 64  # networks of a batch there, where larger ones are not faster: what is lost if the command is stopped
EXAMPLES = 256  # that a guided flow is measured on at each step, so that the work does not grow with the data


@dataclass(frozen=True, eq=False)
class NetworkSampler:
    """steps, method, noise, guidance: as in `Flow.sample`. condition: the numbers of each label, for all networks.

    divergence: how densities are computed, None without them.
    """

    flow: Flow
    guidance: Guidance | None
    steps: int
    method: str
    noise: float
    condition: Mapping[str, Sequence[float]]
    divergence: DivergenceName | None

    def draw(self, n: int, generator: torch.Generator, progress: Progress) -> Population:
        """n networks, with their log densities if these are computed."""
        condition = {name: torch.tensor(numbers).expand(n, -1) for name, numbers in self.condition.items()}
        if self.divergence is None:
            samples = self.flow.sample(
                n,
                self.steps,
                self.method,
                noise=self.noise,
                guidance=self.guidance,
                condition=condition,
                generator=generator,
                progress=progress,
            )
            return replace(samples, starts=None)
        samples, logs = self.flow.sample_with_log_prob(
            n,
            self.steps,
            self.method,
            divergence=self.divergence,
            condition=condition,
            generator=generator,
            progress=progress,
        )
        return replace(samples, starts=None, labels={**samples.labels, "log_prob": logs})


def batch_size(device: str) -> int:
    """Networks that are drawn together."""
    return BATCH if torch.device(device).type == "cuda" else ON_CPU


def widen(flow: Flow, spec: ModelSpec, display: Display) -> Flow:
    """The flow for the networks of a model that differs in width."""
    display.stage(f"building {spec.name}")
    module = spec.build()
    display.stage(f"inferring the symmetry of {spec.name}")
    return flow.on(infer_symmetry(module, spec), states.of(module))


def check_model(flow: Flow, spec: ModelSpec, path: Path) -> None:
    """Refuse a flow of networks of another model."""
    states.check(flow.sampler.space.template, states.of(spec.build()), str(path))


def guidance_by(flow: Flow, spec: ModelSpec, data: str, split: int | None, strength: float) -> Guidance:
    """Towards networks that do well on the training split of a data set."""
    experiment = Experiment.of(spec, data, split)
    train = experiment.dataset.train
    noise = noise_of(None, flow.sampler.about) if train.targets.is_floating_point() else None
    return Guidance(experiment.module.to(spec.device), train, strength, min(EXAMPLES, len(train)), noise=noise)
