"""Networks that are trained together: each from its own start, all on the same minibatches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coset.core import state as states
from coset.core.capture import captured
from coset.core.errors import CosetError, ModelError
from coset.core.functional import functional_call, matmul_precision, refuse_shared_modules
from coset.core.show import ShownSettings
from coset.core.state import State, members
from coset.data import Split
from coset.populations.population_outputs import outputs_of_all
from coset.solutions.likelihood import Classification, Likelihood, likelihood_of
from coset.training.loop import Run
from coset.training.network import Tensors
from coset.training.optimizers import SCHEDULES, SGD, Adam, Optimizer, check_choices, check_positive


@dataclass(frozen=True, repr=False)
class Collect(ShownSettings):
    """Each network minimises mean_i -log p(y_i | x_i, w) + weight_decay / 2 ||w||^2.

    Args:
        optimizer: "sgd" or "adam".
        rate: The largest learning rate; 0.1 for sgd and 2e-3 for adam when None.
        momentum: Of sgd.
        weight_decay: Of all parameters.
        epochs: Passes over the data.
        batch_size: Examples of a step; an epoch leaves out those that do not fill a batch, other ones each time.
        schedule: Of the rate: to zero ("cosine"), after a warm-up ("onecycle"), or "constant".
        precision: "bfloat16" runs the model, not the parameters, in 16 bits; "tf32" rounds factors on CUDA.
        compile: Let torch compile the model, which pays in long runs of convolutional networks on CUDA.
        noise: Standard deviation of the targets of a regression; 1 is half the squared error and a constant.
        chunk: Networks that are trained together, on the same minibatches.
        every: 0 is for the networks at the end; k > 0 for every k-th iteration of every run.
        skip: Epochs at the start, the iterations of which do not count for `every`.

    Raises:
        CosetError: If a setting is out of range.

    Example:
        >>> population = coset.collect(model, digits.train, 2, coset.Collect(epochs=1, every=5))
        >>> population.labels["iteration"].tolist()
        [5.0, 10.0, 5.0, 10.0]
    """

    RATES: ClassVar[dict[str, float]] = {"adam": 2e-3, "sgd": 0.1}

    optimizer: Literal["adam", "sgd"] = "sgd"
    rate: float | None = None
    momentum: float = 0.9
    weight_decay: float = 5e-4
    epochs: int = 25
    batch_size: int = 128
    schedule: Literal["cosine", "constant", "onecycle"] = "cosine"
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    compile: bool = False
    noise: float = 1.0
    chunk: int = 4096
    every: int = 0
    skip: int = 0

    def __post_init__(self) -> None:
        check_choices(self)
        check_positive(self, "rate", "epochs", "batch_size", "noise", "chunk")
        if not 0 <= self.momentum < 1:
            raise CosetError(f"Collect: momentum must be in [0, 1), not {self.momentum!r}.")
        if not 0 <= self.weight_decay < float("inf"):
            raise CosetError(f"Collect: weight_decay must be finite and not negative, not {self.weight_decay!r}.")
        if self.every < 0 or not 0 <= self.skip < self.epochs:
            raise CosetError(
                f"Collect: every must not be negative and skip be from 0 to epochs - 1, not {self.every!r} and "
                f"{self.skip!r} of {self.epochs!r}."
            )
        if self.skip and not self.every:
            raise CosetError("Collect: skip is for iterations that are kept: give every, too.")

    def rates(self, total: int) -> list[float]:
        """The rate of each step.

        Args:
            total: How many steps there are.
        """
        largest = self.RATES[self.optimizer] if self.rate is None else self.rate
        return [largest * SCHEDULES[self.schedule](step / total) for step in range(total)]

    def optimize(self, parameters: list[Tensor]) -> Optimizer:
        """What moves parameters.

        Args:
            parameters: Of all networks, in place.
        """
        return Adam(parameters) if self.optimizer == "adam" else SGD(parameters, self.momentum)

    def keeps(self, iteration: int, steps: int) -> bool:
        """Whether the networks after an iteration belong to the population.

        Args:
            iteration: Its number, from 1.
            steps: Iterations of an epoch.
        """
        past = iteration - self.skip * steps
        return past > 0 and past % self.every == 0 if self.every else iteration == self.epochs * steps


# Numbers that a group holds, its weights and the outputs of its layers: what a processor's caches have room for, and
# what keeps a GPU busy.
CAPACITY = {"cpu": 2**22, "cuda": 2**30}


@torch.no_grad()
def group_size(model: nn.Module, state: State, inputs: Tensor) -> int:
    """How many networks like `state` to train at a time on a minibatch `inputs`: a power of two.

    Then most groups of a chunk are of one size, for which a step is compiled once.
    """
    outputs = 0

    def count(_: nn.Module, __: object, output: object) -> None:
        nonlocal outputs
        outputs += output.numel() if isinstance(output, Tensor) else 0

    layers = [module for module in model.modules() if not any(module.children())]
    handles = [layer.register_forward_hook(count) for layer in layers]
    try:
        functional_call(model, dict(state), (inputs,))
    finally:
        for handle in handles:
            handle.remove()
    numbers = outputs + sum(x.numel() for x in state.values())
    most = max(CAPACITY.get(inputs.device.type, CAPACITY["cuda"]) // numbers, 1)
    return 1 << (most.bit_length() - 1)


Outputs = Callable[[Tensors, Tensor], Tensor]
"""Those (n, m, ...) of n networks on inputs (m, ...)."""


def per_example(likelihood: Likelihood, outputs: Tensor, targets: Tensor, noise: Tensor) -> Tensor:
    """-log p(y | x, w) of outputs (n, m, ...) for the same targets (m, ...): (n, m, ...)."""
    if not isinstance(likelihood, Classification):
        return -likelihood.log_prob(outputs, targets, noise)
    # The same as log_prob; classes are few, and along the examples, which lie last in memory, this is faster.
    wide = outputs.float() if outputs.element_size() < 4 else outputs
    return F.cross_entropy(wide.movedim(-1, 1), targets.expand(len(outputs), *targets.shape), reduction="none")


@torch.no_grad()
def measure(
    outputs: Outputs,
    population: Tensors,
    split: Split,
    likelihood: Likelihood,
    noise: Tensor,
    batch_size: int,
    at_once: int,
) -> tuple[Tensor, Tensor | None]:
    """The mean loss of each network over a split, (n,), and the accuracy of classifiers; `at_once` at a time."""
    groups = [members(population, slice(k, k + at_once)) for k in range(0, states.size(population), at_once)]
    results = [_measure_group(outputs, group, split, likelihood, noise, batch_size) for group in groups]
    shares = [share for _, share in results if share is not None]
    return torch.cat([loss for loss, _ in results]), torch.cat(shares) if shares else None


def _measure_group(
    outputs: Outputs, population: Tensors, split: Split, likelihood: Likelihood, noise: Tensor, batch_size: int
) -> tuple[Tensor, Tensor | None]:
    n, device = states.size(population), split.inputs.device
    loss, right = (torch.zeros(n, dtype=torch.float64, device=device) for _ in range(2))
    for inputs, targets in split.minibatches(batch_size, shuffle=False):
        logits = outputs(population, inputs)
        loss += per_example(likelihood, logits, targets, noise).flatten(1).sum(1)
        if isinstance(likelihood, Classification):
            right += (logits.argmax(-1) == targets).flatten(1).sum(1)
    count = len(split) * split.targets[0].numel()
    if isinstance(likelihood, Classification):
        return (loss / count).float(), (right / count).float()
    return (loss / len(split)).float(), None


# Steps after which the CPU waits for the device. It could ask for all of an epoch at once, and a checkpoint that it
# asks for then would be written minutes later.
QUEUED = 64


class Chunk(Run):
    """n networks under way. What has no gradient, frozen parameters and buffers, stays as each start has it.

    snapshots: the populations of the iterations so far that `settings` asks for. at_once: networks of a group.
    outputs: of such a group on some inputs.
    """

    may_diverge, keeps_last_step = True, True

    def __init__(
        self,
        settings: Collect,
        model: nn.Module,
        starts: Tensors,
        split: Split,
        generator: torch.Generator,
        on_step: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """`model` is in training mode, `starts` has one of tied names, all is on the device of the generator.

        on_step: hears after each step how many are done, of how many.
        """
        self.settings, self.split, self.generator = settings, split, generator
        self.model, self._on_step = model, on_step
        self.networks = _copies(model, starts)
        self._parameters = [x for x in self.networks.values() if x.requires_grad]
        self.likelihood = likelihood_of(split.targets)
        # On the device, as a captured step cannot bring it there.
        self.noise = torch.tensor(settings.noise, dtype=torch.float64, device=split.inputs.device)
        self.snapshots: list[Tensors] = []
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
        self._group_losses: Callable[[Tensors, Tensor, Tensor], Tensor] = self._losses
        if settings.compile:
            refuse_shared_modules(model)
            self.outputs = torch.compile(self._outputs, dynamic=False)
            self._group_losses = torch.compile(self._losses, dynamic=False)
        self._advance: Callable[[], None] | None = None
        self._epochs, self._step_of_epoch = 0, 0

    @property
    def iteration(self) -> int:
        """Steps so far."""
        return self._epochs * self.steps + self._step_of_epoch

    def epoch(self) -> list[tuple[float, float | None]]:
        """Go through the data once, or through the rest of it; the mean loss of those networks that have one."""
        if self._step_of_epoch == 0:
            order = torch.randperm(len(self.split), generator=self.generator, device=self._order.device)
            self._order.copy_(order[: self._order.numel()].view_as(self._order))
            self._loss.zero_()
        with matmul_precision(self.settings.precision):
            if self._advance is None:
                self._advance = self._step
                if self._order.is_cuda:
                    self._advance = captured(self._step, self._changes(), [], self._order.device)
            while self._step_of_epoch < self.steps:
                self._advance()
                self._step_of_epoch += 1
                self._after_step()
        self._epochs, self._step_of_epoch = self._epochs + 1, 0
        losses = self._loss / self.steps
        return [(float(losses[losses.isfinite()].mean()), None)]

    def _after_step(self) -> None:
        if self.settings.keeps(self.iteration, self.steps):
            self.snapshots.append({name: x.detach().clone() for name, x in self.networks.items()})
            self.iterations.append(self.iteration)
        if self._step_of_epoch % QUEUED == 0:
            self._done.item()
        if self.after_step is not None:
            self.after_step()
        self._on_step(self.iteration, self.settings.epochs * self.steps)

    def _step(self) -> None:
        at = self._order.index_select(0, (self._done % self.steps).view(1)).squeeze(0)
        inputs, targets = self.split.inputs[at], self.split.targets[at]
        rate = self._rates.index_select(0, self._done.view(1)).squeeze(0)
        self._loss += torch.cat([self._step_of_group(group, inputs, targets, rate) for group in self._groups])
        self._done += 1

    def _step_of_group(self, group: _Group, inputs: Tensor, targets: Tensor, rate: Tensor) -> Tensor:
        """The losses of networks before a step, which they take."""
        loss = self._group_losses(group.networks, inputs, targets)
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
        moments = [x for group in self._groups for x in group.optimizer.state]
        return [*self._parameters, *moments, self._done, self._loss]

    def state_dict(self) -> dict[str, Any]:
        changes = [x.detach().clone() for x in (*self._changes(), self._order)]
        counts = {"iterations": self.iterations, "epochs": self._epochs, "step": self._step_of_epoch}
        return {"changes": changes, "snapshots": self.snapshots, **counts}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        for x, saved in zip((*self._changes(), self._order), state["changes"], strict=True):
            x.copy_(saved)
        self.snapshots, self.iterations = state["snapshots"], state["iterations"]
        self._epochs, self._step_of_epoch = state["epochs"], state["step"]


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
    two = _copies(model, {key: x[:2] for key, x in starts.items()})
    buffers = [*two.items(), *model.named_buffers()]  # with those of no state
    before = [x.detach().clone() for _, x in buffers]
    try:
        outputs = outputs_of_all(model, two, inputs)
        torch.autograd.grad(outputs.float().sum(), [x for x in two.values() if x.requires_grad])
    except (RuntimeError, ValueError, NotImplementedError, TypeError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        randomness = "it draws random numbers, as dropout does, and each would need its own"
        why = randomness if "random operation" in reason else reason
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
