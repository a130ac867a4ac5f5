"""What an error of the velocity does to the outputs of the network at the end of its path."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.func import jvp, vmap

from coset.core.errors import CosetError, ModelError
from coset.core.functional import functional_call
from coset.core.resume import tensor_digest
from coset.data import Data, Split, as_split
from coset.flow.coordinates import BaseDistribution, Space, TrainingSet
from coset.populations.population_outputs import WeightsFirst
from coset.solutions.likelihood import Classification, likelihood_of
from coset.training.network import check_call

INPUTS = 64  # that errors are measured on in a step
PAIRS = 256  # paths whose outputs are measured


@dataclass(frozen=True, eq=False)
class OutputLoss:
    """E e^T G e, with the Fisher information G of the network where the path is predicted to end.

    G = E_x J(x)^T H J(x), J the derivative of the outputs in the weights, H = diag(p) - p p^T for classes and 1 for
    values; estimated on `count` inputs for all networks of a batch. The place depends on the point of the path and on
    no network that the path leads to, so the velocity with the least error is still the mean of all that go through
    the point (flow matching with any metric that is a function of x_t and t has one solution).

    scale
        what it is of whole velocities at points along their paths, which counts as one
    """

    model: nn.Module
    space: Space
    inputs: Tensor
    classifies: bool
    count: int
    scale: float = 1.0

    @classmethod
    def of(
        cls, own: TrainingSet, base: BaseDistribution, model: nn.Module | None, data: Data | None, widths: int
    ) -> OutputLoss:
        """On inputs of the data, in units of the paths to these networks."""
        if model is None or data is None:
            raise CosetError("Errors of outputs need both, a model and data.")
        if widths > 1:
            raise CosetError("Errors of outputs are those of one model: fit populations of several widths without it.")
        split = as_split(data).to(own.ends.device)
        check_call(model, split, own.ends.device)
        ends = own.ends[:PAIRS]
        generator = torch.Generator(ends.device).manual_seed(0)
        starts = base.draw(len(ends), generator) if own.starts is None else own.starts[:PAIRS]
        return cls.along(model, own.space, split, starts, ends)

    @classmethod
    def along(cls, model: nn.Module, space: Space, split: Split, starts: Tensor, ends: Tensor) -> OutputLoss:
        """On inputs of `split`, in units of the paths from `starts` to `ends`, [n, D] on its device."""
        classifies = isinstance(likelihood_of(split.targets), Classification)
        own = copy.deepcopy(model).to(starts.device).float().eval()
        inputs = split.inputs.float() if split.inputs.is_floating_point() else split.inputs
        error = cls(own, space, inputs, classifies, min(INPUTS, len(split)))
        # Along the paths: at their ends networks are sure, and hardly anything changes what they predict.
        time = torch.linspace(0, 1, len(starts), device=starts.device)
        points, velocity = space.manifold.geodesic(starts, ends, time), space.manifold.velocity(starts, ends, time)
        try:
            scale = float(error(points, velocity, inputs[: error.count]).mean())
        except (RuntimeError, NotImplementedError) as reason:
            raise ModelError(
                f"What errors do to the outputs of {type(model).__name__} cannot be measured "
                f"({str(reason).splitlines()[0].rstrip('.')}): fit the flow without a model and data."
            ) from reason
        return replace(error, scale=scale or 1.0)

    @property
    def digest(self) -> str:
        """A digest of what it depends on: inputs, and the layers of the model."""
        layers = hashlib.sha256(repr(self.model).encode()).hexdigest()[:16]
        return f"{layers} {tensor_digest([self.inputs])} {self.classifies}"

    @cached_property
    def _untied(self) -> set[str]:
        """Of names that are tied the first."""
        return {*dict(self.model.named_parameters()), *dict(self.model.named_buffers())}

    def draw(self, generator: torch.Generator) -> Tensor:
        """[count, ...] inputs."""
        places = torch.randint(len(self.inputs), (self.count,), generator=generator, device=self.inputs.device)
        return self.inputs[places]

    def __call__(self, end: Tensor, error: Tensor, inputs: Tensor) -> Tensor:
        """[n] the mean over inputs, of errors [n, D] at networks [n, D]."""
        chart, template = self.space.manifold.chart, self.space.single
        where = chart.state(end, template)
        change = chart.change(error, template)
        untied = {name: x for name, x in template.items() if name in self._untied}
        names = [name for name, x in untied.items() if x.is_floating_point()]
        others = {name: x for name, x in untied.items() if name not in names}

        def outputs(tensors: dict[str, Tensor]) -> Tensor:
            values: Tensor = functional_call(self.model, {**others, **tensors}, (inputs,))
            return values

        def derivative(at: dict[str, Tensor], along: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
            both = jvp(outputs, (at,), (along,))
            return both[0], both[1]

        call: Callable[..., tuple[Tensor, Tensor]] = vmap(derivative)
        with WeightsFirst():
            logits, changes = call({name: where[name] for name in names}, {name: change[name] for name in names})
        if not self.classifies:
            return changes.square().flatten(1).mean(1) / self.scale
        p = logits.detach().softmax(-1)
        centred = changes - (p * changes).sum(-1, keepdim=True)
        return (p * centred.square()).sum(-1).flatten(1).mean(1) / self.scale
