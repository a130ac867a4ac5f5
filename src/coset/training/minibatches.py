"""What all methods that follow a gradient to an optimum share: optimizers, schedules, a learned noise."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from coset.core.checks import check_choices, check_positive
from coset.core.device import matmul_precision
from coset.core.errors import CosetError, DataError
from coset.solutions.likelihood import Classification
from coset.training.augmentation import augment
from coset.training.capture import captured
from coset.training.loop import Course, Problem
from coset.training.optimizers import SCHEDULES, SGD, Adam, Optimizer


class Stepwise:
    """Settings of what goes through minibatches. Its objective is per training example, so rates carry over.

    batch_size: an epoch leaves out the examples that do not fill a batch, other ones each time. augment: shift and
    mirror images. precision: bfloat16 runs the model, not the parameters, in 16 bits; tf32 rounds the factors of
    matrix products on CUDA. compile: let torch compile the model, which pays in long runs of convolutional networks.
    """

    epochs: int
    batch_size: int
    augment: bool = False
    compile: bool = False
    precision: Literal["float32", "tf32", "bfloat16"]


class Stepping(Course):
    """A run that takes a step for each minibatch, along the gradient of an objective."""

    training: ClassVar[bool] = True  # the mode that the model is in

    def __init__(
        self,
        settings: Stepwise,
        problem: Problem,
        parameters: Sequence[Tensor],
        log_noise: Tensor,
        optimizer: Optimizer,
    ) -> None:
        """`parameters` have one row for each network, and `log_noise` (rows,) is that of regression."""
        if settings.augment and problem.split.inputs.ndim != 4:
            shape = tuple(problem.split.inputs.shape)
            raise DataError(f"augment needs images (n, channels, height, width), not inputs of shape {shape}.")
        if settings.compile:
            problem.network.compile()
        self.settings, self.problem = settings, problem
        self.classifies = isinstance(problem.likelihood, Classification)
        self.parameters = [p.requires_grad_() for p in parameters]
        self.optimizer = optimizer
        self._log_noise = log_noise
        n, device = len(problem.split), problem.device
        self.batch_size = min(settings.batch_size, n)
        self.steps = n // self.batch_size
        total = settings.epochs * self.steps
        rates = [self.rate(step, total) for step in range(total)]
        self._rates = torch.tensor(rates, dtype=problem.start.dtype, device=device)
        self._done = torch.zeros((), dtype=torch.int64, device=device)
        self._order = torch.zeros(self.steps, problem.rows, self.batch_size, dtype=torch.int64, device=device)
        # Summed on the device: reading a number at each step would make the CPU wait for it.
        self._loss, self._right = (torch.zeros(problem.rows, device=device) for _ in range(2))
        self._advance = self._step
        self._is_captured = False

    @abstractmethod
    def objective(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What is minimised, per example (rows,); the loss to report (rows,); and outputs (rows, m, ...)."""

    @abstractmethod
    def rate(self, step: int, total: int) -> float:
        """The rate of a step, from 0 to total - 1."""

    def noise(self) -> Tensor:
        """The standard deviation of the targets, (rows, 1, 1)."""
        return self._log_noise.exp().view(-1, 1, 1)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """-log p(y | x, w) per example, (rows,)."""
        logs = self.problem.likelihood.log_prob(outputs, targets, self.noise())
        return -logs.flatten(1).sum(1) / self.batch_size

    def found_noise(self, row: int) -> float | None:
        """The noise of a network's solution."""
        return None if self.classifies else float(self._log_noise[row].detach().exp())

    def epoch(self) -> list[tuple[float, float | None]]:
        problem, device = self.problem, self.problem.device
        problem.network.model.train(self.training)
        order = problem.orders(self.steps * self.batch_size)
        self._order.copy_(order.view(problem.rows, self.steps, self.batch_size).transpose(0, 1))
        self._loss.zero_()
        self._right.zero_()
        with matmul_precision(self.settings.precision):
            if not self._is_captured:
                generators = [*problem.randomness.generators]
                self._advance = captured(self._step, self._changes(), generators, device)
                self._is_captured = True
            for _ in range(self.steps):
                self._advance()
        targets = problem.split.targets[: self.batch_size].numel() * self.steps
        losses, right = (self._loss / self.steps).tolist(), (self._right / targets).tolist()
        return [(loss, share if self.classifies else None) for loss, share in zip(losses, right, strict=True)]

    def _step(self) -> None:
        problem = self.problem
        at = self._order.index_select(0, (self._done % self.steps).view(1)).squeeze(0)
        inputs, targets = problem.split.inputs[at], problem.split.targets[at]
        if self.settings.augment:
            pairs = zip(inputs, problem.randomness.generators, strict=True)
            inputs = torch.stack([augment(images, generator) for images, generator in pairs])
        enabled = self.settings.precision == "bfloat16"
        with torch.autocast(problem.device.type, torch.bfloat16, enabled=enabled):
            objective, loss, outputs = self.objective(inputs, targets)
        gradients = torch.autograd.grad(objective.sum(), self.parameters)
        rate = self._rates.index_select(0, self._done.view(1)).squeeze(0)
        self.optimizer.step(gradients, rate)
        self._done += 1
        self._loss += loss.detach()
        if self.classifies:
            self._right += (outputs.argmax(-1) == targets).flatten(1).sum(1)

    def _changes(self) -> list[Tensor]:
        """All that a step changes."""
        buffers = [*self.problem.network.model.buffers()]
        return [*self.parameters, *self.optimizer.state, *buffers, self._done, self._loss, self._right]

    def state_dict(self) -> dict[str, Any]:
        return {"changes": [x.detach().clone() for x in self._changes()]}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        for x, saved in zip(self._changes(), state["changes"], strict=True):
            x.copy_(saved)


