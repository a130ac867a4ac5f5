"""`coset barrier`: the loss between two checkpoints, before and after alignment, or along a curve.

As a table, JSON, or a page.
"""

from __future__ import annotations

import json as json_file
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coset.alignment.methods import OF_STATES
from coset.cli import console
from coset.cli.console import Display, open_display
from coset.cli.options import (
    ArgsOption,
    DeviceOption,
    InputOption,
    JsonOption,
    ModelOption,
    OverwriteOption,
    SeedOption,
)
from coset.core.errors import CosetError

if TYPE_CHECKING:
    from coset.cli.model import ModelSpec
    from coset.paths.barrier import Barrier

NAIVE = "not aligned"


def barrier(
    first: Annotated[Path, typer.Argument(help="Weights, as of the second; or alone a curve of `coset curve`.")],
    model: ModelOption,
    data: Annotated[str, typer.Option(help="A data set, such as mnist: the loss is that of its test split.")],
    second: Annotated[
        Path | None,
        typer.Argument(help="Weights: .safetensors, a folder of shards, or a .pt of plain tensors."),
    ] = None,
    method: Annotated[list[str] | None, typer.Option(help=f"How to align: {OF_STATES}. Repeat it to compare.")] = None,
    points: Annotated[int, typer.Option(help="Points of the path, with both ends.", min=2)] = 25,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Also recompute batch-norm statistics on training data at each point; for a curve they always are.",
        ),
    ] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page with the curves: .html.")] = None,
    args: ArgsOption = None,
    input: InputOption = None,
    device: DeviceOption = "cpu",
    seed: SeedOption = 0,
    overwrite: OverwriteOption = False,
    json: JsonOption = False,
) -> None:
    """Measure the loss between two checkpoints, before and after alignment, or along a curve.

    Example: coset barrier a.safetensors b.safetensors --model mlp:784-512-10 --data mnist --html barrier.html

    Example: coset barrier curve/curve.safetensors --model resnet20 --data cifar10
    """
    from coset.cli import curve_loss, files
    from coset.cli.model import ModelSpec
    from coset.paths.curve import is_curve
    from coset.plot.barrier import barriers as draw
    from coset.plot.page import page

    spec = ModelSpec(model, args, input or (), device=device)
    files.check_output("--html", html, [".html"], [first, second], overwrite)
    with open_display(quiet=json) as display:
        if second is None:
            what = f"along {first.name}"
            barriers = _along(first, spec, data, points, bool(method), display)
        elif is_curve(first):
            raise CosetError(f"{first} holds a curve, which has both ends: leave out {second}.")
        else:
            what = f"between {first.name} and {second.name}"
            methods = method or ("weights",)
            barriers = _between(
                (first, second), spec, data, display, methods=methods, points=points, repair=repair, seed=seed
            )
    if html is not None:
        files.write_text("--html", html, page(f"Barrier {what}", _rows(barriers), [draw(barriers)]))
    if json:
        console.print_json({name: json_file.loads(one.to_json()) for name, one in barriers.items()})
        return
    out = console.stdout()
    rows = _rows(barriers)
    columns = tuple(rows[0])
    out.print(console.table(f"Test loss {what}", columns, [tuple(row.values()) for row in rows], numbers=columns[1:]))
    if second is None and all(name.endswith(", repaired") for name in barriers):
        out.print(curve_loss.REPAIRED)
    if html is not None:
        out.print(f"wrote {html}")


def _between(
    paths: tuple[Path, Path],
    spec: ModelSpec,
    data: str,
    display: Display,
    *,
    methods: Sequence[str],
    points: int,
    repair: bool,
    seed: int,
) -> dict[str, Barrier]:
    """The straight path, and the straight path to the aligned second network, for each method."""
    import torch

    from coset.alignment.align import align
    from coset.cli import files
    from coset.cli.model import symmetric_model
    from coset.core.checkpoint import load_state, refuse_other
    from coset.data import load
    from coset.paths import barrier as paths_barrier
    from coset.paths.geodesic import geodesic
    from coset.solutions.dirac import Dirac

    net = symmetric_model(spec, paths[0], display)
    assert net.module is not None  # neither --symmetry nor --meta is an option here
    ends = []
    for path in paths:
        refuse_other(path)
        state = load_state(path, spec.device)
        files.check_fits(state, net.sym, path, "left out")
        ends.append(Dirac(files.runnable(state, net.sym, net.module, path)))
    a, b = ends
    dataset = load(data, device=spec.device)
    barriers: dict[str, Barrier] = {}
    for method in (NAIVE, *methods):
        end = b
        if method != NAIVE:
            display.stage(f"aligning by {method}")
            generator = torch.Generator().manual_seed(seed)
            match = align(
                a,
                b,
                net.sym,
                method,
                net.module,
                dataset.train,
                generator=generator,
                progress=display,
            )
            end = net.sym.act(match.element, b)
        variants = {method: None, f"{method}, repaired": dataset.train} if repair else {method: None}
        for name, statistics in variants.items():
            display.stage(f"loss of the path, {name}")
            barriers[name] = paths_barrier.barrier(
                geodesic(a, end), net.module, dataset.test, points, repair=statistics, progress=display
            )
    return barriers


def _along(path: Path, spec: ModelSpec, data: str, points: int, aligns: bool, display: Display) -> dict[str, Barrier]:
    """The curve, and the straight line between its ends; repaired if there are norms to repair, as they need it."""
    from coset.alignment.repair import running_norms
    from coset.cli.curve_loss import curve_loss
    from coset.cli.experiment import Experiment
    from coset.core import state as states
    from coset.paths.curve import is_curve, load_curve

    if path.exists() and not is_curve(path):
        raise CosetError(f"{path} holds no curve: name a second checkpoint, or a curve that `coset curve` wrote.")
    if aligns:
        raise CosetError("--method aligns two checkpoints, and a curve has its ends where they are: leave it out.")
    curve = load_curve(path, spec.device)
    display.stage(f"building {spec.name} and reading {data}")
    experiment = Experiment.of(spec, data, None)
    states.check(curve.points[0].mean, states.of(experiment.module), str(path))
    barriers = curve_loss(curve, experiment, points, display)
    suffix = ", repaired" if running_norms(experiment.module) else ""
    return {name + suffix: one for name, one in barriers.items()}


def _rows(barriers: dict[str, Barrier]) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = []
    for name, barrier in barriers.items():
        middle = len(barrier.t) // 2
        row: dict[str, Any] = {
            "path": name,
            "barrier (nats)": f"{barrier.height:.4f}",
            "loss at the ends": f"{barrier.endpoints[0]:.4f}, {barrier.endpoints[1]:.4f}",
            "loss halfway": f"{barrier.loss[middle]:.4f}",
            "accuracy halfway": f"{barrier.accuracy[middle]:.2%}" if barrier.accuracy is not None else "",
        }
        rows.append(row)
    return rows
