"""`coset demo`: what the library is about, on data that comes with it, in a few seconds."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from coset import data, zoo
from coset import state as states
from coset.cli import console, outputs
from coset.report import blocks, save
from coset.report.repeats import plural
from coset.symmetries import Symmetry, symmetry
from coset.symmetries.verify import difference

# Batch norm on purpose: its statistics must move along with the units.
MODEL = "resnet20:in_channels=1"
EPOCHS = 4
BATCH = 64
RATE = 2e-3


@dataclass(frozen=True)
class Point:
    """A network in the report: how far its weights and its outputs are from network A, and how good it is."""

    name: str
    distance: float
    change: float
    accuracy: float


@contextmanager
def one_thread() -> Iterator[None]:
    """Images of 8x8 pixels gain nothing from threads, which cost a lot where other programs want the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def run(out: Path, seed: int) -> None:
    """Train, infer, move, compare, draw and print."""
    start = time.perf_counter()
    picture = out / "blocks.png"
    with outputs.writing("--out", out):
        out.mkdir(parents=True, exist_ok=True)
    with one_thread(), console.steps() as say:
        say("reading the digits")
        digits = data.load("digits")
        models = []
        for number, name in enumerate("AB"):
            say(f"training network {name}, {MODEL}, for {EPOCHS} epochs")
            models.append(train(digits.train, seed + number))
        say("inferring and verifying their symmetry")
        sym = symmetry(models[0], (digits.test.inputs[:BATCH],))
        say("comparing")
        a, b = (states.of(model) for model in models)
        moved = sym.act(sym.random(torch.Generator().manual_seed(seed)), a)
        networks = {
            "A": a,
            "A moved by a random element": moved,
            "halfway from A to A moved": states.lerp(a, moved, 0.5),
            "B": b,
            "halfway from A to B": states.lerp(a, b, 0.5),
        }
        points = [compare(name, a, state, models[0], digits.test) for name, state in networks.items()]
        with outputs.writing("--out", picture):
            save(blocks(sym, MODEL), picture)
    show(sym, points)
    console.stdout().print(f"picture: {picture}    {time.perf_counter() - start:.1f} s in all")


def train(split: data.Split, seed: int) -> nn.Module:
    """A network trained by AdamW on cross-entropy, with a one-cycle learning rate."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = zoo.build(MODEL)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    steps = EPOCHS * -(-len(split) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
    for _ in range(EPOCHS):
        for inputs, targets in split.minibatches(BATCH, generator):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    return model.eval()


def compare(name: str, origin: states.State, state: states.State, model: nn.Module, split: data.Split) -> Point:
    """A state beside the origin: distance of the weights, change of the outputs, accuracy on the split."""

    def logits(at: states.State) -> Tensor:
        with torch.no_grad():
            found: Tensor = states.call(model, at, (split.inputs,))
        return found

    distance = float(states.norm(states.sub(state, origin)) / states.norm(origin))
    accuracy = float((logits(state).argmax(1) == split.targets).double().mean())
    return Point(name, distance, difference([logits(state)], [logits(origin)]), accuracy)


def show(sym: Symmetry, points: list[Point]) -> None:
    """Print what was found."""
    out = console.stdout()
    order = sym.log_order / math.log(10)
    out.print(
        f"{MODEL}: {plural(len(sym.groups), 'group')}, 10^{order:,.0f} permutations that compute the same function"
    )
    if sym.verification is not None:
        out.print(f"{sym.verification.note}: the output changes by {sym.verification.deviation:.1e}")
    columns = ("network", "weights moved", "output change", "test accuracy")
    rows = [(p.name, f"{p.distance:.0%}", f"{p.change:.1e}", f"{p.accuracy:.1%}") for p in points]
    out.print()
    out.print(console.table("Networks beside A", columns, rows, numbers=columns[1:]))
    out.print("\nThe moved network is as far from A as B is, and computes the same function.")
