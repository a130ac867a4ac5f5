"""`coset flow collect`: train many networks, as one file that a flow can learn from."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from coset.cli import console
from coset.cli.options import (
    ArgsOption,
    CompileOption,
    DeviceOption,
    InputOption,
    JsonOption,
    ModelOption,
    OutputOption,
    OverwriteOption,
    PrecisionOption,
    SeedOption,
    SplitOption,
    WorkOption,
    settings_option,
)
from coset.core.errors import CosetError
from coset.core.names import plural

SETTING = settings_option("Another setting, such as schedule=constant or momentum=0.8.")


def collect(
    model: ModelOption,
    data: Annotated[str, typer.Option(help="A data set, such as mnist: its training split.")],
    runs: Annotated[int, typer.Option(help="Networks to train, from independent starts.", min=1)],
    output: OutputOption,
    work: WorkOption = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data; 25 if not given.")] = None,
    rate: Annotated[
        float | None, typer.Option(help="The largest learning rate; 0.1 for sgd and 0.002 for adam if not given.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Examples of a step; 128 if not given.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="sgd if not given, or adam.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Added to the gradient; 5e-4 if not given.")] = None,
    chunk: Annotated[int | None, typer.Option(help="Networks that are trained together; 4096 if not given.")] = None,
    every: Annotated[
        int | None, typer.Option(help="Keep every k-th iteration; networks at the end only without it.")
    ] = None,
    skip: Annotated[int | None, typer.Option(help="Epochs at the beginning of which --every keeps none.")] = None,
    precision: PrecisionOption = None,
    compile: CompileOption = False,
    start: Annotated[
        str,
        typer.Option(help="normal: weights start as Gaussians, whose density a flow knows; model: as it says itself."),
    ] = "normal",
    start_std: Annotated[
        float | None, typer.Option(help="Deviation of normal starts; if not given, that of the model's own, by tensor.")
    ] = None,
    settings: Annotated[list[str] | None, SETTING] = None,
    split: SplitOption = None,
    args: ArgsOption = None,
    input: InputOption = None,
    device: DeviceOption = "cpu",
    seed: SeedOption = 0,
    overwrite: OverwriteOption = False,
    json: JsonOption = False,
) -> None:
    """Train many networks at once, and write them with their starts as a population.

    Example: coset flow collect --model mlp:784-10-10 --data mnist --runs 24576 --work nets -o nets.safetensors
    """
    from dataclasses import asdict, replace

    from coset.cli import files
    from coset.cli.console import PartsListener, open_display
    from coset.cli.experiment import Experiment
    from coset.cli.model import ModelSpec
    from coset.cli.population_files import infer_symmetry, record_of
    from coset.cli.run_folder import resumable, withdrawing
    from coset.cli.settings import read
    from coset.flow.coordinates import normal_starts
    from coset.populations import collect as populations
    from coset.populations.chunk import Collect
    from coset.populations.collect import CHUNKS, DivergedError
    from coset.populations.scores import spread

    begin = time.perf_counter()
    spec = ModelSpec(model, args, input or (), device=device)
    files.check_output("--output", output, [".safetensors"], [], overwrite)
    _check_start(start, start_std)
    options = {
        "epochs": epochs,
        "rate": rate,
        "batch_size": batch_size,
        "optimizer": optimizer,
        "weight_decay": weight_decay,
        "chunk": chunk,
        "every": every,
        "skip": skip,
        "precision": precision,
        "compile": compile or None,
    }
    method = Collect(**read(Collect, "collect", settings or (), options))
    with open_display(quiet=json) as display:
        display.stage(f"building {model} and reading {data}")
        experiment = Experiment.of(spec, data, split)
        draw = None  # the model's own starts, whose density no flow knows
        if start == "normal":
            draw = normal_starts(experiment.module, infer_symmetry(experiment.module, spec), start_std).states
    with resumable("--work", work, json) as display, withdrawing(work, CHUNKS, DivergedError):
        display.stage("training")
        training = PartsListener(display, -(-runs // method.chunk), method.epochs)
        population = populations.collect(
            experiment.module,
            experiment.dataset.train,
            runs,
            method,
            draw=draw,
            seed=seed,
            device=device,
            out=work,
            progress=training,
        )
    source = {"data": data, "split": split, "data_digest": population.about["data"]}
    starts = {"start": start, "start_std": start_std}
    population = replace(population.to("cpu"), about={**population.about, **record_of(spec), **source, **starts})
    with files.writing("--output", output):
        population.save(output)
    report = {
        "model": model,
        **source,
        **starts,
        "settings": asdict(method),
        "seed": seed,
        "device": device,
        "runs": runs,
        "left_out": runs - len(set(population.labels["run"].tolist())),
        "networks": len(population),
        "first_epoch": training.first,
        "labels": {name: spread(x).record() for name, x in population.labels.items() if name in ("loss", "accuracy")},
        "output": str(output),
        "seconds": time.perf_counter() - begin,
    }
    console.print_json(report) if json else _show(str(population), report)


def _check_start(start: str, std: float | None) -> None:
    if start not in ("normal", "model"):
        raise CosetError(f"--start must be normal or model, not {start!r}.")
    if std is None:
        return
    if start == "model":
        raise CosetError("--start-std is that of normal starts: leave it out, or --start model.")
    if not 0 < std < float("inf"):
        raise CosetError(f"--start-std must be positive and finite, not {std}.")


def _show(population: str, report: dict[str, Any]) -> None:
    out = console.stdout()
    columns = ("", "mean", "deviation", "least", "largest")
    rows = []
    for name, label in report["labels"].items():
        form = ".2%" if name == "accuracy" else ".4f"
        cells = ("" if label[key] is None else format(label[key], form) for key in ("mean", "std", "least", "largest"))
        rows.append((f"training {name}", *cells))
    out.print(population)
    out.print(console.table(f"{report['model']} on {report['data']}", columns, rows, numbers=columns[1:]))
    if report["left_out"]:
        out.print(f"{report['left_out']} of {plural(report['runs'], 'run')} diverged and left out")
    if report["first_epoch"] is None:
        out.print("all networks were trained before")
    out.print(f"wrote {report['output']}")
    out.print(f"{report['seconds']:.1f} s")
