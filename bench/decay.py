"""How well networks can be generated, by the rate, the weight decay, the epochs and the schedule of their training.

python bench/decay.py: some 12 minutes of one core for each row. Networks 784-16-16-10 on 6,000 images of MNIST, and a
geometric flow that is learned by Muon. "unseen" is the error on 128 networks that the flow has not learned from,
"moved" what can be told without a flow: how far a tenth of another start moves where training ends, in lengths of an
end.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from coset import Architecture, Collect, Flow, Matching, Population, collect, data
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
LEFT_OUT, MEASURED, MOVED = 128, 128, 8

Starts = Callable[[int, torch.Generator], dict[str, Tensor]]


def row(given: Collect, networks: int, epochs: int) -> str:
    """Accuracies of samples and of fresh networks, the errors of the flow, and how far ends move."""
    training = replace(given, batch_size=BATCH, chunk=networks)
    subject = Subject("mlp:784-16-16-10", "mnist", networks, training)
    model, images = subject.build(), data.load("mnist")
    train = some(images.train, IMAGES)

    def trained(runs: int, seed: int) -> Population:
        return collect(model, train, runs, training, draw=subject.starts().states, seed=seed)

    told: list[Epoch] = []
    flow = Flow(subject.sym, architecture=Architecture(width=128, depth=4))
    settings = Matching(epochs, BATCH, warm_up=50, average=0.99, level=True, unseen=LEFT_OUT)
    flow.fit(trained(networks, 0), settings, model=model, data=train, progress=told.append)
    made = flow.sample(MEASURED, generator=torch.Generator().manual_seed(0))
    means = [
        "-" if found is None else f"{found.mean:.4f}"
        for found in (scores(x, model, images.test).accuracies for x in (made, trained(MEASURED, FRESH).states))
    ]
    far = moved(model, train, training, subject.starts().states)
    found = f"{means[0]:>9}{means[1]:>9}{told[-1].loss:>9.2f}{told[-1].more['unseen']:>9.2f}{far:>9.2f}"
    return f"{given.rate:<8g}{given.weight_decay:<8g}{given.epochs:<8}{given.schedule:<10}{found}"


def moved(model: nn.Module, train: Split, training: Collect, starts: Starts) -> float:
    """|w - w'| / |w| of ends of training from s and from 0.995 s + 0.1 s', the mean over some starts s and s'."""

    def pairs(n: int, generator: torch.Generator) -> dict[str, Tensor]:
        first, other = (starts(MOVED, generator) for _ in range(2))
        return {name: torch.cat([x, 0.99**0.5 * x + 0.1 * other[name]])[:n] for name, x in first.items()}

    ends = collect(model, train, 2 * MOVED, replace(training, chunk=2 * MOVED), draw=pairs).states
    one, another = torch.split(torch.cat([x.flatten(1) for x in ends.values()], 1), MOVED)
    return float((torch.linalg.vector_norm(one - another, dim=1) / torch.linalg.vector_norm(one, dim=1)).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", type=int, default=2048)
    parser.add_argument("--epochs", type=int, default=20, help="of the flow")
    given = parser.parse_args()
    found = "".join(f"{name:>9}" for name in ("samples", "trained", "loss", "unseen", "moved"))
    print(f"{'rate':<8}{'decay':<8}{'epochs':<8}{'schedule':<10}{found}")
    for training in TRAININGS:
        print(row(training, given.networks, given.epochs), flush=True)


if __name__ == "__main__":
    main()
