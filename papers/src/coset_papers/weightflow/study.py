"""Networks that are trained, flows that generate more of them, and what is measured: what the exhibits share."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from coset import Collect, Epoch, Population, Symmetry, collect, data, on_epoch, symmetry, zoo
from coset.core import state as states
from coset.core.files import write_json
from coset.data import DataSet
from coset.flow.coordinates import BaseDistribution, normal_starts
from coset.flow.flow import Flow
from coset.flow.matching import FlowPlan, Matching
from coset.populations.diversity import diversity
from coset.populations.model_averages import model_averages
from coset.populations.novelty import Novelty, novelty
from coset.populations.scores import scores
from coset_papers.examples import some
from coset_papers.ledger import seconds_of
from coset_papers.settings import Settings

COST = "cost.json"
NEAR = 256  # networks of a kind whose nearest is looked for
FRESH = 1_000_003  # added to the seed for networks that no flow has seen


@dataclass(frozen=True)
class Subject:
    """`runs` networks of a model of the zoo on a data set, trained by `training` on `examples`, all of them when None.

    fresh: how many more are trained from another seed, to compare with. deviation: of all weights at the start; that of
    the model's own initialisation when None. Starts are normal, so that a flow can know their density.
    """

    model: str
    data: str
    runs: int
    training: Collect
    fresh: int = 512
    deviation: float | None = None
    examples: int | None = None

    @property
    def sym(self) -> Symmetry:
        """The symmetry of the model."""
        return _symmetry(self.model)

    def build(self) -> nn.Module:
        """The model; its own weights do not count."""
        return zoo.build(self.model)

    def images(self, settings: Settings) -> DataSet:
        """Training and test examples on the device."""
        return _images(self.data, self.examples, settings.device)

    def starts(self) -> BaseDistribution:
        """What networks are before training."""
        return normal_starts(self.build(), self.sym, self.deviation)

    def population(self, settings: Settings) -> Population:
        """The networks that flows learn from; those that were trained before are read."""
        return self._collect(settings, self.runs, settings.seed)

    def unseen(self, settings: Settings) -> Population:
        """Networks of the same kind that no flow has seen: at the end of their training."""
        last = replace(self, training=replace(self.training, every=0, skip=0))
        return last._collect(settings, self.fresh, settings.seed + FRESH)

    def _collect(self, settings: Settings, runs: int, seed: int) -> Population:
        folder = self._folder(settings, seed)
        seconds: dict[str, float] = _cost(folder).get("seconds", {})

        say = settings.listener(
            lambda epoch: f"{self.model}, {self.data}: networks, part {epoch.replica}, epoch {epoch.epoch}"
        )

        def note(epoch: Epoch) -> None:
            seconds[f"part {epoch.replica}, epoch {epoch.epoch}"] = epoch.seconds  # which may come again after a stop
            write_json(folder / COST, {"minutes": sum(seconds.values()) / 60, "seconds": seconds})
            say(epoch)

        spent = settings.working(folder)
        population = collect(
            self.build(),
            self.images(settings).train,
            runs,
            self.training,
            draw=self.starts().states,
            seed=seed,
            device=settings.device,
            out=folder,
            progress=on_epoch(note),
        )
        spent(sum(seconds.values()))
        return population

    def count(self, settings: Settings) -> None:
        """Let the training of the networks count, where what was learned from them is read."""
        self._folder(settings, settings.seed)

    def minutes(self, settings: Settings) -> float:
        """How long it took to train the networks that flows learn from."""
        self.population(settings)
        return float(_cost(self._folder(settings, settings.seed))["minutes"])

    def _folder(self, settings: Settings, seed: int) -> Path:
        training = {name: value for name, value in asdict(self).items() if name not in ("runs", "fresh")}
        return settings.folder("weightflow-networks", **training, began=seed)


@dataclass(frozen=True)
class FlowRecipe:
    """A flow and how it is learned. outputs: whether errors of outputs count, too. networks: of the population, all
    when None.
    """

    plan: FlowPlan
    matching: Matching
    outputs: bool = True
    networks: int | None = None

    def flow(self, settings: Settings, subject: Subject) -> Flow:
        """The flow of these networks; one that was learned before is read."""
        folder = self._folder(settings, subject)
        file = folder / "flow.safetensors"
        if file.exists():
            subject.count(settings)
            return Flow.load(file, settings.device)
        population = subject.population(settings)
        networks = population if self.networks is None else population[: self.networks]
        flow = Flow.of(subject.sym, self.plan)
        about = f"{subject.model}, {subject.data}: {self.plan.geometry} flow, {self.plan.coupling}"

        say = settings.listener(lambda epoch: f"{about}, epoch {epoch.epoch} of {epoch.epochs}, {epoch.errors}")
        spent = settings.working(folder)
        flow.fit(
            networks,
            self.matching,
            model=subject.build() if self.outputs else None,
            data=subject.images(settings).train if self.outputs else None,
            seed=settings.seed,
            device=settings.device,
            out=folder,
            progress=on_epoch(say),
        )
        seconds = seconds_of(folder)
        last = json.loads((folder / "flow" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
        cost = {
            "minutes": seconds / 60,
            "errors": {name: last[name] for name in ("loss", "unseen") if name in last},
            "parameters": sum(p.numel() for p in flow.sampler.field.network.parameters()),
            "memory": spent(seconds),
        }
        write_json(folder / COST, cost)
        flow.save(file)  # last: where it lies, all else does
        return flow

    def cost(self, settings: Settings, subject: Subject) -> dict[str, Any]:
        """The minutes of learning, the last errors, the weights of the network, and the most memory in GiB."""
        self.flow(settings, subject)
        return _cost(self._folder(settings, subject))

    def key(self) -> dict[str, Any]:
        """All that the flow depends on, as JSON can hold it."""
        return asdict(self)

    def _folder(self, settings: Settings, subject: Subject) -> Path:
        return settings.folder("weightflow-flow", subject=asdict(subject), recipe=self.key())


@lru_cache(maxsize=2)
def _images(name: str, examples: int | None, device: str) -> DataSet:
    images = data.load(name)
    if examples is not None:
        images = replace(images, train=some(images.train, examples), test=some(images.test, examples))
    return images.to(device)


@lru_cache
def _symmetry(name: str) -> Symmetry:
    model = zoo.build(name)
    return symmetry(model, zoo.example_input(model))


def draw_samples(
    settings: Settings, flow: Flow, count: int, steps: int, method: str = "heun"
) -> tuple[dict[str, Tensor], float]:
    """`count` networks, and how many there are a second."""
    generator = torch.Generator(settings.device).manual_seed(settings.seed)
    flow.sample(min(count, 8), 1, method, generator=generator)  # so that nothing is prepared while time counts
    _wait(settings)
    begin = time.perf_counter()
    samples = flow.sample(count, steps, method, generator=generator)
    _wait(settings)
    return samples.states, count / (time.perf_counter() - begin)


def measure_networks(
    settings: Settings, subject: Subject, population: dict[str, Tensor], average: bool = True
) -> dict[str, Any]:
    """Accuracy and loss of each on the test examples, of their average, and how much they differ."""
    model, test = subject.build().to(settings.device), subject.images(settings).test
    values = scores(population, model, test, device=settings.device)
    accuracies = values.accuracies
    record: dict[str, Any] = {"accuracy": accuracies and accuracies.record(), "loss": values.losses.record()}
    if average:
        record["averages"] = [
            asdict(row) for row in model_averages(population, model, test, device=settings.device).rows
        ]
        record["diversity"] = asdict(diversity(population, model, test, device=settings.device))
    return record


def measure_novelty(settings: Settings, subject: Subject, samples: dict[str, Tensor]) -> Novelty:
    """How new the samples are, beside at most as many networks of every other kind."""
    return novelty(
        samples,
        subject.population(settings).states,
        subject.sym,
        subject.build().to(settings.device),
        subject.images(settings).test,
        subject.unseen(settings).states,
        count=min(NEAR, states.size(samples)),
        seed=settings.seed,
        device=settings.device,
    )


def _cost(folder: Path) -> dict[str, Any]:
    """What is known of the cost of what lies in a folder; nothing before."""
    file = folder / COST
    cost: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return cost


def _wait(settings: Settings) -> None:
    if torch.device(settings.device).type == "cuda":
        torch.cuda.synchronize()
