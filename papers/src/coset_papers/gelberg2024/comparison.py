"""Mean-field VI beside its symmetrizations on one problem, run by run.

Run r of every method starts at the same weights, sees the data in the same order and draws the same noise: these come
from a generator of the run's own, and permutations from another. So differences are of the method alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import nn

from coset import VI, Epoch, SymmetrizedVI, Symmetry, evaluate, fit, on_epoch, symmetry
from coset.data import Split
from coset.inference.elbo import elbo
from coset.solutions.overlap_estimators import Entropy
from coset_papers.gelberg2024.paired_tests import PairedDifference, paired
from coset_papers.settings import Settings

MEAN_FIELD = "mean-field"
STATES = 16  # drawn for the bound and the overlap


@dataclass(frozen=True)
class Way:
    """Which entropy is estimated, by how many permutations; mean-field VI without one."""

    entropy: Entropy | None = None
    elements: int = 20


WAYS: dict[str, Way] = {
    MEAN_FIELD: Way(),
    "InfoNCE, K = 5": Way("infonce", 5),
    "InfoNCE, K = 10": Way("infonce", 10),
    "InfoNCE, K = 20": Way("infonce", 20),
    "importance, K = 20": Way("importance", 20),
    "Bethe": Way("bethe"),
}


@dataclass(frozen=True)
class VISettings:
    """Settings of `VI` that the methods share; noise is learned where it is None."""

    steps: int
    batch_size: int
    rate: float = 5e-3
    schedule: str = "cosine"
    prior_variance: float = 1.0
    initial_std: float = 0.05
    noise: float | None = None

    def method(self, way: Way, examples: int) -> VI:
        """That of `way`, with as many epochs as the steps take."""
        shared: dict[str, Any] = asdict(self)
        each = examples // min(self.batch_size, examples)
        shared["epochs"] = max(1, round(shared.pop("steps") / each))
        if way.entropy is None:
            return VI(**shared)
        return SymmetrizedVI(**shared, entropy=way.entropy, elements=way.elements)


@dataclass(frozen=True)
class VIComparison:
    """What is trained on what. load: the model, training and test data, made when they are needed."""

    name: str
    load: Callable[[], tuple[nn.Module, Split, Split]] = field(compare=False)
    training: VISettings
    ways: tuple[str, ...]
    replicas: int
    samples: int


def compare(settings: Settings, comparison: VIComparison) -> dict[str, dict[str, Any]]:
    """For each way what `measure` finds, each kept as soon as it is there."""
    results = {}
    for name in comparison.ways:

        def compute(name: str = name) -> dict[str, Any]:
            settings.say(f"{comparison.name}: {name}")
            return measure(comparison, WAYS[name], settings.seed, settings.device)

        key = {"problem": comparison.name, "way": asdict(WAYS[name]), "training": asdict(comparison.training)}
        sizes = {"replicas": comparison.replicas, "samples": comparison.samples}
        results[name] = settings.keep("gelberg2024-compared", compute, **key, **sizes)
    return results


def measure(comparison: VIComparison, way: Way, seed: int, device: str) -> dict[str, Any]:
    """Lists over the runs: test nll and accuracy or rmse; bounds per training point; the overlap; seconds a step.

    index and short are those of `coset.overlap`: 1 - I / log|G|, and log|G| - I in nats, at most. again: accuracy or
    rmse of the first run when other networks are drawn from it, for mean-field VI.
    """
    model, train, test = comparison.load()
    train, test = train.to(device), test.to(device)
    method = comparison.training.method(way, len(train))
    seconds: list[float] = []

    def note(epoch: Epoch) -> None:
        if epoch.replica == 0 and (epoch.epoch > 1 or epoch.epochs == 1):  # the first compiles and captures
            seconds.append(epoch.seconds)

    solutions = fit(model, train, method, comparison.replicas, seed, device, progress=on_epoch(note))
    sym = _symmetry(model, train)
    rows: dict[str, list[float]] = {key: [] for key in ("nll", "score", "elbo", "symmetrized", "index", "short")}
    for q in solutions:
        evaluation = evaluate(q, model, test, comparison.samples)
        bound = elbo(q, model, train, comparison.training.prior_variance, STATES, sym=sym)
        assert bound.overlap is not None and bound.symmetrized is not None
        rows["nll"].append(evaluation.nll)
        rows["score"].append(_score(evaluation.accuracy, evaluation.rmse))
        rows["elbo"].append(bound.value / len(train))
        rows["symmetrized"].append(bound.symmetrized / len(train))
        rows["index"].append(bound.overlap.index)
        rows["short"].append(bound.overlap.log_order - bound.overlap.lower)
    steps = len(train) // min(method.batch_size, len(train))
    again = []
    for number in range(comparison.replicas if way.entropy is None else 0):
        generator = torch.Generator(device).manual_seed(1 + number)
        evaluation = evaluate(solutions[0], model, test, comparison.samples, generator=generator)
        again.append(_score(evaluation.accuracy, evaluation.rmse))
    return {**rows, "again": again, "step": statistics.median(seconds) / steps, "log_order": sym.log_order}


def difference(results: dict[str, dict[str, Any]], name: str, key: str) -> PairedDifference:
    """The method `name` less mean-field VI."""
    return paired(results[MEAN_FIELD][key], results[name][key])


def _symmetry(model: nn.Module, train: Split) -> Symmetry:
    return symmetry(model.cpu(), (train.inputs[:2].cpu(),))


def _score(accuracy: float | None, rmse: float | None) -> float:
    value = rmse if accuracy is None else accuracy
    assert value is not None  # one of them is there
    return value
