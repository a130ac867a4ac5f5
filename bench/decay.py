"""How well networks can be generated, by the rate, the weight decay, the epochs and the schedule of their training.

Some 12 minutes of one core for each row. Networks 784-16-16-10 on 6,000 images of MNIST, and a
geometric flow that is learned by Muon. "unseen" is the error on 128 networks that the flow has not learned
from, "moved" what can be told without a flow: how far a tenth of another start moves where training ends, in lengths
of an end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

import torch
import typer
from torch import Tensor, nn

from coset import Architecture, Collect, Flow, Matching, Population, collect, data, on_epoch
from coset.core.progress import Epoch
from coset.data import Split
from coset.populations.scores import scores
from coset_papers.examples import some
from coset_papers.weightflow.study import FRESH, Subject

TRAININGS = (
    Collect(rate=0.1, weight_decay=5e-4, epochs=12),
    Collect(rate=0.1, weight_decay=5e-3, epochs=12),
    Collect(rate=0.03, weight_decay=1e-2, epochs=12),
    Collect(rate=0.03, weight_decay=2e-2, epochs=12),
    Collect(rate=0.03, weight_decay=1e-2, epochs=6),
    Collect(rate=0.03, weight_decay=1e-2, epochs=24),
    Collect(rate=0.03, weight_decay=1e-2, epochs=12, schedule="onecycle"),
)
IMAGES, BATCH = 6000, 64
UNSEEN, SAMPLES, PAIRS = 128, 128, 8

DrawStarts = Callable[[int, torch.Generator], dict[str, Tensor]]


def row(collection: Collect, networks: int, epochs: int) -> str:
    """Accuracies of samples and of fresh networks, the errors of the flow, and how far ends move."""
    training = replace(collection, batch_size=BATCH, chunk=networks)
    subject = Subject("mlp:784-16-16-10", "mnist", networks, training)
    model, images = subject.build(), data.load("mnist")
    train = some(images.train, IMAGES)

    def train_networks(runs: int, seed: int) -> Population:
        return collect(model, train, runs, training, draw=subject.starts().states, seed=seed)

    epochs_of_flow: list[Epoch] = []
    flow = Flow(subject.sym, architecture=Architecture(width=128, depth=4))
    settings = Matching(epochs, BATCH, warm_up=50, average=0.99, level=True, unseen=UNSEEN)
    flow.fit(train_networks(networks, 0), settings, model=model, data=train, progress=on_epoch(epochs_of_flow.append))
    samples = flow.sample(SAMPLES, generator=torch.Generator().manual_seed(0)).states
    means = [
        "-" if accuracies is None else f"{accuracies.mean:.4f}"
        for accuracies in (
            scores(x, model, images.test).accuracies for x in (samples, train_networks(SAMPLES, FRESH).states)
        )
    ]
    last = epochs_of_flow[-1]
    far = shift_of_ends(model, train, training, subject.starts().states)
    cells = f"{means[0]:>9}{means[1]:>9}{last.loss:>9.2f}{last.more['unseen']:>9.2f}{far:>9.2f}"
    return f"{collection.rate:<8g}{collection.weight_decay:<8g}{collection.epochs:<8}{collection.schedule:<10}{cells}"


def shift_of_ends(model: nn.Module, train: Split, training: Collect, starts: DrawStarts) -> float:
    """|w - w'| / |w| of ends of training from s and from 0.995 s + 0.1 s', the mean over some starts s and s'."""

    def pairs(n: int, generator: torch.Generator) -> dict[str, Tensor]:
        first, other = (starts(PAIRS, generator) for _ in range(2))
        return {name: torch.cat([x, 0.99**0.5 * x + 0.1 * other[name]])[:n] for name, x in first.items()}

    ends = collect(model, train, 2 * PAIRS, replace(training, chunk=2 * PAIRS), draw=pairs).states
    one, another = torch.split(torch.cat([x.flatten(1) for x in ends.values()], 1), PAIRS)
    return float((torch.linalg.vector_norm(one - another, dim=1) / torch.linalg.vector_norm(one, dim=1)).mean())


def main(
    networks: Annotated[int, typer.Option(help="That the flow learns from.", min=1)] = 2048,
    epochs: Annotated[int, typer.Option(help="Of the flow.", min=1)] = 20,
) -> None:
    """Measure each training and print a table."""
    header = "".join(f"{name:>9}" for name in ("samples", "trained", "loss", "unseen", "moved"))
    print(f"{'rate':<8}{'decay':<8}{'epochs':<8}{'schedule':<10}{header}")
    for training in TRAININGS:
        print(row(training, networks, epochs), flush=True)
