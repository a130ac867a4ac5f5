"""The loop that all methods share: replicas, epochs, checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from coset import state as states
from coset.data import Data, Split, as_split
from coset.errors import CosetError
from coset.inference.folder import ReplicaFolder, open_folder
from coset.inference.initialise import fresh
from coset.inference.method import Method
from coset.inference.randomness import Randomness
from coset.solutions import Solution
from coset.solutions.classification import as_logits, check_targets
from coset.solutions.device import resolve
from coset.solutions.predictive import evaluating


@dataclass(frozen=True)
class Epoch:
    """How training stands: loss and accuracy are means over the epoch's training examples, epochs count from 1."""

    replica: int
    epoch: int
    epochs: int
    loss: float
    accuracy: float
    seconds: float


def fit(
    model: nn.Module,
    data: Data,
    method: Method,
    replicas: int = 1,
    seed: int = 0,
    device: str | torch.device | None = None,
    out: str | Path | None = None,
    progress: Callable[[Epoch], None] | None = None,
    *,
    checkpoint_every: int = 1,
) -> list[Solution]:
    """Solutions of `method` from `replicas` independent initialisations and orders of the data, drawn from `seed`.

    The model says only what the network is: it is not changed, and training always starts from fresh parameters (see
    `coset.inference.initialise`). It returns logits (n, ..., classes), and the targets are classes. `device` is the
    model's own unless given. Same seed and device, same result.

    `out` is a folder for metrics and checkpoints, one each `checkpoint_every` epochs. Called again with the same
    arguments, `fit` goes on where it was stopped, with the same result, and returns finished replicas as they are.
    """
    if replicas < 1 or checkpoint_every < 1:
        raise CosetError(f"replicas and checkpoint_every must be positive, not {replicas} and {checkpoint_every}.")
    if seed < 0:
        raise CosetError(f"The seed must not be negative, but it is {seed}.")
    where = resolve(device, states.of(model))
    split = as_split(data).to(where)
    _check(model, split, where)
    folder = None if out is None else open_folder(out, method, seed, model, split, where)
    found = []
    for replica in range(replicas):
        own = None if folder is None else ReplicaFolder(folder / f"replica-{replica}")
        finished = None if own is None else own.finished(where)
        if finished is None:
            finished = _train(model, split, method, replica, seed, own, progress, checkpoint_every)
        found.append(finished)
    return found


def _train(
    model: nn.Module,
    split: Split,
    method: Method,
    replica: int,
    seed: int,
    folder: ReplicaFolder | None,
    progress: Callable[[Epoch], None] | None,
    checkpoint_every: int,
) -> Solution:
    device = split.inputs.device
    randomness = Randomness(seed, replica, device)
    with randomness.active():
        run = method.start(fresh(model).to(device), split, randomness.generator)
    done = 0
    if folder is not None and (checkpoint := folder.resume(device)) is not None:
        run.load_state_dict(checkpoint["run"])
        randomness.states = [state.cpu() for state in checkpoint["randomness"]]
        done = checkpoint["epoch"]
    for epoch in range(done + 1, method.epochs + 1):
        start = time.perf_counter()
        with randomness.active():
            loss, accuracy = run.epoch()
        if not math.isfinite(loss):
            raise CosetError(
                f"Training of replica {replica} diverged in epoch {epoch}: the loss is {loss}. Use a lower rate."
            )
        record = Epoch(replica, epoch, method.epochs, loss, accuracy, time.perf_counter() - start)
        if folder is not None:
            folder.log({"epoch": epoch, "loss": loss, "accuracy": accuracy, "seconds": record.seconds})
            if epoch % checkpoint_every == 0 and epoch < method.epochs:
                folder.checkpoint({"epoch": epoch, "run": run.state_dict(), "randomness": randomness.states})
        if progress is not None:
            progress(record)
    solution = run.solution()
    if folder is not None:
        folder.finish(solution)
    return solution


def _check(model: nn.Module, split: Split, device: torch.device) -> None:
    """Find out before training that the model does not fit the data; on CUDA a wrong class kills the process."""
    few = split.inputs[:2]
    with evaluating(model, device) as ready:
        check_targets(split.targets, as_logits(states.call(ready, states.of(ready), (few,)), model, len(few)))
    if not any(p.requires_grad for p in model.parameters()):
        raise CosetError(f"{type(model).__name__} has no parameters to train: all are frozen, or there are none.")
