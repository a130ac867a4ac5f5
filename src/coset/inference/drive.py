"""The loop that every run goes through: epochs, metrics, checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from coset.data import Split
from coset.errors import CosetError, DataError
from coset.inference.folder import RowFolder
from coset.inference.method import Course
from coset.inference.randomness import Randomness, Row


@dataclass(frozen=True)
class Epoch:
    """How training stands: loss and accuracy are means over the epoch's training examples, epochs count from 1.

    copy: which of the networks that the replica's solution is made of. accuracy: None for a regression.
    seconds: of the epoch, for all networks that are trained together. more: what else the method measures, by name.
    """

    replica: int
    epoch: int
    epochs: int
    loss: float
    accuracy: float | None
    seconds: float
    copy: int = 0
    more: Mapping[str, float] = field(default_factory=dict)

    @property
    def errors(self) -> str:
        """The loss and what else is measured, in words."""
        return ", ".join(f"{name} {value:.4f}" for name, value in {"loss": self.loss, **self.more}.items())


Progress = Callable[[Epoch], None]

MOST = 60.0  # seconds after which the next that can be kept is, whatever `checkpoint_every` says


def drive(
    run: Course,
    epochs: int,
    split: Split | None,
    randomness: Randomness,
    group: Sequence[Row],
    folders: Sequence[RowFolder],
    device: torch.device,
    progress: Progress | None,
    checkpoint_every: int,
    named: Callable[[Row], str] = lambda row: f"Training of replica {row[0]}",
) -> None:
    """Let `run` go through its `epochs`, on from the last checkpoint if there is one.

    `folders` has one for each network of `group`, or none if nothing is kept; else a checkpoint is written every
    `checkpoint_every` epochs, and after a minute at the latest, once an epoch is over, or a step of a run that can be
    kept in between. Where something diverged, `split` is looked at, and `named` says in the message what it was.
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
        if time.monotonic() - saved >= MOST:
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
        due = epoch % checkpoint_every == 0 or time.monotonic() - saved >= MOST
        if folders and due and epoch < epochs:
            keep(epoch, 0.0)
        if progress is not None:
            for row, (loss, accuracy), others in zip(group, metrics, more, strict=True):
                copy = row[1] if len(row) > 1 else 0
                progress(Epoch(row[0], epoch, epochs, loss, accuracy, seconds, copy, others))
    run.after_step = None  # which knows the run, that could not go before it


def check_run(replicas: int, checkpoint_every: int, seed: int) -> None:
    """Refuse numbers that no run can have."""
    if replicas < 1 or checkpoint_every < 1:
        raise CosetError(f"replicas and checkpoint_every must be positive, not {replicas} and {checkpoint_every}.")
    if seed < 0:
        raise CosetError(f"The seed must not be negative, but it is {seed}.")


def _diverged(split: Split | None, name: str, epoch: int, loss: float) -> CosetError:
    inputs = torch.zeros(0) if split is None else split.inputs
    bad = int((~inputs.isfinite()).sum()) if inputs.is_floating_point() else 0
    if bad:
        return DataError(f"The loss is {loss}, as the inputs have {bad} NaN or infinite of {inputs.numel()} values.")
    return CosetError(f"{name} diverged in epoch {epoch}: the loss is {loss}. Use a lower rate, or smaller inputs.")
