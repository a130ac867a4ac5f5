"""`coset curve`: a low-loss curve between two solutions, in a folder that a stopped search goes on from."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coset.alignment.methods import OF_GAUSSIANS
from coset.cli import console
from coset.cli.console import Display, TrainingListener, open_display
from coset.cli.options import (
    ArgsOption,
    CheckpointSecondsOption,
    DeviceOption,
    JsonOption,
    ModelOption,
    OverwriteOption,
    SeedOption,
    SolutionArgument,
    SplitOption,
    settings_option,
)
from coset.core.errors import CosetError, StateError
from coset.core.names import plural
from coset.core.progress import Epoch

if TYPE_CHECKING:
    from coset.cli.curve_search import CurveSearch
    from coset.cli.experiment import Experiment
    from coset.paths.barrier import Barrier
    from coset.solutions.solution import Solution

SETTING = settings_option("Another setting, such as weight_decay=0.001, pam.iterations=2 or attack.steps=7.")


def curve(
    first: SolutionArgument,
    second: SolutionArgument,
    model: ModelOption,
    data: Annotated[str, typer.Option(help="A data set, such as mnist: the curve is learned on its training split.")],
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="Folder for the curve, metrics and checkpoints; a search goes on in its own."),
    ],
    align: Annotated[
        str | None,
        typer.Option(help=f"How to align the second: {OF_GAUSSIANS}; activations if not given."),
    ] = None,
    no_align: Annotated[bool, typer.Option("--no-align", help="Leave the second where it is.")] = False,
    pam: Annotated[
        bool, typer.Option("--pam", help="Learn the permutation of the second and the curve in turn.")
    ] = False,
    robust: Annotated[
        bool, typer.Option("--robust", help="Learn on inputs under attack, and measure the curve there too.")
    ] = False,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data; 50 if not given.")] = None,
    rate: Annotated[float | None, typer.Option(help="The largest learning rate; 0.03 if not given.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Examples of a step; 128 if not given.")] = None,
    shape: Annotated[str | None, typer.Option(help="bezier, which is smooth, if not given; or chain.")] = None,
    bends: Annotated[int | None, typer.Option(help="Control points that are learned; 1 if not given.")] = None,
    settings: Annotated[list[str] | None, SETTING] = None,
    points: Annotated[int, typer.Option(help="Points of the curve to measure, with both ends.", min=2)] = 25,
    html: Annotated[Path | None, typer.Option(help="Write a page with the curves: .html.")] = None,
    split: SplitOption = None,
    checkpoint_seconds: CheckpointSecondsOption = 60.0,
    args: ArgsOption = None,
    device: DeviceOption = "cpu",
    seed: SeedOption = 0,
    overwrite: OverwriteOption = False,
    json: JsonOption = False,
) -> None:
    """Learn a curve of low loss between two solutions; called again after it was stopped, it goes on.

    Example: coset curve a.safetensors b.safetensors --model mlp:64-64-10 --data digits -o curve

    Example: coset curve a.safetensors b.safetensors --model resnet20 --data cifar10 -o curve --set augment=true
    """
    from dataclasses import asdict, replace

    import torch

    from coset.alignment.methods import METHODS
    from coset.alignment.repair import running_norms
    from coset.cli import curve_loss, files
    from coset.cli.curve_search import CurveSearch
    from coset.cli.experiment import Experiment
    from coset.cli.model import ModelSpec
    from coset.cli.run_folder import resumable
    from coset.cli.settings import choice
    from coset.paths.find_curve import CURVE, find_curve
    from coset.plot.barrier import barriers
    from coset.plot.page import page
    from coset.solutions.evaluate import evaluate
    from coset.solutions.pgd import PGD

    start = time.perf_counter()
    if no_align and align is not None:
        raise CosetError("--align and --no-align exclude each other: give one of them.")
    if shape is not None:
        choice("--shape", shape, ("bezier", "chain"))
    alignment = None if no_align else align or "activations"
    spec = ModelSpec(model, args, device=device)
    files.check_output("--html", html, [".html"], [first, second], overwrite)
    if alignment is not None and alignment not in METHODS:
        raise CosetError(f"--align must be one of {', '.join(METHODS)}, not {alignment!r}.")
    _check_folder(out)
    options = {"epochs": epochs, "rate": rate, "batch_size": batch_size, "curve": shape, "bends": bends}
    search = CurveSearch.of(settings or (), options, pam, robust)
    singles = [option for option, is_used in (("--pam", pam), ("--robust", robust)) if is_used]
    ends = [_load_end(path, device, singles) for path in (first, second)]
    with open_display(quiet=json) as display:
        display.stage(f"building {model} and reading {data}")
        experiment = Experiment.of(spec, data, split)
    a, b = (_in_precision(q, experiment, path) for q, path in zip(ends, (first, second), strict=True))
    attack = None if search.attack is None else PGD(**search.attack).in_units_of(experiment.dataset)
    connect = replace(search.connect, attack=attack)
    with resumable("--out", out, json) as display:
        display.stage("learning" if alignment is None else "aligning and learning")
        training = SearchListener(display, search)
        learned = find_curve(
            a,
            b,
            experiment.module,
            experiment.dataset.train,
            connect,
            align=alignment or False,
            pam=search.pam or False,
            seed=seed,
            device=device,
            out=out,
            progress=training,
            checkpoint_seconds=checkpoint_seconds,
        )
    with open_display(quiet=json) as display:
        display.stage(f"evaluating the ends on the {experiment.split_name} split")
        scores = [
            evaluate(q, experiment.module, experiment.split, generator=torch.Generator().manual_seed(0)) for q in (a, b)
        ]
        losses = curve_loss.curve_loss(learned, experiment, points, display)
        if attack is not None:
            losses |= curve_loss.curve_loss(learned, experiment, points, display, attack)
    if html is not None:
        text = page(f"Curve between {first} and {second}", curve_loss.rows(losses), [barriers(losses)])
        files.write_text("--html", html, text)
    names = {"line": curve_loss.LINE, "curve": curve_loss.LEARNED}
    records = {key: curve_loss.record(losses[name]) for key, name in names.items()}
    robust_records = None
    if attack is not None:
        robust_records = {key: curve_loss.record(losses[name + curve_loss.ATTACKED]) for key, name in names.items()}
    report = {
        "model": model,
        "data": data,
        "split": split,
        "seed": seed,
        "device": device,
        "settings": asdict(connect),
        "align": alignment,
        "pam": None if search.pam is None else asdict(search.pam) | _objectives(out),
        "epochs": search.epochs,
        "first_epoch": training.first,
        "evaluated_on": experiment.split_name,
        "target_std": experiment.target_std,
        "repaired": bool(running_norms(experiment.module)),
        "ends": [{"solution": str(path), **asdict(score)} for path, score in zip((first, second), scores, strict=True)],
        **records,
        "robust": robust_records,
        "output": str(out / CURVE),
        "seconds": time.perf_counter() - start,
    }
    console.print_json(report) if json else _show(report, losses, experiment, html)


class SearchListener(TrainingListener):
    """Follows the epochs of all parts of a search."""

    def __init__(self, display: Display, search: CurveSearch) -> None:
        super().__init__(display, search.epochs)
        self._search = search

    def place(self, epoch: Epoch) -> tuple[str, int]:
        name, before = self._search.place(epoch.replica)
        return f"{name}: epoch {epoch.epoch} of {epoch.epochs}", before + epoch.epoch


def _check_folder(out: Path) -> None:
    """Refuse a folder of other things: find_curve would go on from files with the names of its own."""
    from coset.core.resume import SETTINGS

    if out.is_dir() and not (out / SETTINGS).exists() and any(not path.name.startswith(".") for path in out.iterdir()):
        raise CosetError(f"--out {out} holds other files: choose a new folder.")


def _load_end(path: Path, device: str, singles: list[str]) -> Solution:
    """singles: the options that are for single networks."""
    from coset.solutions.dirac import Dirac
    from coset.solutions.load import load

    try:
        q = load(path, device)
    except StateError as error:  # of two files, the one that it is about must be named
        raise error if str(path) in str(error) else StateError(f"{path}: {error}") from error
    if singles and not isinstance(q, Dirac):
        raise CosetError(f"{singles[0]} is for single networks, and {path} holds a {type(q).__name__}: leave it out.")
    return q


def _in_precision(q: Solution, experiment: Experiment, path: Path) -> Solution:
    """The solution, refused unless it is one of the model; a Dirac in its precision."""
    from coset.alignment.precision import as_in
    from coset.core import state as states
    from coset.solutions.dirac import Dirac

    checked = states.check(q.mean, states.of(experiment.module), str(path))
    return as_in(experiment.module, Dirac(checked, q.noise)) if isinstance(q, Dirac) else q


def _objectives(out: Path) -> dict[str, Any]:
    from coset.core import json_reader
    from coset.core.json_reader import JsonObject
    from coset.paths.find_curve import OBJECTIVES

    file = out / OBJECTIVES
    return {"objectives": JsonObject(json_reader.read(file), str(file)).series("objectives")}


def _show(report: dict[str, Any], losses: dict[str, Barrier], experiment: Experiment, html: Path | None) -> None:
    from coset.cli import curve_loss

    out = console.stdout()
    table = curve_loss.rows(losses)
    columns = tuple(table[0])
    title = f"Curve of {report['model']} on {report['data']}, {plural(report['epochs'], 'epoch')}"
    out.print(console.table(title, columns, [tuple(row.values()) for row in table], numbers=columns[1:]))
    ends = [f"{end['nll']:.4f}" for end in report["ends"]]
    if experiment.dataset.classes:
        ends = [f"{text} ({end['accuracy']:.2%})" for text, end in zip(ends, report["ends"], strict=True)]
    out.print(f"ends: {report['evaluated_on']} loss {' and '.join(ends)}")
    if report["align"] is not None:
        out.print(f"the second end was aligned to the first by {report['align']}")
    if report["pam"] is not None:
        out.print(f"objective of PAM: {', '.join(f'{value:.4f}' for value in report['pam']['objectives'])}")
    if report["repaired"]:
        out.print(curve_loss.REPAIRED)
    for note in experiment.notes:
        out.print(note)
    if report["first_epoch"] is None:
        out.print("the curve was learned before, so nothing was trained")
    out.print(f"wrote {report['output']}{'' if html is None else f' and {html}'}")
    out.print(f"{report['seconds']:.1f} s")
