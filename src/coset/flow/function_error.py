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

from coset.core.errors import ModelError
from coset.core.functional import functional_call
from coset.data import Split
from coset.flow.space import Space
from coset.populations.population_outputs import WeightsFirst
from coset.solutions.likelihood import Classification, likelihood_of
from coset.training.folder import digest

INPUTS = 64  # that errors are measured on in a step


@dataclass(frozen=True, eq=False)
class FunctionError:
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
    def of(cls, model: nn.Module, space: Space, split: Split, starts: Tensor, ends: Tensor) -> FunctionError:
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
    def known(self) -> str:
        """A digest of what it depends on: inputs, and the layers of the model."""
        layers = hashlib.sha256(repr(self.model).encode()).hexdigest()[:16]
        return f"{layers} {digest([self.inputs])} {self.classifies}"

    @cached_property
    def _untied(self) -> set[str]:
        """Of names that are tied the first."""
        return {*dict(self.model.named_parameters()), *dict(self.model.named_buffers())}

    def draw(self, generator: torch.Generator) -> Tensor:
        """[count, ...] inputs."""
        chosen = torch.randint(len(self.inputs), (self.count,), generator=generator, device=self.inputs.device)
        return self.inputs[chosen]

    def __call__(self, end: Tensor, error: Tensor, inputs: Tensor) -> Tensor:
        """[n] the mean over inputs, of errors [n, D] at networks [n, D]."""
        chart, template = self.space.manifold.chart, self.space.single
        where = chart.state(end, template)
        moved = chart.change(error, template)
        untied = {name: x for name, x in template.items() if name in self._untied}
        names = [name for name, x in untied.items() if x.is_floating_point()]
        others = {name: x for name, x in untied.items() if name not in names}

        def outputs(tensors: dict[str, Tensor]) -> Tensor:
            found: Tensor = functional_call(self.model, {**others, **tensors}, (inputs,))
            return found

        def changed(at: dict[str, Tensor], along: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
            moved = jvp(outputs, (at,), (along,))
            return moved[0], moved[1]

        call: Callable[..., tuple[Tensor, Tensor]] = vmap(changed)
        with WeightsFirst():
            logits, changes = call({name: where[name] for name in names}, {name: moved[name] for name in names})
        if not self.classifies:
            return changes.square().flatten(1).mean(1) / self.scale
        p = logits.detach().softmax(-1)
        centred = changes - (p * changes).sum(-1, keepdim=True)
        return (p * centred.square()).sum(-1).flatten(1).mean(1) / self.scale
