"""The loop that every run goes through: epochs, metrics, checkpoints."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coset.core.errors import CosetError, DataError
from coset.core.progress import Epoch, Event, Progress
from coset.data import Split
from coset.solutions.likelihood import Likelihood
from coset.solutions.solution import Solution
from coset.training.folder import RowFolder
from coset.training.network import Network
from coset.training.randomness import Randomness, Row


@dataclass(frozen=True, eq=False)
class Problem:
    """Networks to be trained together on one device.

    start: (rows, p) where each starts; split: the data that all of them see; likelihood: what the data ask for.
    """

    network: Network
    start: Tensor
    split: Split
    likelihood: Likelihood
    randomness: Randomness

    @property
    def rows(self) -> int:
        """How many networks there are."""
        return len(self.start)

    @property
    def device(self) -> torch.device:
        return self.start.device

    def normal(self) -> Tensor:
        """Standard normal noise (rows, p), for each network from its own generator."""
        out = torch.empty_like(self.start)
        for row, generator in zip(out, self.randomness.generators, strict=True):
            row.normal_(generator=generator)
        return out

    def uniform(self) -> Tensor:
        """Uniform numbers (rows,) float64 in [0, 1), each from the network's own generator."""
        out = torch.empty(self.rows, dtype=torch.float64, device=self.device)
        for row, generator in zip(out, self.randomness.generators, strict=True):
            row.uniform_(generator=generator)
        return out

    def orders(self, count: int) -> Tensor:
        """The first `count` examples of a random order for each network, (rows, count)."""
        n = len(self.split)
        drawn = [torch.randperm(n, generator=g, device=self.device)[:count] for g in self.randomness.generators]
        return torch.stack(drawn)


class Course(ABC):
    """Something that is learned, epoch by epoch.

    after_step
        for whoever may want a `state_dict` within an epoch; a course whose epochs may take long calls it after each
        step, and then its state says where in the epoch it is
    """

    after_step: Callable[[], None] | None = None

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


class Run(Course):
    """Some networks under way."""

    @abstractmethod
    def solutions(self) -> list[Solution]:
        """What has been found so far, for each network."""


class Method(ABC):
    """A way to find solutions. Subclasses are frozen dataclasses: their fields are the settings of a run."""

    epochs: int

    @property
    def copies(self) -> int:
        """How many networks a solution is made of."""
        return 1

    @abstractmethod
    def start(self, problem: Problem) -> Run:
        """A run of the networks of `problem`."""

    def combine(self, found: Sequence[Solution]) -> Solution:
        """One solution from those of its `copies` networks."""
        (only,) = found
        return only


def drive(
    run: Course,
    epochs: int,
    split: Split | None,
    randomness: Randomness,
    group: Sequence[Row],
    folders: Sequence[RowFolder],
    device: torch.device,
    progress: Progress | None,
    checkpoint_seconds: float,
    named: Callable[[Row], str] = lambda row: f"Training of replica {row[0]}",
) -> None:
    """Let `run` go through its `epochs`, on from the last checkpoint if there is one.

    `folders` has one for each network of `group`, or none if nothing is kept; else a checkpoint is written after the
    first epoch, or step of a run that can be kept in between, that ends `checkpoint_seconds` after the last one. Where
    something diverged, `split` is looked at, and `named` says in the message what it was.
    """
    done, before = 0, 0.0  # epochs, and seconds of the one that was stopped
    if folders and (checkpoint := folders[0].resume(device)) is not None:
        run.load_state_dict(checkpoint["run"])
        randomness.states = checkpoint["randomness"]
        done, before = checkpoint["epoch"], checkpoint["seconds"]
    for own in folders:
        own.keep_metrics(done)
    saved = time.monotonic()

    def keep(epochs_done: int, seconds: float) -> None:
        nonlocal saved
        content = {"epoch": epochs_done, "run": run.state_dict(), "randomness": randomness.states}
        folders[0].checkpoint({**content, "group": [list(row) for row in group], "seconds": seconds})
        saved = time.monotonic()

    def after_step() -> None:
        if time.monotonic() - saved >= checkpoint_seconds:
            keep(epoch - 1, time.perf_counter() - begin)

    run.after_step = after_step if folders else None
    for epoch in range(done + 1, epochs + 1):
        begin = time.perf_counter() - (before if epoch == done + 1 else 0.0)
        with randomness.active():
            metrics = run.epoch()
        seconds = time.perf_counter() - begin
        for row, (loss, _) in zip(group, metrics, strict=True):
            if not math.isfinite(loss):
                raise _diverged(split, named(row), epoch, loss)
        found = run.more().items()
        more = [{name: values[k] for name, values in found} for k in range(len(group))]
        for own, (loss, accuracy), others in zip(folders, metrics, more, strict=False):
            own.log({"epoch": epoch, "loss": loss, "accuracy": accuracy, "seconds": seconds, **others})
        if folders and time.monotonic() - saved >= checkpoint_seconds and epoch < epochs:
            keep(epoch, 0.0)
        if progress is not None:
            for row, (loss, accuracy), others in zip(group, metrics, more, strict=True):
                copy = row[1] if len(row) > 1 else 0
                state = Epoch(row[0], epoch, epochs, loss, accuracy, seconds, copy, others)
                progress(Event(epoch, epochs, "epoch", f"epoch {epoch} of {epochs}, {state.errors}", state))
    run.after_step = None  # which knows the run, that could not go before it


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
