"""`coset demo`: what the library is about, on data that comes with it, in a few seconds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from coset import data, zoo
from coset.alignment.align import align
from coset.alignment.many import barycenter
from coset.alignment.repair import recompute_norms
from coset.cli import console, outputs
from coset.core import state as states
from coset.core.names import plural
from coset.core.progress import Epoch
from coset.inference.fit import fit
from coset.inference.map import MAP
from coset.paths.barrier import barrier
from coset.paths.geodesic import geodesic
from coset.plot.barrier import barriers
from coset.plot.figure import save
from coset.plot.groups import groups
from coset.solutions.dirac import Dirac
from coset.symmetries.infer import symmetry
from coset.symmetries.symmetry import Symmetry
from coset.symmetries.verify import difference

# Batch norm on purpose: its statistics must move along with the units.
MODEL = "resnet20:in_channels=1"
BATCH = 64
METHOD = MAP(epochs=4, batch_size=BATCH, schedule="onecycle")
POINTS = 9


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
    """Train, infer, move, align, merge, compare, draw and print."""
    start = time.perf_counter()
    picture, curves = out / "blocks.png", out / "barrier.png"
    with outputs.writing("--out", out):
        out.mkdir(parents=True, exist_ok=True)
    with one_thread(), console.steps() as say:
        say("reading the digits")
        digits = data.load("digits")
        model = zoo.build(MODEL)
        say(f"training networks A and B, {MODEL}, for {METHOD.epochs} epochs")
        first, second = fit(model, digits.train, METHOD, replicas=2, seed=seed, progress=_epochs(say))
        say("inferring and verifying their symmetry")
        sym = symmetry(_with(model, first.mean), (digits.test.inputs[:BATCH],))
        moved = sym.act(sym.random(torch.Generator().manual_seed(seed)), first)
        say("aligning, averaging and repairing")
        back = align(first, moved, sym)
        match = align(first, second, sym, "activations", model, digits.train)
        aligned = sym.act(match.element, second)
        between = {"B": barycenter([first, second]), "B aligned": barycenter([first, aligned])}
        repaired = {name: Dirac(recompute_norms(model, one.mean, digits.train)) for name, one in between.items()}
        networks = {
            "A": first,
            "A moved by a random element": moved,
            "halfway from A to A moved": barycenter([first, moved]),
            "A moved, aligned back to A": sym.act(back.element, moved),
            "B": second,
            "halfway from A to B": between["B"],
            "halfway from A to B, repaired": repaired["B"],
            "B aligned to A": aligned,
            "halfway from A to B aligned": between["B aligned"],
            "halfway from A to B aligned, repaired": repaired["B aligned"],
        }
        points = [compare(name, first.mean, one.mean, model, digits.test) for name, one in networks.items()]
        say("measuring the loss between A and B")
        paths = {
            name: barrier(geodesic(first, end), model, digits.test, POINTS, repair=digits.train)
            for name, end in {"not aligned, repaired": second, "aligned, repaired": aligned}.items()
        }
        with outputs.writing("--out", out):
            save(groups(sym, MODEL), picture)
            save(barriers(paths), curves)
    show(sym, points)
    console.stdout().print(f"pictures: {picture} and {curves}    {time.perf_counter() - start:.1f} s in all")


def _epochs(say: console.Steps) -> Callable[[Epoch], None]:
    return lambda epoch: say.tick(f"network {'AB'[epoch.replica]}: epoch {epoch.epoch} of {epoch.epochs}")


def _with(model: nn.Module, state: states.State) -> nn.Module:
    model.load_state_dict(dict(state))
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
    out.print(
        "\nThe moved network is as far from A as B is, and computes the same function: alignment undoes the move."
    )
    out.print("Halfway to B little works, even with batch norm's statistics recomputed (repaired); aligned, most does.")
