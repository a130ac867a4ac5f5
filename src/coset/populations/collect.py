"""Tens of thousands of small networks, trained many at once: the data of a flow over networks."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from coset.core import state as states
from coset.core.contents import once
from coset.core.errors import CosetError, StateError
from coset.core.functional import matmul_precision, resolve
from coset.core.progress import Event, Progress
from coset.core.resume import NO_FOLDER, RunFolder, RunSettings, Stage, tensor_digest, unusual_parameters
from coset.core.state import State, finite_rows, owners
from coset.data import Data, Split, as_split
from coset.populations.chunk import Chunk, Collect, measure, refuse_alone
from coset.populations.population import Population
from coset.training.initialise import fresh
from coset.training.loop import Loop, check_run, release
from coset.training.network import Randomness, check_call, seeded

log = logging.getLogger(__name__)

CHUNKS = "chunk-*.safetensors"
SCORED = 2048  # examples by which each snapshot is scored; all of them would take longer than the training

Draw = Callable[[int, torch.Generator], State]
"""A population of n starts, from a generator on the CPU."""


class DivergedError(CosetError):
    """Not one network is left, so that chunks which are already trained are of no use."""


def collect(
    model: nn.Module,
    data: Data,
    runs: int,
    method: Collect | None = None,
    *,
    draw: Draw | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    out: str | Path | None = None,
    progress: Progress | None = None,
    checkpoint_seconds: float = 60.0,
) -> Population:
    """Networks trained from independent starts, `method.chunk` of them at once on the same minibatches.

    The model says only what the network is, as for `coset.fit`. Chunk k draws starts and the order of the data from
    (seed, k): same arguments, same result, and who asks for more runs gets the same whole chunks, and more. Labels are
    "run", "loss" and, of classifiers, "accuracy", both measured on `data` at the end. Of iterations on the way they are
    measured on 2048 examples at most, the same for all, and "iteration" counts from 1. Runs that diverge are left out,
    with a warning.

    Args:
        model: What is trained; its own parameters do not count.
        data: Training examples: a `Split`, a pair of inputs and targets, or a loader of batches.
        runs: How many networks.
        method: How they are trained, and which iterations belong to the population.
        draw: Gives a population of starts from their number and a generator on the CPU, such as
            `coset.normal_starts(model, sym).states`; the model's own initialisation when None.
        seed: Of all random numbers.
        device: Where to train; that of the model when None.
        out: A folder where each finished chunk is a file. Called again with the same arguments, or with more runs,
            `collect` goes on where it was stopped, with the same result.
        progress: Hears of each step of all chunks, and of each epoch, an `Epoch` with the number of the chunk as
            replica and the mean loss of its networks.
        checkpoint_seconds: A checkpoint is written after the first step that ends so long after the last one.

    Returns:
        The networks, with their starts and labels.

    Raises:
        CosetError: If all runs diverge, networks like the model cannot be trained at once, or `out` holds another run.

    Example:
        >>> networks = coset.collect(model, digits.train, 4, coset.Collect(epochs=1))
        >>> len(networks), sorted(networks.labels)
        (4, ['accuracy', 'loss', 'run'])
    """
    settings = Collect() if method is None else method
    if runs < 1 or seed < 0:
        raise CosetError(f"runs must be positive and the seed not negative, not {runs} and {seed}.")
    check_run(1, checkpoint_seconds, seed)
    where = resolve(device, states.of(model))
    split = as_split(data).to(where)
    check_call(model, split, where)
    if not any(p.requires_grad for p in model.parameters()):
        raise CosetError(f"{type(model).__name__} has no parameters to train: all are frozen, or there are none.")
    blank = copy.deepcopy(model).cpu().train()
    own = copy.deepcopy(blank).to(where)
    about = {"model": type(model).__name__, "data": tensor_digest(split), "settings": asdict(settings), "seed": seed}
    chunks = -(-runs // settings.chunk)
    collection = _Collection(
        blank=blank,
        model=own,
        split=split,
        settings=settings,
        draw=draw,
        seed=seed,
        chunks=chunks,
        progress=progress,
        checkpoint_seconds=checkpoint_seconds,
        folder=NO_FOLDER,
        about=about,
    )
    first = collection.starts(0, 2)
    refuse_alone(own, first, split.inputs[:2])
    more = {"starts": tensor_digest(first.values()), **unusual_parameters(model)}
    with RunSettings(settings, seed, model, split, where, more).folder(out, [CHUNKS]) as folder:
        collection = replace(collection, folder=folder)
        parts = [collection.chunk(k, min(settings.chunk, runs - k * settings.chunk)) for k in range(chunks)]
        population = Population.concat(parts)
        remaining = len(set(population.labels["run"].tolist()))
        if remaining == 0:
            advice = "use a lower rate, or inputs that are finite and smaller."
            raise DivergedError(f"All of {runs} networks diverged: {advice}")
    if remaining < runs:
        log.warning("%d of %d networks diverged and are left out", runs - remaining, runs)
    return replace(population, about={**about, "runs": runs})


@dataclass(frozen=True, eq=False)
class _Collection:
    """What all chunks of a call have in common: two copies of the model, on the CPU and on the device."""

    blank: nn.Module
    model: nn.Module
    split: Split
    settings: Collect
    draw: Draw | None
    seed: int
    chunks: int
    progress: Progress | None
    checkpoint_seconds: float
    folder: RunFolder
    about: dict[str, Any]

    def starts(self, number: int, count: int) -> dict[str, Tensor]:
        """Where the networks of a chunk start, on the device, with one of tied names."""
        like = states.of(self.model)
        with seeded(self.seed, (number,)):
            if self.draw is None:
                starts: State = states.stack(states.of(fresh(self.blank)) for _ in range(count))
            else:
                starts = self.draw(count, torch.default_generator)
        stacked = {id(x): x.expand(count, *x.shape) for x in like.values()}
        checked = states.check(starts, {name: stacked[id(x)] for name, x in like.items()}, "the drawn starts")
        return states.untie(self.model, {name: x.detach().to(like[name]) for name, x in checked.items()})

    def chunk(self, number: int, count: int) -> Population:
        """The first `count` networks of a chunk, from its file if there is one."""
        first = number * self.settings.chunk
        stage = self.folder.stage(result=f"chunk-{number:05d}.safetensors", metrics=False)
        population = stage.read(self._load)
        if population is not None and population.about["runs"] >= count:
            return population[population.labels["run"] < first + count]
        starts = self.starts(number, count)
        chunk = self._train(number, starts, stage)
        population = replace(snapshots_of(chunk, starts, self.seed, first), about={**self.about, "runs": count})
        release(chunk)
        stage.finish(population.save)
        return population

    def _load(self, file: Path) -> Population:
        try:
            population = Population.load(file, self.split.inputs.device)
            like = states.of(self.model)
            stacked = once(owners(like), lambda name: like[name].new_empty(0, *like[name].shape))
            states.check({name: x[:0] for name, x in population.states.items()}, stacked, str(file))
            if not (isinstance(population.about.get("runs"), int) and "run" in population.labels):
                raise StateError(f"{file} does not say which runs its networks are of.")
        except StateError as error:
            raise StateError(f"{error} Remove it to train that chunk again.") from error
        return population

    def _train(self, number: int, starts: Mapping[str, Tensor], stage: Stage) -> Chunk:
        """The networks of a chunk at the end, on from the checkpoint if there is one of the same networks."""
        device = self.split.inputs.device
        randomness = Randomness(self.seed, [(number,)], device)
        generator = randomness.generators[0]
        chunk = Chunk(self.settings, self.model, dict(starts), self.split, generator, self._tell_step(number))
        self.folder.claim()
        loop = Loop(
            self.settings.epochs,
            [(number,)],
            randomness,
            device,
            stages=[stage],
            progress=self.progress,
            checkpoint_seconds=self.checkpoint_seconds,
            key=[(number, states.size(starts))],
        )
        loop.drive(chunk)
        return chunk

    def _tell_step(self, number: int) -> Callable[[int, int], None]:
        """What hears how many steps of how many are done in a chunk."""

        def on_step(done: int, total: int) -> None:
            if self.progress is not None:
                self.progress(Event(number * total + done, self.chunks * total, "step"))

        return on_step


def snapshots_of(chunk: Chunk, starts: Mapping[str, Tensor], seed: int, first: int) -> Population:
    """One run after the other, numbered from `first`, without those that diverged at any of their snapshots.

    Labels are "run", "loss", "accuracy" of classifiers, and "iteration" if there are snapshots on the way. The examples
    that those are scored by are drawn from the seed.
    """
    split, settings, model = chunk.split, chunk.settings, chunk.model
    if settings.every:
        split = split.subset(min(SCORED, len(split)), torch.Generator().manual_seed(seed))
    model.eval()
    how = split, chunk.likelihood, chunk.noise, chunk.batch_size, chunk.at_once
    with matmul_precision(settings.precision):
        scores = [measure(chunk.outputs, population, *how) for population in chunk.snapshots]
    model.train()
    finite = torch.stack([loss.isfinite() for loss, _ in scores]).all(0)
    for population in chunk.snapshots:
        for x in population.values():
            finite &= finite_rows(x)
    runs = finite.nonzero().flatten()
    times = len(chunk.snapshots)

    def of_runs(x: Tensor) -> Tensor:
        """[n, ...] without those that diverged; not copied if none did."""
        return x if len(runs) == len(x) else x[runs]

    def by_run(parts: list[Tensor]) -> Tensor:
        """[n, ...] of each snapshot as [runs * snapshots, ...]."""
        return of_runs(parts[0]) if times == 1 else torch.stack([of_runs(part) for part in parts], 1).flatten(0, 1)

    labels = {"run": (runs + first).float().repeat_interleave(times), "loss": by_run([loss for loss, _ in scores])}
    shares = [share for _, share in scores if share is not None]
    if shares:
        labels["accuracy"] = by_run(shares)
    if settings.every:
        labels["iteration"] = torch.tensor(chunk.iterations, device=runs.device).float().repeat(len(runs))
    tied = owners(states.of(model))

    def repeated(x: Tensor) -> Tensor:
        return of_runs(x) if times == 1 else of_runs(x).repeat_interleave(times, 0)

    return Population(
        once(tied, lambda name: by_run([population[name] for population in chunk.snapshots])),
        once(tied, lambda name: repeated(starts[name])),
        labels,
    )
