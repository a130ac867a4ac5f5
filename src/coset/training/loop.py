"""The one loop that every run goes through: minibatches, epochs, metrics, checkpoints."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from coset.core.capture import captured
from coset.core.errors import CosetError, DataError
from coset.core.functional import matmul_precision
from coset.core.progress import Epoch, Event, Progress
from coset.core.resume import Stage
from coset.core.show import ShownSettings
from coset.data import Split
from coset.solutions.likelihood import Likelihood
from coset.solutions.solution import Solution
from coset.training.augmentation import augment
from coset.training.network import NetworkIndex, Randomness, Tensors, TrainingProblem
from coset.training.optimizers import Descent, MinibatchSettings


class Run(ABC):
    """Something that is learned, epoch by epoch.

    after_step
        for whoever may want a `state_dict` within an epoch; a run whose epochs may take long calls it after each
        step, and then its state says where in the epoch it is
    may_diverge
        whether a loss that is no number is left to whoever asked for the run
    keeps_last_step
        whether a checkpoint after the last step of an epoch is as good as one between epochs
    """

    after_step: Callable[[], None] | None = None
    may_diverge: ClassVar[bool] = False
    keeps_last_step: ClassVar[bool] = False

    @abstractmethod
    def epoch(self) -> list[tuple[float, float | None]]:
        """Go through the data once; for each network the mean loss on the way, and the accuracy of a classifier."""

    def more(self) -> dict[str, list[float]]:
        """What else there is to say about the last epoch, by name, for each network."""
        return {}

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything the next epoch depends on but the random numbers: tensors in plain containers."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`."""


class SolutionRun(Run):
    """Some networks under way to solutions."""

    @abstractmethod
    def solutions(self) -> list[Solution]:
        """The solutions so far, one for each network."""


class Method(ShownSettings, ABC):
    """A way to find solutions. Subclasses are frozen dataclasses: their fields are the settings of a run.

    Those that follow a gradient by minibatches are a `GradientMethod`, which needs less.

    Example:
        >>> isinstance(coset.HMC(), coset.Method), isinstance(coset.HMC(), coset.GradientMethod)
        (True, False)
    """

    epochs: int

    @property
    def copies(self) -> int:
        """How many networks a solution is made of."""
        return 1

    @abstractmethod
    def start(self, problem: TrainingProblem) -> SolutionRun:
        """A run of some networks.

        Args:
            problem: The networks, the data, and the random numbers.

        Returns:
            What does one epoch after the other, and has solutions.
        """

    def combine(self, solutions: Sequence[Solution]) -> Solution:
        """One solution from those of its `copies` networks.

        Args:
            solutions: One for each network.

        Returns:
            The solution of a replica.
        """
        (only,) = solutions
        return only


def _replica(index: NetworkIndex) -> str:
    return f"Training of replica {index[0]}"


CHECKPOINT_KEYS = ("epoch", "group", "run", "randomness", "seconds")


