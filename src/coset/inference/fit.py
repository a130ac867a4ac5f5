"""Networks trained by a method: which of them together, in which folders, from which start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from coset.core import state as states
from coset.core.errors import CosetError, ModelError
from coset.core.functional import resolve
from coset.core.progress import Progress
from coset.core.resume import RunFolder, RunSettings, Stage, tensor_digest, unusual_parameters
from coset.core.state import State
from coset.data import Data, Split, as_split
from coset.solutions.likelihood import likelihood_of
from coset.solutions.load import load
from coset.solutions.solution import Solution
from coset.training.initialise import InitialStates, fresh
from coset.training.loop import CHECKPOINT_KEYS, Loop, Method, check_run, release
from coset.training.network import Network, NetworkIndex, Randomness, TrainingProblem, batches, check_call, seeded

SOLUTION = "solution.safetensors"


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
    """Solutions of a method, from independent initialisations and orders of the data.

    The model says only what the network is: it is not changed, and training starts from fresh parameters (see
    `coset.training.initialise`). For a classification it returns logits (n, ..., classes) and the targets are
    classes; for a regression it returns, and the targets are, (n, outputs) floating. Same arguments, same result.
    Networks that can be are trained at once (see `coset.training.network`).

    Args:
        model: What is trained; its own parameters do not count.
        data: Training examples: a `Split`, a pair of inputs and targets, or a loader of batches.
        method: How: `coset.MAP`, `coset.VI`, or any other.
        replicas: How many solutions.
        seed: Of all random numbers.
        device: Where to train; that of the model when None.
        out: A folder for metrics and checkpoints. Called again with the same arguments, `fit` goes on where it was
            stopped, with the same result, and returns finished replicas as they are.
        progress: Hears of each epoch of each network.
        starts: A population to begin at in place of fresh parameters, samples of a flow for instance: a state of the
            model for each network, of which a replica takes one, or as many as it has chains or members, in turn.
        checkpoint_seconds: A checkpoint is written after the first epoch that ends so long after the last one.

    Returns:
        A solution for each replica.

    Raises:
        CosetError: If the model does not fit the data, training diverges, or `out` holds another run.

    Example:
        >>> (posterior,) = coset.fit(model, digits.train, coset.VI(epochs=2))
        >>> type(posterior).__name__
        'Gaussian'
    """
    check_run(replicas, checkpoint_seconds, seed)
    where = resolve(device, states.of(model))
    split = as_split(data).to(where)
    check_call(model, split, where)
    _check_parameters(model)
    initial = None if starts is None else InitialStates.of(model, starts, replicas * method.copies)
    more = unusual_parameters(model)
    if initial is not None and out is not None:
        more["starts"] = tensor_digest(initial.population.values())
    with RunSettings(method, seed, model, split, where, more).folder(out, ["replica-*"]) as folder:
        fitting = _Fitting(
            model,
            split,
            method,
            seed,
            initial_states=initial,
            folder=folder,
            progress=progress,
            checkpoint_seconds=checkpoint_seconds,
        )
        return fitting.replicas(replicas)


@dataclass(frozen=True, eq=False)
class _Fitting:
    """What all networks of a call have in common."""

    model: nn.Module
    split: Split
    method: Method
    seed: int
    initial_states: InitialStates | None
    folder: RunFolder
    progress: Progress | None
    checkpoint_seconds: float

    def replicas(self, count: int) -> list[Solution]:
        """The first solutions, of which those that are finished are read."""
        indices = [index for replica in range(count) for index in self.networks(replica)]
        solutions = self.finished(indices)
        waiting = [index for index in indices if index not in solutions]
        together = len(waiting) > 1 and self.train_together(waiting[0])
        while waiting:
            group = self.group_of_checkpoint(waiting) or (waiting if together else waiting[:1])
            solutions.update(zip(group, self.train(group), strict=True))
            waiting = [index for index in waiting if index not in group]
        return [
            self.combined(replica, [solutions[index] for index in self.networks(replica)]) for replica in range(count)
        ]

    def train_together(self, index: NetworkIndex) -> bool:
        """Whether all networks can be trained at once, as one of them shows."""
        alike = self.initial_states is None or self.initial_states.differ_in_trained_only
        inputs = self.split.inputs
        return alike and batches(self.initial(index).to(inputs.device).train(), inputs)

    def networks(self, replica: int) -> list[NetworkIndex]:
        """The networks of a replica."""
        copies = self.method.copies
        return [(replica,)] if copies == 1 else [(replica, copy) for copy in range(copies)]

    def initial(self, index: NetworkIndex) -> nn.Module:
        """The model of a network as it starts, on the CPU."""
        if self.initial_states is not None:
            replica, copy = (*index, 0)[:2]
            return self.initial_states.model_of(replica * self.method.copies + copy)
        with seeded(self.seed, index):
            return fresh(self.model)

    def stages(self, group: Sequence[NetworkIndex]) -> list[Stage]:
        """The work on each network, or on replicas of several; none if nothing is kept."""
        if self.folder.path is None:
            return []
        folders = ([f"replica-{index[0]}", *(f"copy-{copy}" for copy in index[1:])] for index in group)
        return [self.folder.stage(*names, result=SOLUTION) for names in folders]

    def finished(self, indices: Sequence[NetworkIndex]) -> dict[NetworkIndex, Solution]:
        """The solutions that are there already."""
        device = self.split.inputs.device
        solutions = [stage.read(lambda file: load(file, device)) for stage in self.stages(indices)]
        return {index: one for index, one in zip(indices, solutions, strict=False) if one is not None}

    def group_of_checkpoint(self, waiting: Sequence[NetworkIndex]) -> list[NetworkIndex] | None:
        """The networks of a checkpoint, if there is one: all of them, as it is of use for all only."""
        for stage in self.stages(waiting):
            content = stage.load_checkpoint(torch.device("cpu"), CHECKPOINT_KEYS)
            if content is not None:
                return [tuple(other) for other in content["group"]]
        return None

    def train(self, group: Sequence[NetworkIndex]) -> list[Solution]:
        """The solutions of networks that are trained together."""
        device, method = self.split.inputs.device, self.method
        randomness = Randomness(self.seed, group, device)
        models = [self.initial(index) for index in group]
        network = Network(models[0].to(device))
        start = torch.stack([network.flatten(dict(one.named_parameters())).to(device) for one in models])
        problem = TrainingProblem(network, start, self.split, likelihood_of(self.split.targets), randomness)
        with randomness.active():
            run = method.start(problem)
        self.folder.claim()
        stages = self.stages(group)
        loop = Loop(
            method.epochs,
            group,
            randomness,
            device,
            stages=stages,
            progress=self.progress,
            checkpoint_seconds=self.checkpoint_seconds,
            split=self.split,
        )
        loop.drive(run)
        solutions = run.solutions()
        release(run)
        # The first has the checkpoint, which is needed until all others are there.
        for stage, solution in reversed(list(zip(stages, solutions, strict=False))):
            stage.finish(solution.save)
        return solutions

    def combined(self, replica: int, solutions: list[Solution]) -> Solution:
        """The solution of a replica."""
        solution = self.method.combine(solutions)
        if self.method.copies > 1:
            for stage in self.stages([(replica,)]):
                stage.finish(solution.save)
        return solution


def _check_parameters(model: nn.Module) -> None:
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trained:
        raise CosetError(f"{type(model).__name__} has no parameters to train: all are frozen, or there are none.")
    for name, p in trained.items():
        if not p.is_floating_point():
            raise ModelError(f"Parameter '{name}' is {p.dtype}, and only real ones can be trained: freeze it.")
