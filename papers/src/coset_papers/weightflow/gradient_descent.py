"""Plain gradient descent of many networks: what guidance is compared with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from coset import Collect, collect
from coset.core import state as states
from coset.data import Split
from coset_papers.weightflow.networks import Steering
from coset_papers.weightflow.study import Subject

UNTRAINED, FROM_SAMPLES = "untrained", "samples"
STARTS = {UNTRAINED: "the starts of the flow", FROM_SAMPLES: "samples of the flow"}


def descend(
    subject: Subject, split: Split, starts: dict[str, Tensor], rate: float, steering: Steering, device: str
) -> list[tuple[int, dict[str, Tensor]]]:
    """(steps, population) along plain gradient descent from `starts`, all on the same minibatches."""
    examples = split.subset(min(steering.steps * steering.batch, len(split)), torch.Generator().manual_seed(0))
    epochs = -(-steering.steps // (len(examples) // steering.batch))
    population = collect(
        subject.build(),
        examples,
        states.size(starts),
        Collect(
            rate=rate,
            momentum=0.0,
            weight_decay=0.0,
            epochs=epochs,
            batch_size=steering.batch,
            schedule="constant",
            every=steering.every,
        ),
        draw=lambda n, generator: {name: x[:n] for name, x in starts.items()},
        device=device,
    )
    times = sorted({int(step) for step in population.labels["iteration"].tolist()})
    return [
        (step, population[population.labels["iteration"] == step].states) for step in times if step <= steering.steps
    ]


def best_of(descents: list[dict[str, Any]], kind: str, step: int) -> dict[str, Any]:
    """The descent with the rate that is best after so many steps; at the end if -1."""
    return max((each for each in descents if each["kind"] == kind), key=lambda each: seen_at(each, step))


def seen_at(descent: dict[str, Any], step: int) -> float:
    """The accuracy of the last one seen until then."""
    accuracies = [row["accuracy"] for row in descent["trace"] if step < 0 or row["step"] <= step]
    return -1.0 if accuracies[-1] is None else accuracies[-1]
