"""Networks that are trained together: each from its own start, all on the same minibatches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from coset import state as states
from coset.data import Split
from coset.errors import CosetError, ModelError
from coset.functional import refuse_shared_modules
from coset.inference.capture import captured
from coset.inference.stepping import matmul_precision
from coset.populations.chunk_loss import Outputs, per_example
from coset.populations.collect_settings import Collect
from coset.populations.grouping import group_size
from coset.populations.members import members
from coset.populations.shared_inputs import outputs_of_all
from coset.solutions.likelihood import likelihood_of

Tensors = dict[str, Tensor]

# Steps after which the CPU waits for the device. It could ask for all of an epoch at once, and a checkpoint that it
# asks for then would be written minutes later.
QUEUED = 64


class Chunk:
    """n networks under way. What has no gradient, frozen parameters and buffers, stays as each start has it.

    kept: the populations that `settings` asks to keep so far, with their iterations. at_once: networks of a group.
    outputs: of such a group on some inputs.
    """

    def __init__(
        self, settings: Collect, model: nn.Module, starts: Tensors, split: Split, generator: torch.Generator
    ) -> None:
        """`model` is in training mode, `starts` has one of tied names, all is on the device of the generator."""
        self.settings, self.split, self.generator = settings, split, generator
        self.model = model
        self.networks = _copies(model, starts)
        self._parameters = [x for x in self.networks.values() if x.requires_grad]
        self.likelihood = likelihood_of(split.targets)
        # On the device, as a captured step cannot bring it there.
        self.noise = torch.tensor(settings.noise, dtype=torch.float64, device=split.inputs.device)
        self.kept: list[Tensors] = []
        self.iterations: list[int] = []
        device, n = split.inputs.device, states.size(starts)
        self.batch_size = min(settings.batch_size, len(split))
        self.steps = len(split) // self.batch_size
        if not any(settings.keeps(k + 1, self.steps) for k in range(settings.epochs * self.steps)):
            iterations = (settings.epochs - settings.skip) * self.steps
            raise CosetError(f"Collect: every {settings.every} keeps none of {iterations} iterations: give less.")
        wide = torch.float64 if any(p.dtype == torch.float64 for p in self._parameters) else torch.float32
        rates = settings.rates(settings.epochs * self.steps)
        self._rates = torch.tensor(rates, dtype=wide, device=device)
        self._done = torch.zeros((), dtype=torch.int64, device=device)
        self._order = torch.zeros(self.steps, self.batch_size, dtype=torch.int64, device=device)
        # Summed on the device: reading a number at each step would make the CPU wait for it.
        self._loss = torch.zeros(n, device=device)
        one = {name: x[0] for name, x in starts.items()}
        self.at_once = group_size(model, one, split.inputs[: self.batch_size])
        parts = [slice(k, k + self.at_once) for k in range(0, n, self.at_once)]
        self._groups = [_Group(members(self.networks, part), settings) for part in parts]
        self.outputs: Outputs = self._outputs
        self._measured: Callable[[Tensors, Tensor, Tensor], Tensor] = self._losses
        if settings.compile:
            refuse_shared_modules(model)
            self.outputs = torch.compile(self._outputs, dynamic=False)
            self._measured = torch.compile(self._losses, dynamic=False)
        self._advance = self._step
        self._is_captured = False
        self.epochs, self._begun = 0, 0

    @property
    def taken(self) -> int:
        """Steps so far."""
        return self.epochs * self.steps + self._begun

    def epoch(self, after_step: Callable[[], None] = lambda: None) -> Tensor:
        """Go through the data once, or through the rest of it; the mean loss of each network on the way, (n,)."""
        if self._begun == 0:
            order = torch.randperm(len(self.split), generator=self.generator, device=self._order.device)
            self._order.copy_(order[: self._order.numel()].view_as(self._order))
            self._loss.zero_()
        with matmul_precision(self.settings.precision):
            if not self._is_captured:
                self._advance = captured(self._step, self._changes(), [], self._order.device)
                self._is_captured = True
            while self._begun < self.steps:
                self._advance()
                self._begun += 1
                if self.settings.keeps(self.taken, self.steps):
                    self.kept.append({name: x.detach().clone() for name, x in self.networks.items()})
                    self.iterations.append(self.taken)
                if self._begun % QUEUED == 0:
                    self._done.item()
                after_step()
        self.epochs, self._begun = self.epochs + 1, 0
        return self._loss / self.steps

    def _step(self) -> None:
        at = self._order.index_select(0, (self._done % self.steps).view(1)).squeeze(0)
        inputs, targets = self.split.inputs[at], self.split.targets[at]
        rate = self._rates.index_select(0, self._done.view(1)).squeeze(0)
        self._loss += torch.cat([self._moved(group, inputs, targets, rate) for group in self._groups])
        self._done += 1

    def _moved(self, group: _Group, inputs: Tensor, targets: Tensor, rate: Tensor) -> Tensor:
        """The losses of networks before a step, which they take."""
        loss = self._measured(group.networks, inputs, targets)
        gradients: Sequence[Tensor] = torch.autograd.grad(loss.sum(), group.trained)
        if decay := self.settings.weight_decay:
            pairs = zip(gradients, group.trained, strict=True)
            gradients = [g.add(p.detach(), alpha=decay) for g, p in pairs]
        group.optimizer.step(gradients, rate)
        return loss.detach()

    def _losses(self, networks: Tensors, inputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of each network on a minibatch, (n,)."""
        enabled = self.settings.precision == "bfloat16"
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=enabled):
            outputs = self._outputs(networks, inputs)
        return per_example(self.likelihood, outputs, targets, self.noise).flatten(1).sum(1) / len(inputs)

    def _outputs(self, networks: Tensors, inputs: Tensor) -> Tensor:
        return outputs_of_all(self.model, networks, inputs)

    def _changes(self) -> list[Tensor]:
        """All that a step changes."""
        remembered = [x for group in self._groups for x in group.optimizer.state]
        return [*self._parameters, *remembered, self._done, self._loss]

    def state_dict(self) -> dict[str, Any]:
        """Everything the next step depends on but the random numbers."""
        changes = [x.detach().clone() for x in (*self._changes(), self._order)]
        counts = {"iterations": self.iterations, "epochs": self.epochs, "begun": self._begun}
        return {"changes": changes, "kept": self.kept, **counts}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`."""
        for x, saved in zip((*self._changes(), self._order), state["changes"], strict=True):
            x.copy_(saved)
        self.kept, self.iterations = state["kept"], state["iterations"]
        self.epochs, self._begun = state["epochs"], state["begun"]


class _Group:
    """Some networks of a chunk, as views, and what moves them."""

    def __init__(self, networks: Tensors, settings: Collect) -> None:
        self.networks = {name: x.detach().requires_grad_(x.requires_grad) for name, x in networks.items()}
        self.trained = [x for x in self.networks.values() if x.requires_grad]
        self.optimizer = settings.optimize(self.trained)


def refuse_alone(model: nn.Module, starts: Tensors, inputs: Tensor) -> None:
    """Refuse a model of which several cannot be trained at once, by trying."""
    name = type(model).__name__
    remedy = "train it with coset.fit, which then takes one network after the other, and give Population.of(solutions)"
    given = _copies(model, {key: x[:2] for key, x in starts.items()})
    buffers = [*given.items(), *model.named_buffers()]  # with those of no state
    before = [x.detach().clone() for _, x in buffers]
    try:
        outputs = outputs_of_all(model, given, inputs)
        torch.autograd.grad(outputs.float().sum(), [x for x in given.values() if x.requires_grad])
    except (RuntimeError, ValueError, NotImplementedError, TypeError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        drawn = "it draws random numbers, as dropout does, and each would need its own"
        why = drawn if "random operation" in reason else reason
        raise ModelError(f"Networks like {name} cannot be trained at once: {why}; {remedy}.") from error
    for (key, x), old in zip(buffers, before, strict=True):
        if not torch.equal(x, old):
            raise ModelError(
                f"Networks like {name} cannot be trained at once: it changes '{key}' in training, as batch norm does; "
                f"{remedy}."
            )


def _copies(model: nn.Module, starts: Tensors) -> Tensors:
    """Tensors of their own, those of trainable parameters with a gradient."""
    trained = {name for name, p in model.named_parameters(remove_duplicate=False) if p.requires_grad}
    return {name: x.clone().requires_grad_(name in trained) for name, x in starts.items()}