@dataclass(frozen=True, eq=False)
class Loop:
    """Lets runs go through their epochs, on from the last checkpoint if there is one.

    group: the networks of the run, by their number. key: what a checkpoint is of, the group if None. stages: one for
    each network, of which the first has the checkpoint. That is written after the first epoch, or step of a run that
    can be kept in between, that ends `checkpoint_seconds` after the last one. Where something diverged, `split` is
    looked at, and `name` says in the message what it was.
    """

    epochs: int
    group: Sequence[NetworkIndex]
    randomness: Randomness
    device: torch.device
    stages: Sequence[Stage] = ()
    progress: Progress | None = None
    checkpoint_seconds: float = 60.0
    split: Split | None = None
    name: Callable[[NetworkIndex], str] = _replica
    key: Sequence[NetworkIndex] | None = None

    def drive(self, run: Run) -> None:
        """Let the run go through all epochs."""
        done, spent = self._resume(run)
        for stage in self.stages:
            stage.begin(done)
        keeps = any(stage.folder is not None for stage in self.stages)
        written = time.monotonic()

        def checkpoint(epochs: int, seconds: float) -> None:
            nonlocal written
            if keeps and time.monotonic() - written >= self.checkpoint_seconds:
                self._save(run, epochs, seconds)
                written = time.monotonic()

        def after_step() -> None:
            checkpoint(epoch - 1, time.perf_counter() - begin)

        run.after_step = after_step if keeps else None
        for epoch in range(done + 1, self.epochs + 1):
            begin = time.perf_counter() - (spent if epoch == done + 1 else 0.0)
            with self.randomness.active():
                losses = run.epoch()
            reports = self._reports(run, epoch, losses, time.perf_counter() - begin)
            for stage, report in zip(self.stages, reports, strict=False):
                own = {"epoch": epoch, "loss": report.loss, "accuracy": report.accuracy, "seconds": report.seconds}
                stage.log({**own, **report.more})
            if epoch < self.epochs and not run.keeps_last_step:
                checkpoint(epoch, 0.0)
            if self.progress is not None:
                for report in reports:
                    text = f"epoch {epoch} of {self.epochs}, {report.errors}"
                    self.progress(Event(epoch, self.epochs, "epoch", text, report))
        run.after_step = None  # which knows the run, that could not go before it

    def _resume(self, run: Run) -> tuple[int, float]:
        """How many epochs the checkpoint has done, and the seconds of the one that was stopped."""
        content = self.stages[0].load_checkpoint(self.device, CHECKPOINT_KEYS) if self.stages else None
        if content is None or content["group"] != self._own_key:
            return 0, 0.0
        run.load_state_dict(content["run"])
        self.randomness.states = content["randomness"]
        return content["epoch"], content["seconds"]

    def _save(self, run: Run, epochs: int, seconds: float) -> None:
        state = {"run": run.state_dict(), "randomness": self.randomness.states}
        self.stages[0].save_checkpoint({"epoch": epochs, "group": self._own_key, "seconds": seconds, **state})

    @property
    def _own_key(self) -> list[list[int]]:
        return [list(index) for index in (self.group if self.key is None else self.key)]

    def _reports(
        self, run: Run, epoch: int, losses: Sequence[tuple[float, float | None]], seconds: float
    ) -> list[Epoch]:
        """What is told of each network, refused where its loss is no number."""
        more, reports = run.more().items(), []
        for k, (index, (loss, accuracy)) in enumerate(zip(self.group, losses, strict=True)):
            if not (math.isfinite(loss) or run.may_diverge):
                raise _diverged(self.split, self.name(index), epoch, loss)
            replica, copy = (*index, 0)[:2]
            others = {name: values[k] for name, values in more}
            reports.append(Epoch(replica, epoch, self.epochs, loss, accuracy, seconds, copy=copy, more=others))
        return reports


def check_run(replicas: int, checkpoint_seconds: float, seed: int) -> None:
    """Refuse numbers that no run can have."""
    if replicas < 1:
        raise CosetError(f"replicas must be positive, not {replicas}.")
    if not checkpoint_seconds >= 0:
        raise CosetError(f"checkpoint_seconds must not be negative, but it is {checkpoint_seconds}.")
    if seed < 0:
        raise CosetError(f"The seed must not be negative, but it is {seed}.")


def _diverged(split: Split | None, name: str, epoch: int, loss: float) -> CosetError:
    inputs = torch.zeros(0) if split is None else split.inputs
    bad = int((~inputs.isfinite()).sum()) if inputs.is_floating_point() else 0
    if bad:
        return DataError(f"The loss is {loss}, as the inputs have {bad} NaN or infinite of {inputs.numel()} values.")
    return CosetError(f"{name} diverged in epoch {epoch}: the loss is {loss}. Use a lower rate, or smaller inputs.")


def release(*runs: object) -> None:
    """Let go of all that runs refer to once they are over, above all of tensors and captured steps.

    They refer to themselves by their own methods, so Python would free them when it next looks for garbage, which it
    does by the number of objects: a device can be full before.
    """
    for run in runs:
        vars(run).clear()


@dataclass(frozen=True, eq=False)
class Minibatch:
    """What networks see in a step: inputs and targets (rows, m, ...), each network its own.

    log_noise: (rows,), of the standard deviation of the targets. step: of the epoch, from 0 on, on the device.
    """

    inputs: Tensor
    targets: Tensor
    likelihood: Likelihood
    log_noise: Tensor
    step: Tensor

    def loss(self, outputs: Tensor, noise: Tensor | None = None) -> Tensor:
        """-log p(y | x, w) per example, (rows,), for outputs (rows, m, ...); `noise` is another standard deviation."""
        std = self.log_noise.exp() if noise is None else noise
        logs = self.likelihood.log_prob(outputs, self.targets, std.view(-1, 1, 1))
        return -logs.flatten(1).sum(1) / self.targets.shape[1]


