"""Tens of thousands of small networks, trained many at once: the data of a flow over networks."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from coset.core import state as states
from coset.core.device import matmul_precision, resolve
from coset.core.errors import CosetError, StateError
from coset.core.progress import Epoch, Event, Progress
from coset.core.state import State, finite_rows, owners
from coset.data import Data, Split, as_split
from coset.populations.chunk import Chunk, Collect, measure, refuse_alone
from coset.populations.population import Population, once
from coset.training.capture import release
from coset.training.folder import CHECKPOINT, SETTINGS, RowFolder, RunFolder, digest, open_folder, unusual
from coset.training.initialise import fresh
from coset.training.network import check_call
from coset.training.randomness import Randomness, seeded

MEASURED = 2048  # examples by which each kept iteration is measured; all of them would take longer than the training


def kept_population(chunk: Chunk, starts: Mapping[str, Tensor], seed: int, first: int) -> Population:
    """One run after the other, numbered from `first`, without those that diverged at any kept iteration.

    Labels are "run", "loss", "accuracy" of classifiers, and "iteration" if more than the end is kept. The examples
    that kept iterations are measured by are drawn from the seed.
    """
    split, settings, model = chunk.split, chunk.settings, chunk.model
    if settings.every:
        split = split.subset(min(MEASURED, len(split)), torch.Generator().manual_seed(seed))
    model.eval()
    how = split, chunk.likelihood, chunk.noise, chunk.batch_size, chunk.at_once
    with matmul_precision(settings.precision):
        found = [measure(chunk.outputs, kept, *how) for kept in chunk.kept]
    model.train()
    finite = torch.stack([loss.isfinite() for loss, _ in found]).all(0)
    for kept in chunk.kept:
        for x in kept.values():
            finite &= finite_rows(x)
    runs = finite.nonzero().flatten()

    times = len(chunk.kept)

    def left(x: Tensor) -> Tensor:
        """[n, ...] without those that diverged; not copied if none did."""
        return x if len(runs) == len(x) else x[runs]

    def joined(parts: list[Tensor]) -> Tensor:
        """[n, ...] of each kept iteration as [runs * iterations, ...]."""
        return left(parts[0]) if times == 1 else torch.stack([left(part) for part in parts], 1).flatten(0, 1)

    labels = {"run": (runs + first).float().repeat_interleave(times), "loss": joined([loss for loss, _ in found])}
    shares = [share for _, share in found if share is not None]
    if shares:
        labels["accuracy"] = joined(shares)
    if settings.every:
        labels["iteration"] = torch.tensor(chunk.iterations, device=runs.device).float().repeat(len(runs))
    tied = owners(states.of(model))
    return Population(
        once(tied, lambda name: joined([kept[name] for kept in chunk.kept])),
        once(tied, lambda name: left(starts[name]) if times == 1 else left(starts[name]).repeat_interleave(times, 0)),
        labels,
    )


log = logging.getLogger(__name__)

CHUNKS = "chunk-*.safetensors"

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
    """`runs` networks trained from independent starts, `method.chunk` of them at once on the same minibatches.

    The model says only what the network is, as for `coset.fit`. Starts are those of its own initialisation, or the
    population `draw(n, generator)`. Chunk k draws starts and the order of the data from (seed, k): same arguments, same
    result, and who asks for more runs gets the same whole chunks, and more. `progress` hears of each step of
    all chunks and of each epoch, an `Epoch` with the number of the chunk as replica and the mean loss of its networks.

    Labels are "run", "loss" and, of classifiers, "accuracy", both measured on `data` at the end. Of kept iterations
    they are measured on 2048 examples at most, the same for all, and "iteration" counts from 1. Runs that diverge are
    left out, with a warning.

    `out` is a folder: each finished chunk is a file, and every `checkpoint_seconds` the one under way is kept. Called
    again with the same arguments, or with more runs, `collect` goes on where it was stopped, with the same result.
    """
    settings = Collect() if method is None else method
    if runs < 1 or seed < 0:
        raise CosetError(f"runs must be positive and the seed not negative, not {runs} and {seed}.")
    where = resolve(device, states.of(model))
    split = as_split(data).to(where)
    check_call(model, split, where)
    if not any(p.requires_grad for p in model.parameters()):
        raise CosetError(f"{type(model).__name__} has no parameters to train: all are frozen, or there are none.")
    blank = copy.deepcopy(model).cpu().train()
    own = copy.deepcopy(blank).to(where)
    about = {"model": type(model).__name__, "data": digest(split), "settings": asdict(settings), "seed": seed}
    chunks = -(-runs // settings.chunk)
    job = _Job(blank, own, split, settings, draw, seed, chunks, progress, checkpoint_seconds, None, about)
    first = job.starts(0, 2)
    refuse_alone(own, first, split.inputs[:2])
    if out is not None:
        more = {"starts": digest(first.values()), **unusual(model)}
        folder = open_folder(out, settings, seed, model, split, where, **more)
        _refuse_strangers(folder.path)
        job = replace(job, folder=folder)
    parts = [job.chunk(k, min(settings.chunk, runs - k * settings.chunk)) for k in range(chunks)]
    found = Population.concat(parts)
    left = len(set(found.labels["run"].tolist()))
    if left == 0:
        advice = "use a lower rate, or inputs that are finite and smaller."
        raise DivergedError(f"All of {runs} networks diverged: {advice}")
    if left < runs:
        log.warning("%d of %d networks diverged and are left out", runs - left, runs)
    return replace(found, about={**about, "runs": runs})


@dataclass(frozen=True, eq=False)
class _Job:
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
    folder: RunFolder | None
    about: dict[str, Any]

    def starts(self, number: int, count: int) -> dict[str, Tensor]:
        """Where the networks of a chunk start, on the device, with one of tied names."""
        like = states.of(self.model)
        with seeded(self.seed, (number,)):
            if self.draw is None:
                drawn: State = states.stack(states.of(fresh(self.blank)) for _ in range(count))
            else:
                drawn = self.draw(count, torch.default_generator)
        stacked = {id(x): x.expand(count, *x.shape) for x in like.values()}
        checked = states.check(drawn, {name: stacked[id(x)] for name, x in like.items()}, "the drawn starts")
        return states.untie(self.model, {name: x.detach().to(like[name]) for name, x in checked.items()})

    def chunk(self, number: int, count: int) -> Population:
        """The first `count` networks of a chunk, from its file if there is one."""
        first = number * self.settings.chunk
        file = None if self.folder is None else self.folder.path / f"chunk-{number:05d}.safetensors"
        if file is not None and file.exists():
            try:
                found = Population.load(file, self.split.inputs.device)
            except StateError as error:
                raise StateError(f"{error} Remove it to train that chunk again.") from error
            if found.about.get("runs", 0) >= count:
                return found[found.labels["run"] < first + count]
        starts = self.starts(number, count)
        chunk = self._trained(number, starts)
        found = kept_population(chunk, starts, self.seed, first)
        release(chunk)
        population = replace(found, about={**self.about, "runs": count})
        if file is not None:
            population.save(file)
            (file.parent / CHECKPOINT).unlink(missing_ok=True)
        return population

    def _trained(self, number: int, starts: Mapping[str, Tensor]) -> Chunk:
        """The networks of a chunk at the end, on from the checkpoint if there is one of the same networks."""
        randomness = Randomness(self.seed, [(number,)], self.split.inputs.device)
        chunk = Chunk(self.settings, self.model, dict(starts), self.split, randomness.generators[0])
        group = [[number, states.size(starts)]]
        own = None if self.folder is None else RowFolder(self.folder.path)
        if self.folder is not None:
            self.folder.write_settings()
        before = 0.0  # seconds of the epoch that was stopped
        if own is not None and (found := own.resume(self.split.inputs.device)) and found["group"] == group:
            chunk.load_state_dict(found["run"])
            randomness.states = found["randomness"]
            before = found["seconds"]
        begin = time.perf_counter() - before
        saved = time.perf_counter()

        def after_step() -> None:
            nonlocal saved
            now = time.perf_counter()
            if own is not None and now - saved >= self.checkpoint_seconds:
                content = {"epoch": chunk.epochs, "run": chunk.state_dict(), "randomness": randomness.states}
                own.checkpoint({**content, "group": group, "seconds": now - begin})
                saved = time.perf_counter()
            if self.progress is not None:
                each = self.settings.epochs * chunk.steps
                self.progress(Event(number * each + chunk.taken, self.chunks * each, "step"))

        for epoch in range(chunk.epochs + 1, self.settings.epochs + 1):
            losses = chunk.epoch(after_step)
            loss = float(losses[losses.isfinite()].mean())
            if self.progress is not None:
                state = Epoch(number, epoch, self.settings.epochs, loss, None, time.perf_counter() - begin)
                text = f"epoch {epoch} of {self.settings.epochs}, {state.errors}"
                self.progress(Event(epoch, self.settings.epochs, "epoch", text, state))
            begin = time.perf_counter()
        return chunk


def _refuse_strangers(path: Path) -> None:
    """A chunk that this would take for its own belongs to a run, which is known by its settings."""
    if not (path / SETTINGS).exists() and any(path.glob(CHUNKS)):
        raise CosetError(f"{path} holds chunks of an unknown run: choose another folder.")
