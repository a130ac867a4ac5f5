"""The loop that all methods share: networks, epochs, checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from coset import state as states
from coset.data import Data, Split, as_split
from coset.errors import CosetError, DataError, ModelError
from coset.inference.folder import RowFolder, RunFolder, open_folder
from coset.inference.initialise import fresh
from coset.inference.method import Method, Problem
from coset.inference.network import Network, batches
from coset.inference.randomness import Randomness, Row, seeded
from coset.solutions import Solution
from coset.solutions.device import resolve
from coset.solutions.likelihood import likelihood_of
from coset.solutions.predictive import evaluating


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


@dataclass(frozen=True, eq=False)
class _Job:
    """What all networks of a call have in common."""

    model: nn.Module
    split: Split
    method: Method
    seed: int
    folder: RunFolder | None
    progress: Callable[[Epoch], None] | None
    checkpoint_every: int

    def rows(self, replica: int) -> list[Row]:
        """The networks of a replica."""
        copies = self.method.copies
        return [(replica,)] if copies == 1 else [(replica, copy) for copy in range(copies)]

    def own(self, row: Row) -> RowFolder | None:
        if self.folder is None:
            return None
        return RowFolder(self.folder.path / Path(f"replica-{row[0]}", *map(_copy, row[1:])))


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
    `coset.inference.initialise`). For a classification it returns logits (n, ..., classes) and the targets are
    classes; for a regression it returns, and the targets are, (n, outputs) floating. `device` is the model's own unless
    given. Same arguments, same result. Networks that can be are trained at once (see `coset.inference.network`).

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
    job = _Job(model, split, method, seed, folder, progress, checkpoint_every)
    found: dict[Row, Solution] = {}
    waiting = []
    for row in (row for replica in range(replicas) for row in job.rows(replica)):
        own = job.own(row)
        finished = None if own is None else own.finished(where)
        if finished is None:
            waiting.append(row)
        else:
            found[row] = finished
    together = len(waiting) > 1 and batches(fresh(model).to(where).train(), split.inputs)
    while waiting:
        group = _begun(job, waiting) or (waiting if together else waiting[:1])
        found.update(zip(group, _train(job, group), strict=True))
        waiting = [row for row in waiting if row not in group]
    return [_combined(job, replica, [found[row] for row in job.rows(replica)]) for replica in range(replicas)]


def _begun(job: _Job, waiting: list[Row]) -> list[Row] | None:
    """The networks of a checkpoint, if there is one: all of them, as it is of use for all only."""
    for row in waiting:
        own = job.own(row)
        if own is not None and (begun := own.group()) is not None:
            return begun
    return None


def _train(job: _Job, group: Sequence[Row]) -> list[Solution]:
    device, method = job.split.inputs.device, job.method
    randomness = Randomness(job.seed, group, device)
    models = []
    for row in group:
        with seeded(job.seed, row):
            models.append(fresh(job.model))
    network = Network(models[0].to(device))
    start = torch.stack([network.flatten(dict(made.named_parameters())).to(device) for made in models])
    problem = Problem(network, start, job.split, likelihood_of(job.split.targets), randomness)
    with randomness.active():
        run = method.start(problem)
    if job.folder is not None:
        job.folder.write_settings()
    folders = [own for row in group if (own := job.own(row)) is not None]
    done = 0
    if folders and (checkpoint := folders[0].resume(device)) is not None:
        run.load_state_dict(checkpoint["run"])
        randomness.states = checkpoint["randomness"]
        done = checkpoint["epoch"]
    for own in folders:
        own.keep_metrics(done)
    for epoch in range(done + 1, method.epochs + 1):
        begin = time.perf_counter()
        with randomness.active():
            metrics = run.epoch()
        seconds = time.perf_counter() - begin
        for row, (loss, _) in zip(group, metrics, strict=True):
            if not math.isfinite(loss):
                raise _diverged(job, row[0], epoch, loss)
        named = run.more().items()
        more = [{name: values[k] for name, values in named} for k in range(len(group))]
        for own, (loss, accuracy), others in zip(folders, metrics, more, strict=False):
            own.log({"epoch": epoch, "loss": loss, "accuracy": accuracy, "seconds": seconds, **others})
        if folders and epoch % job.checkpoint_every == 0 and epoch < method.epochs:
            content = {"epoch": epoch, "run": run.state_dict(), "randomness": randomness.states}
            folders[0].checkpoint({**content, "group": [list(row) for row in group]})
        if job.progress is not None:
            for row, (loss, accuracy), others in zip(group, metrics, more, strict=True):
                copy = row[1] if len(row) > 1 else 0
                job.progress(Epoch(row[0], epoch, method.epochs, loss, accuracy, seconds, copy, others))
    solutions = run.solutions()
    # The first has the checkpoint, which is needed until all others are there.
    for own, solution in reversed(list(zip(folders, solutions, strict=False))):
        own.finish(solution)
    return solutions


def _diverged(job: _Job, replica: int, epoch: int, loss: float) -> CosetError:
    inputs = job.split.inputs
    bad = int((~inputs.isfinite()).sum()) if inputs.is_floating_point() else 0
    if bad:
        return DataError(f"The loss is {loss}, as the inputs have {bad} NaN or infinite of {inputs.numel()} values.")
    return CosetError(
        f"Training of replica {replica} diverged in epoch {epoch}: the loss is {loss}. Use a lower rate, or smaller "
        "inputs."
    )


def _combined(job: _Job, replica: int, found: list[Solution]) -> Solution:
    solution = job.method.combine(found)
    if job.folder is not None and job.method.copies > 1:
        RowFolder(job.folder.path / f"replica-{replica}").finish(solution)
    return solution


def _copy(index: int) -> str:
    return f"copy-{index}"


def _check(model: nn.Module, split: Split, device: torch.device) -> None:
    """Find out before training that the model does not fit the data; on CUDA a wrong class kills the process."""
    few = split.inputs[:2]
    with evaluating(model, device) as ready:
        likelihood = likelihood_of(split.targets)
        outputs = likelihood.read(states.call(ready, states.of(ready), (few,)), model, len(few))
        likelihood.check(outputs, split.targets)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trained:
        raise CosetError(f"{type(model).__name__} has no parameters to train: all are frozen, or there are none.")
    for name, p in trained.items():
        if not p.is_floating_point():
            raise ModelError(f"Parameter '{name}' is {p.dtype}, and only real ones can be trained: freeze it.")