INITIAL_NOISE = 0.5  # where a learned noise starts, for targets of unit variance


@dataclass(frozen=True)
class Descent(Stepwise):
    """Settings of what follows a gradient.

    rate: the largest learning rate, the method's own for the optimizer when None. momentum: of sgd.
    schedule: of the learning rate, to zero (cosine), after a warm-up (onecycle), or constant.
    noise: standard deviation of the targets of a regression, learned when None. The others are those of `Stepwise`.
    """

    RATES: ClassVar[dict[str, float]]

    optimizer: Literal["adam", "sgd"] = "adam"
    rate: float | None = None
    momentum: float = 0.9
    epochs: int = 50
    batch_size: int = 128
    schedule: Literal["cosine", "constant", "onecycle"] = "cosine"
    augment: bool = False
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    noise: float | None = None
    compile: bool = False

    @property
    def largest_rate(self) -> float:
        """The rate, or the method's own."""
        return self.RATES[self.optimizer] if self.rate is None else self.rate

    def __post_init__(self) -> None:
        check_choices(self)
        check_positive(self, "rate", "epochs", "batch_size", "noise")
        if not 0 <= self.momentum < 1:
            raise CosetError(f"{type(self).__name__}: momentum must be in [0, 1), not {self.momentum!r}.")


def check_decay(settings: Descent, decay: float) -> None:
    """Refuse a weight decay that is none."""
    if not 0 <= decay < math.inf:
        raise CosetError(f"{type(settings).__name__}: weight_decay must be finite and not negative, not {decay!r}.")


class Descending(Stepping):
    """A run that minimises an objective by minibatches."""

    def __init__(
        self, settings: Descent, problem: Problem, parameters: list[Tensor], learns_noise: bool = True
    ) -> None:
        """`parameters` have one row for each network; a noise that is not set is added to them if it is learned."""
        self._descent = settings
        noise = INITIAL_NOISE if settings.noise is None else settings.noise
        log_noise = problem.start.new_full((problem.rows,), math.log(noise))
        learned = learns_noise and settings.noise is None and not isinstance(problem.likelihood, Classification)
        moved = [*parameters, log_noise] if learned else parameters
        optimizer: Optimizer = Adam(moved) if settings.optimizer == "adam" else SGD(moved, settings.momentum)
        super().__init__(settings, problem, moved, log_noise, optimizer)

    def rate(self, step: int, total: int) -> float:
        return self._descent.largest_rate * SCHEDULES[self._descent.schedule](step / total)