class Learner(ABC):
    """What is learned by minibatches: parameters, and an objective of them.

    Tensors of parameters have one row for each network. They lie in one place from the first step to the last, since a
    captured step goes on reading and writing there.
    """

    def context(self, problem: TrainingProblem) -> Any:
        """What else the objective needs, computed once before the first step; it is then `problem.context`.

        Args:
            problem: The networks and their data.

        Returns:
            Anything.
        """
        return None

    @abstractmethod
    def parameters(self, problem: TrainingProblem) -> Tensors:
        """Where the parameters begin.

        Args:
            problem: The networks and their data; `problem.start` are their weights, (rows, p).

        Returns:
            Tensors with one row for each network, by name, which are this run's own.
        """

    def memory(self, problem: TrainingProblem) -> dict[str, Any]:
        """What is to be remembered beside the parameters; it is then `problem.memory`, and part of checkpoints.

        Args:
            problem: The networks and their data.

        Returns:
            Tensors, numbers, and lists of tensors, by name.
        """
        return {}

    @abstractmethod
    def objective(
        self, problem: TrainingProblem, parameters: Tensors, batch: Minibatch
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What a step minimises.

        Args:
            problem: The networks and their data.
            parameters: As `parameters` gives them.
            batch: What the networks see in this step.

        Returns:
            The objective per example, (rows,); the loss to report, (rows,); and outputs (rows, m, ...).
        """

    def before_epoch(self, problem: TrainingProblem, parameters: Tensors, epoch: int) -> None:  # noqa: B027
        """Called before each epoch.

        Args:
            problem: The networks and their data.
            parameters: As they stand.
            epoch: Counted from 0.
        """

    def after_epoch(self, problem: TrainingProblem, parameters: Tensors, epoch: int) -> None:  # noqa: B027
        """Called after each epoch.

        Args:
            problem: The networks and their data.
            parameters: As they stand.
            epoch: Counted from 0.
        """

    def solution(self, problem: TrainingProblem, parameters: Tensors, row: int) -> Solution:
        """The solution of a network as it stands.

        Args:
            problem: The networks and their data.
            parameters: As they stand.
            row: Which network.

        Returns:
            Its solution.
        """
        raise NotImplementedError(f"A {type(self).__name__} learns something that is no solution.")


class MinibatchRun(SolutionRun):
    """Takes a step for each minibatch, along the gradient of a learner's objective."""

    def __init__(self, problem: TrainingProblem, settings: MinibatchSettings, learner: Learner) -> None:
        if settings.augment and problem.split.inputs.ndim != 4:
            shape = tuple(problem.split.inputs.shape)
            raise DataError(f"augment needs images (n, channels, height, width), not inputs of shape {shape}.")
        if settings.compile:
            problem.network.compile()
        self.settings, self.learner = settings, learner
        noise, learns_noise = settings.initial_noise(problem)
        log_noise = problem.start.new_full((problem.rows,), math.log(noise))
        self.problem = problem = replace(problem, context=learner.context(problem), log_noise=log_noise)
        problem.memory.update(learner.memory(problem))
        self.parameters = learner.parameters(problem)
        trained = [*self.parameters.values(), log_noise] if learns_noise else [*self.parameters.values()]
        self.trained = [p.requires_grad_() for p in trained]
        self._log_noise = log_noise
        self.optimizer = settings.make_optimizer(problem, self.trained)
        self.batch_size = min(settings.batch_size, len(problem.split))
        self.steps, device = problem.steps(settings.batch_size), problem.device
        total = settings.epochs * self.steps
        rates = [settings.rate_at(step, total) for step in range(total)]
        self._rates = torch.tensor(rates, dtype=problem.start.dtype, device=device)
        self._done = torch.zeros((), dtype=torch.int64, device=device)
        self._epochs = 0
        self._order = torch.zeros(self.steps, problem.rows, self.batch_size, dtype=torch.int64, device=device)
        # Summed on the device: reading a number at each step would make the CPU wait for it.
        self._loss, self._right = (torch.zeros(problem.rows, device=device) for _ in range(2))
        self._advance: Callable[[], None] | None = None

    def epoch(self) -> list[tuple[float, float | None]]:
        problem = self.problem
        problem.network.model.train(self.settings.training)
        self.learner.before_epoch(problem, self.parameters, self._epochs)
        order = problem.orders(self.steps * self.batch_size)
        self._order.copy_(order.view(problem.rows, self.steps, self.batch_size).transpose(0, 1))
        self._loss.zero_()
        self._right.zero_()
        with matmul_precision(self.settings.precision):
            if self._advance is None:
                self._advance = self._step
                if problem.device.type == "cuda":
                    generators = problem.randomness.generators
                    self._advance = captured(self._step, self._changes(), generators, problem.device)
            for _ in range(self.steps):
                self._advance()
        self.learner.after_epoch(problem, self.parameters, self._epochs)
        self._epochs += 1
        targets = problem.split.targets[: self.batch_size].numel() * self.steps
        losses, right = (self._loss / self.steps).tolist(), (self._right / targets).tolist()
        return [(loss, share if problem.classifies else None) for loss, share in zip(losses, right, strict=True)]

    def solutions(self) -> list[Solution]:
        return [self.learner.solution(self.problem, self.parameters, row) for row in range(self.problem.rows)]

    def objective(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """That of the learner for the step that comes next, on inputs and targets (rows, m, ...)."""
        step = self._done % self.steps
        batch = Minibatch(inputs, targets, self.problem.likelihood, self._log_noise, step)
        return self.learner.objective(self.problem, self.parameters, batch)

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
        gradients = torch.autograd.grad(objective.sum(), self.trained)
        rate = self._rates.index_select(0, self._done.view(1)).squeeze(0)
        self.optimizer.step(gradients, rate)
        self._done += 1
        self._loss += loss.detach()
        if problem.classifies:
            self._right += (outputs.argmax(-1) == targets).flatten(1).sum(1)

    def _changes(self) -> list[Tensor]:
        """All that a step changes."""
        buffers = [*self.problem.network.model.buffers()]
        return [*self.trained, *self.optimizer.state, *buffers, self._done, self._loss, self._right]

    def state_dict(self) -> dict[str, Any]:
        changes = [x.detach().clone() for x in self._changes()]
        return {"changes": changes, "epochs": self._epochs, "memory": self.problem.memory}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        for x, saved in zip(self._changes(), state["changes"], strict=True):
            x.copy_(saved)
        self._epochs = state["epochs"]
        for name, saved in state["memory"].items():
            if isinstance(saved, Tensor):
                self.problem.memory[name].copy_(saved)
            else:
                self.problem.memory[name] = saved


@dataclass(frozen=True, repr=False)
class GradientMethod(Descent, Learner, Method):
    """A method that follows the gradient of an objective, by minibatches.

    A subclass is a frozen dataclass that states three functions: `parameters`, `objective` and `solution`. It names its
    rates in `RATES`, may have settings of its own, and has those of `coset.MAP`; CONTRIBUTING.md has an example.

    Args:
        optimizer: "adam" or "sgd".
        rate: The largest learning rate; the method's own when None.
        momentum: Of sgd.
        epochs: Passes over the data.
        batch_size: Examples of a step; an epoch leaves out those that do not fill a batch, other ones each time.
        schedule: Of the rate: to zero ("cosine"), after a warm-up ("onecycle"), or "constant".
        augment: Shift and mirror images.
        precision: "bfloat16" runs the model, not the parameters, in 16 bits; "tf32" rounds factors on CUDA.
        noise: Standard deviation of the targets of a regression, learned when None.
        compile: Let torch compile the model, which pays in long runs of convolutional networks.

    Example:
        >>> isinstance(coset.VI(), coset.GradientMethod)
        True
    """

    @abstractmethod
    def solution(self, problem: TrainingProblem, parameters: Tensors, row: int) -> Solution: ...

    def start(self, problem: TrainingProblem) -> SolutionRun:
        return MinibatchRun(problem, self, self)
