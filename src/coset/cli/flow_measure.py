"""What `coset flow evaluate` measures, each part kept in a folder, so that a command that is stopped goes on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from coset._version import __version__
from coset.cli import runs
from coset.cli.experiment import Experiment
from coset.cli.flow_records import from_record, to_record
from coset.core.errors import CosetError
from coset.core.progress import Event, Progress
from coset.core.resume import digest, keep
from coset.populations.diversity import Diversity, diversity
from coset.populations.mistake_overlap import overlaps
from coset.populations.model_averages import ModelAverages, model_averages
from coset.populations.nearest_networks import NearestNetworks, nearest
from coset.populations.novelty import Baselines, Novelty, comparison
from coset.populations.pair_barriers import PairBarriers, pair_barriers
from coset.populations.population import Population
from coset.populations.scores import Scores, scores
from coset.symmetries.symmetry import Symmetry
from coset.training.folder import digest as digest_of

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Measured:
    """Of the networks of one population; differences are those of classes, and of two networks or more."""

    networks: int
    scores: Scores
    averages: ModelAverages
    diversity: Diversity | None
    barriers: PairBarriers | None


class Measures:
    """Measures populations of one model on one task.

    noise: of the targets of a regression. pairs: for barriers. work: the folder, if any. show: hears what is measured,
    and how many parts are done, of `PER_POPULATION` for each and `OF_NOVELTY` for novelty. read: parts that were kept.
    """

    PER_POPULATION, OF_NOVELTY = 4, 2

    def __init__(
        self, task: Experiment, sym: Symmetry, noise: float, pairs: int, seed: int, work: Path | None, show: runs.Show
    ) -> None:
        self.task, self.sym, self.pairs, self.seed, self._work, self._show = task, sym, pairs, seed, work, show
        self.classifies = not task.split.targets.is_floating_point()
        self.noise = None if self.classifies else noise
        self.read, self._done = 0, 0

    def of(self, name: str, population: Population) -> Measured:
        """name: of the population, for whoever waits."""
        states, model, split = population.states, self.task.module, self.task.split
        given, several = (states, model, split), len(population) > 1
        key = self._key(population)

        def part(measure: str, kind: type[T], compute: Callable[[], T]) -> T:
            return self._part(f"{name}: {measure}", measure, kind, key, lambda _: compute())

        def barriers() -> PairBarriers:
            return pair_barriers(states, self.sym, model, split, self.noise, pairs=self.pairs, seed=self.seed)

        return Measured(
            len(population),
            part("scores", Scores, lambda: scores(*given, self.noise)),
            part("averages", ModelAverages, lambda: model_averages(*given, self.noise, seed=self.seed)),
            part("diversity", Diversity, lambda: diversity(*given, seed=self.seed))
            if self.classifies and several
            else None,
            part("barriers", PairBarriers, barriers) if several else None,
        )

    def novelty(self, samples: Population, training: Population, fresh: Population | None, count: int) -> Novelty:
        """Of the samples, beside all networks that a flow learned from, and `count` of other kinds."""
        where, known = next(iter(training.states.values())).device, training.states
        others = None if fresh is None else fresh.states
        baselines = Baselines(others, count=count, seed=self.seed)
        compared = comparison(samples.states, known, self.sym, baselines, where)
        given = (samples,) if fresh is None else (samples, fresh)
        key = {**self._key(training), "count": count, "others": [self._key(one) for one in given]}

        def search(progress: Progress) -> NearestNetworks:
            return nearest(compared.states, known, self.sym, apart=compared.apart, progress=progress)

        def overlap(progress: Progress) -> Tensor:
            return overlaps(
                compared.states, known, self.task.module, self.task.split, compared.apart, progress=progress
            )

        found = self._part("distances to the training networks", "nearest", NearestNetworks, key, search)
        if not self.classifies:
            return compared.novelty(found, None)
        return compared.novelty(
            found, self._part("mistakes of the training networks", "overlaps", Tensor, key, overlap)
        )

    def _key(self, population: Population) -> dict[str, Any]:
        """All that measures depend on, where they are kept."""
        if self._work is None:
            return {}
        module, split = self.task.module, self.task.split
        return {
            "coset": __version__,
            "device": next(iter(population.states.values())).device.type,
            "layers": hashlib.sha256(repr(module).encode()).hexdigest()[:16],
            "data": digest_of([split.inputs, split.targets]),
            "networks": digest_of(population.states.values()),
            "noise": self.noise,
            "pairs": self.pairs,
            "seed": self.seed,
        }

    def _part(
        self, about: str, measure: str, kind: type[T], key: Mapping[str, Any], compute: Callable[[Progress], T]
    ) -> T:
        """What is computed, or was kept."""

        def progress(event: Event) -> None:
            if event.total:
                self._show(f"{about}, {event.done} of {event.total}", self._done + event.done / event.total)

        self._show(about, self._done)
        if self._work is None:
            found = compute(progress)
        else:
            file = self._work / f"measured-{measure}-{digest(key)}.json"
            kept = keep(file, {**key, "measure": measure}, lambda: to_record(compute(progress)))
            try:
                found = from_record(kind, kept.value)
            except (KeyError, TypeError, ValueError) as error:
                raise CosetError(f"{file} holds something else: remove it to measure that part again.") from error
            self.read += kept.was_read
        self._done += 1
        return found
