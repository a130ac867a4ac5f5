"""Networks trained by a method: which of them together, in which folders, from which start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from coset.core import state as states
from coset.core.device import resolve
from coset.core.errors import CosetError, ModelError
from coset.core.progress import Progress
from coset.core.state import State
from coset.data import Data, Split, as_split
from coset.solutions.likelihood import likelihood_of
from coset.solutions.solution import Solution
from coset.training.capture import release
from coset.training.folder import RowFolder, RunFolder, digest, open_folder, unusual
from coset.training.initialise import Starts, fresh
from coset.training.loop import Method, Problem, check_run, drive
from coset.training.network import Network, batches, check_call
from coset.training.randomness import Randomness, Row, seeded


@dataclass(frozen=True, eq=False)
class _Job:
    """What all networks of a call have in common."""

    model: nn.Module
    split: Split
    method: Method
    seed: int
    starts: Starts | None
    folder: RunFolder | None
    progress: Progress | None
    checkpoint_seconds: float

    def rows(self, replica: int) -> list[Row]:
        """The networks of a replica."""
        copies = self.method.copies
        return [(replica,)] if copies == 1 else [(replica, copy) for copy in range(copies)]

    def begun(self, row: Row) -> nn.Module:
        """The model of a network as it starts, on the CPU."""
        if self.starts is not None:
            replica, copy = (*row, 0)[:2]
            return self.starts.begun(replica * self.method.copies + copy)
        with seeded(self.seed, row):
            return fresh(self.model)

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
    progress: Progress | None = None,
    *,
    starts: State | None = None,
    checkpoint_seconds: float = 60.0,
) -> list[Solution]:
    """Solutions of `method` from `replicas` independent initialisations and orders of the data, drawn from `seed`.

    The model says only what the network is: it is not changed, and training starts from fresh parameters (see
    `coset.training.initialise`). For a classification it returns logits (n, ..., classes) and the targets are
    classes; for a regression it returns, and the targets are, (n, outputs) floating. `device` is the model's own unless
    given. Same arguments, same result. Networks that can be are trained at once (see `coset.training.network`).

    `starts` is a population to begin at in place of fresh parameters, samples of a flow for instance: a state of the
    model for each network, of which a replica takes one, or as many as it has chains or members, in turn.

    `out` is a folder for metrics and checkpoints, one after the first epoch that ends `checkpoint_seconds` after the
    last one. Called again with the same arguments, `fit` goes on where it was stopped, with the same result, and
    returns finished replicas as they are.
    """
    check_run(replicas, checkpoint_seconds, seed)
    where = resolve(device, states.of(model))
    split = as_split(data).to(where)
    check_call(model, split, where)
    _check_parameters(model)
    given = None if starts is None else Starts.of(model, starts, replicas * method.copies)
    known = {} if given is None else {"starts": digest(given.population.values())}
    folder = None if out is None else open_folder(out, method, seed, model, split, where, **unusual(model), **known)
    job = _Job(model, split, method, seed, given, folder, progress, checkpoint_seconds)
    found: dict[Row, Solution] = {}
    waiting = []
    for row in (row for replica in range(replicas) for row in job.rows(replica)):
        own = job.own(row)
        finished = None if own is None else own.finished(where)
        if finished is None:
            waiting.append(row)
        else:
            found[row] = finished
    alike = given is None or given.differ_in_trained_only
    together = len(waiting) > 1 and alike and batches(job.begun(waiting[0]).to(where).train(), split.inputs)
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
    models = [job.begun(row) for row in group]
    network = Network(models[0].to(device))
    start = torch.stack([network.flatten(dict(made.named_parameters())).to(device) for made in models])
    problem = Problem(network, start, job.split, likelihood_of(job.split.targets), randomness)
    with randomness.active():
        run = method.start(problem)
    if job.folder is not None:
        job.folder.write_settings()
    folders = [own for row in group if (own := job.own(row)) is not None]
    drive(run, method.epochs, job.split, randomness, group, folders, device, job.progress, job.checkpoint_seconds)
    solutions = run.solutions()
    release(run)
    # The first has the checkpoint, which is needed until all others are there.
    for own, solution in reversed(list(zip(folders, solutions, strict=False))):
        own.finish(solution)
    return solutions


def _combined(job: _Job, replica: int, found: list[Solution]) -> Solution:
    solution = job.method.combine(found)
    if job.folder is not None and job.method.copies > 1:
        RowFolder(job.folder.path / f"replica-{replica}").finish(solution)
    return solution


def _copy(index: int) -> str:
    return f"copy-{index}"


def _check_parameters(model: nn.Module) -> None:
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trained:
        raise CosetError(f"{type(model).__name__} has no parameters to train: all are frozen, or there are none.")
    for name, p in trained.items():
        if not p.is_floating_point():
            raise ModelError(f"Parameter '{name}' is {p.dtype}, and only real ones can be trained: freeze it.")
