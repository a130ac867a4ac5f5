"""What `coset flow evaluate` measures, each part kept in a folder, so that a command that is stopped goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from coset._version import __version__
from coset.cli.console import Display
from coset.cli.experiment import Experiment
from coset.cli.json_records import from_record, to_record
from coset.core.errors import CosetError
from coset.core.progress import Event, Progress
from coset.core.resume import Stage, digest, layers_digest, tensor_digest
from coset.populations.diversity import Diversity, diversity
from coset.populations.mistake_overlap import overlaps
from coset.populations.model_averages import ModelAverages, model_averages
from coset.populations.nearest_networks import NearestNetworks, nearest
from coset.populations.novelty import Baselines, Novelty, comparison
from coset.populations.pair_barriers import PairBarriers, pair_barriers
from coset.populations.population import Population
from coset.populations.scores import Scores, scores
from coset.symmetries.symmetry import Symmetry

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class PopulationQuality:
    """Of the networks of one population; differences are those of classes, and of two networks or more."""

    networks: int
    scores: Scores
    averages: ModelAverages
    diversity: Diversity | None
    barriers: PairBarriers | None


class PopulationEvaluator:
    """Measures populations of one model on one data set, part by part.

    total: how many parts there are, see `parts`. noise: of the
    targets of a regression. pairs: for barriers. work: a folder that keeps parts, if any. read: parts that were in it.
    """

    def __init__(
        self,
        experiment: Experiment,
        sym: Symmetry,
        display: Display,
        *,
        total: int,
        noise: float,
        pairs: int,
        seed: int,
        work: Path | None,
    ) -> None:
        self._experiment, self._sym, self._display, self._total = experiment, sym, display, total
        self._pairs, self._seed, self._work = pairs, seed, work
        self._classifies = not experiment.split.targets.is_floating_point()
        self.noise = None if self._classifies else noise
        self.read, self._done = 0, 0

    @staticmethod
    def parts(populations: int, novelty: bool) -> int:
        """Four for each population, and two for novelty if it is measured."""
        return 4 * populations + 2 * novelty

    def quality(self, name: str, population: Population) -> PopulationQuality:
        """name: of the population, for whoever waits."""
        states, model, split = population.states, self._experiment.module, self._experiment.split
        has_pairs = len(population) > 1
        key = self._key(population)

        def part(measure: str, kind: type[T], compute: Callable[[Progress], T]) -> T:
            return self._part(f"{name}: {measure}", measure, kind, key, compute)

        def measure_scores(progress: Progress) -> Scores:
            return scores(states, model, split, self.noise, progress=progress)

        def measure_averages(progress: Progress) -> ModelAverages:
            return model_averages(states, model, split, self.noise, seed=self._seed, progress=progress)

        def measure_diversity(progress: Progress) -> Diversity:
            return diversity(states, model, split, seed=self._seed, progress=progress)

        def measure_barriers(progress: Progress) -> PairBarriers:
            sym, pairs, seed = self._sym, self._pairs, self._seed
            return pair_barriers(states, sym, model, split, self.noise, pairs=pairs, seed=seed, progress=progress)

        return PopulationQuality(
            len(population),
            part("scores", Scores, measure_scores),
            part("averages", ModelAverages, measure_averages),
            part("diversity", Diversity, measure_diversity) if self._classifies and has_pairs else None,
            part("barriers", PairBarriers, measure_barriers) if has_pairs else None,
        )

    def novelty(self, samples: Population, training: Population, fresh: Population | None, count: int) -> Novelty:
        """Of the samples, beside all networks that a flow learned from, and `count` of other kinds."""
        module, split, states = self._experiment.module, self._experiment.split, training.states
        device = next(iter(states.values())).device
        baselines = Baselines(None if fresh is None else fresh.states, count=count, seed=self._seed)
        compared = comparison(samples.states, states, self._sym, baselines, device)
        others = (samples,) if fresh is None else (samples, fresh)
        key = {**self._key(training), "count": count, "others": [self._key(one) for one in others]}

        def measure_nearest(progress: Progress) -> NearestNetworks:
            return nearest(compared.states, states, self._sym, apart=compared.apart, progress=progress)

        def measure_overlaps(progress: Progress) -> Tensor:
            return overlaps(compared.states, states, module, split, compared.apart, progress=progress)

        distances = self._part("distances to the training networks", "nearest", NearestNetworks, key, measure_nearest)
        if not self._classifies:
            return compared.novelty(distances, None)
        mistakes = self._part("mistakes of the training networks", "overlaps", Tensor, key, measure_overlaps)
        return compared.novelty(distances, mistakes)

    def _key(self, population: Population) -> dict[str, Any]:
        """All that measures depend on, where they are kept."""
        if self._work is None:
            return {}
        module, split = self._experiment.module, self._experiment.split
        return {
            "coset": __version__,
            "device": next(iter(population.states.values())).device.type,
            "layers": layers_digest(module),
            "data": tensor_digest([split.inputs, split.targets]),
            "networks": tensor_digest(population.states.values()),
            "noise": self.noise,
            "pairs": self._pairs,
            "seed": self._seed,
        }

    def _part(
        self, about: str, measure: str, kind: type[T], key: Mapping[str, Any], compute: Callable[[Progress], T]
    ) -> T:
        """What is computed, or lies in the folder."""

        def progress(event: Event) -> None:
            if event.total:
                share = event.done / event.total
                self._display.show(f"{about}, {event.done} of {event.total}", self._done + share, self._total)

        self._display.show(about, self._done, self._total)
        if self._work is None:
            value = compute(progress)
        else:
            stage = Stage(self._work, f"measured-{measure}-{digest(key)}.json")
            part = stage.value({**key, "measure": measure}, lambda: to_record(compute(progress)))
            try:
                value = from_record(kind, part.value)
            except (KeyError, TypeError, ValueError) as error:
                raise CosetError(f"{stage.file} holds something else: remove it to measure that part again.") from error
            self.read += part.was_read
        self._done += 1
        return value
