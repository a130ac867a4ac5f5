"""`coset demo`: what the library is about, on data that comes with it, in a few seconds."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coset.cli import console
from coset.cli.console import ReplicasListener, open_display
from coset.cli.options import OverwriteOption, SeedOption
from coset.core.names import plural

if TYPE_CHECKING:
    from torch import Tensor, nn

    from coset.core.state import State
    from coset.data import Split
    from coset.symmetries.symmetry import Symmetry

# Batch norm on purpose: its statistics must move along with the units.
MODEL = "resnet20:in_channels=1"
BATCH = 64
EPOCHS = 4
POINTS = 9


def demo(
    out: Annotated[Path, typer.Option(help="Folder for what it draws.")] = Path("out/demo"),
    seed: SeedOption = 0,
    overwrite: OverwriteOption = False,
) -> None:
    """Train two small networks, find their symmetry, move one without changing what it computes, align and merge.

    Example: coset demo --out out/demo
    """
    import torch

    from coset.alignment.align import align
    from coset.alignment.many import barycenter
    from coset.alignment.repair import recompute_norms
    from coset.cli import files
    from coset.data import load
    from coset.inference.fit import fit
    from coset.inference.map import MAP
    from coset.paths.barrier import barrier
    from coset.paths.geodesic import geodesic
    from coset.plot.barrier import barriers
    from coset.plot.figure import save
    from coset.plot.groups import groups
    from coset.solutions.dirac import Dirac
    from coset.symmetries.infer import symmetry
    from coset.zoo import build

    start = time.perf_counter()
    method = MAP(epochs=EPOCHS, batch_size=BATCH, schedule="onecycle")
    picture, curves = out / "blocks.png", out / "barrier.png"
    with files.writing("--out", out):
        out.mkdir(parents=True, exist_ok=True)
    for file in (picture, curves):
        files.check_output("--out", file, [".png"], [], overwrite)
    with _one_thread(), open_display() as display:
        display.stage("reading the digits")
        digits = load("digits")
        model = build(MODEL)
        display.stage(f"training networks A and B, {MODEL}, for {method.epochs} epochs")
        training = ReplicasListener(display, EPOCHS, 2)
        first, second = fit(model, digits.train, method, replicas=2, seed=seed, progress=training)
        display.stage("inferring and verifying their symmetry")
        model.load_state_dict(dict(first.mean))
        sym = symmetry(model.eval(), (digits.test.inputs[:BATCH],))
        image = sym.act(sym.random(torch.Generator().manual_seed(seed)), first)
        display.stage("aligning, averaging and repairing")
        back = align(first, image, sym)
        match = align(first, second, sym, "activations", model, digits.train)
        aligned = sym.act(match.element, second)
        between = {"B": barycenter([first, second]), "B aligned": barycenter([first, aligned])}
        repaired = {name: Dirac(recompute_norms(model, one.mean, digits.train)) for name, one in between.items()}
        networks = {
            "A": first,
            "A moved by a random element": image,
            "halfway from A to A moved": barycenter([first, image]),
            "A moved, aligned back to A": sym.act(back.element, image),
            "B": second,
            "halfway from A to B": between["B"],
            "halfway from A to B, repaired": repaired["B"],
            "B aligned to A": aligned,
            "halfway from A to B aligned": between["B aligned"],
            "halfway from A to B aligned, repaired": repaired["B aligned"],
        }
        rows = [NetworkBesideA.of(name, first.mean, one.mean, model, digits.test) for name, one in networks.items()]
        display.stage("measuring the loss between A and B")
        paths = {
            name: barrier(geodesic(first, end), model, digits.test, POINTS, repair=digits.train)
            for name, end in {"not aligned, repaired": second, "aligned, repaired": aligned}.items()
        }
        with files.writing("--out", out):
            save(groups(sym, MODEL), picture)
            save(barriers(paths), curves)
    _show(sym, rows)
    console.stdout().print(f"pictures: {picture} and {curves}    {time.perf_counter() - start:.1f} s in all")


@dataclass(frozen=True)
class NetworkBesideA:
    """How far the weights and the outputs of a network are from those of network A, and how good it is."""

    name: str
    distance: float
    change: float
    accuracy: float

    @classmethod
    def of(cls, name: str, origin: State, state: State, model: nn.Module, split: Split) -> NetworkBesideA:
        """Distance of the weights, change of the outputs, accuracy on the split."""
        import torch

        from coset.core import state as states
        from coset.symmetries.comparison import difference

        def logits(at: State) -> Tensor:
            with torch.no_grad():
                outputs: Tensor = states.call(model, at, (split.inputs,))
            return outputs

        distance = float(states.norm(states.sub(state, origin)) / states.norm(origin))
        accuracy = float((logits(state).argmax(1) == split.targets).double().mean())
        return cls(name, distance, difference([logits(state)], [logits(origin)]), accuracy)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Images of 8x8 pixels gain nothing from threads, which cost a lot where other programs want the cores."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _show(sym: Symmetry, networks: list[NetworkBesideA]) -> None:
    out = console.stdout()
    order = sym.log_order / math.log(10)
    out.print(
        f"{MODEL}: {plural(len(sym.groups), 'group')}, 10^{order:,.0f} permutations that compute the same function"
    )
    if sym.verification is not None:
        out.print(f"{sym.verification.note}: the output changes by {sym.verification.deviation:.1e}")
    columns = ("network", "weights moved", "output change", "test accuracy")
    rows = [(p.name, f"{p.distance:.0%}", f"{p.change:.1e}", f"{p.accuracy:.1%}") for p in networks]
    out.print()
    out.print(console.table("Networks beside A", columns, rows, numbers=columns[1:]))
    out.print(
        "\nThe moved network is as far from A as B is, and computes the same function: alignment undoes the move."
    )
    out.print("Halfway to B little works, even with batch norm's statistics recomputed (repaired); aligned, most does.")
