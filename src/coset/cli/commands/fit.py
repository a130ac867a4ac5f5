"""`coset fit`: find solutions by any method, in a folder that a stopped run goes on from."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coset.cli import console, methods
from coset.cli.console import ReplicasListener, open_display
from coset.cli.options import (
    ArgsOption,
    CheckpointSecondsOption,
    DeviceOption,
    JsonOption,
    ModelOption,
    SeedOption,
    SplitOption,
    settings_option,
)
from coset.core.names import plural

if TYPE_CHECKING:
    from coset.cli.experiment import Experiment
    from coset.training.loop import Method

METHOD = typer.Option(help=f"{methods.choices()}.")
SETTING = settings_option("A setting of the method, such as rate=0.01 or base.epochs=20.")


def fit(
    model: ModelOption,
    data: Annotated[str, typer.Option(help="A data set, such as mnist: its training split.")],
    method: Annotated[str, METHOD],
    out: Annotated[Path, typer.Option(help="Folder for solutions, metrics and checkpoints; a run goes on in its own.")],
    replicas: Annotated[int, typer.Option(help="Solutions from independent starts.", min=1, max=10**6)] = 1,
    settings: Annotated[list[str] | None, SETTING] = None,
    split: SplitOption = None,
    checkpoint_seconds: CheckpointSecondsOption = 60.0,
    args: ArgsOption = None,
    device: DeviceOption = "cpu",
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Train networks or find posteriors; called again after it was stopped, it goes on.

    Example: coset fit --model mlp:64-64-10 --data digits --method vi --out run --set epochs=100

    Example: coset fit --model mlp:6-50-1 --data uci/yacht --method laplace --out yacht --set base.epochs=200
    """
    from dataclasses import asdict, replace

    import torch

    from coset.cli.experiment import Experiment
    from coset.cli.model import ModelSpec
    from coset.cli.run_folder import resumable
    from coset.inference import fit as inference
    from coset.inference.adversarial import Adversarial
    from coset.inference.fit import SOLUTION
    from coset.solutions.evaluate import evaluate

    start = time.perf_counter()
    spec = ModelSpec(model, args, device=device)
    how = methods.build(method, settings or ())
    with open_display(quiet=json) as display:
        display.stage(f"building {model} and reading {data}")
        experiment = Experiment.of(spec, data, split)
    if isinstance(how, Adversarial) and not how.attack.mean:
        how = replace(how, attack=how.attack.in_units_of(experiment.dataset))
    folders = [out / f"replica-{k}" for k in range(replicas)]
    with resumable("--out", out, json) as display:
        display.stage("training")
        training = ReplicasListener(display, how.epochs, how.copies * replicas, _epochs_before(how, folders))
        solutions = inference.fit(
            experiment.module,
            experiment.dataset.train,
            how,
            replicas=replicas,
            seed=seed,
            device=device,
            out=out,
            progress=training,
            checkpoint_seconds=checkpoint_seconds,
        )
    rows: list[dict[str, Any]] = []
    with open_display(quiet=json) as display:
        for k, (q, folder) in enumerate(zip(solutions, folders, strict=True)):
            display.stage(f"evaluating replica {k} on the {experiment.split_name} split")
            generator = torch.Generator().manual_seed(seed)
            rows.append(
                {
                    "replica": k,
                    "kind": type(q).__name__,
                    "training_loss": _training_loss(folder),
                    **asdict(evaluate(q, experiment.module, experiment.split, generator=generator)),
                    "solution": str(folder / SOLUTION),
                }
            )
    report = {
        "method": method,
        "settings": asdict(how),  # type: ignore[call-overload]
        "model": model,
        "data": data,
        "split": split,
        "seed": seed,
        "device": device,
        "epochs": how.epochs,
        "first_epoch": training.first,
        "evaluated_on": experiment.split_name,
        "target_std": experiment.target_std,
        "replicas": rows,
        "seconds": time.perf_counter() - start,
    }
    console.print_json(report) if json else _show(experiment, report)


def _epochs_before(method: Method, folders: list[Path]) -> int:
    """Of networks that were finished before."""
    from coset.inference.fit import SOLUTION

    pattern = SOLUTION if method.copies == 1 else f"copy-*/{SOLUTION}"
    return method.epochs * sum(len(list(folder.glob(pattern))) for folder in folders)


def _training_loss(folder: Path) -> float | None:
    """Of the last epoch; the mean over the networks of a replica, None where one of them has lost its metrics."""
    from coset.core.resume import METRICS, read_metrics

    lines = [read_metrics(file)[-1:] for file in folder.rglob(METRICS)]
    losses = [row.get("loss") for last in lines for row in last]
    numbers = [loss for loss in losses if isinstance(loss, int | float)]
    return sum(numbers) / len(numbers) if numbers and len(numbers) == len(lines) else None


def _show(experiment: Experiment, report: dict[str, Any]) -> None:
    out = console.stdout()
    formats = {"nll": ".4f", "rmse": ".4f"}
    if experiment.dataset.classes:
        formats = {"nll": ".4f", "accuracy": ".2%", "ece": ".4f"}
    numbers = ("replica", "training loss", *(f"{report['evaluated_on']} {name}" for name in formats))
    rows = [
        (
            str(row["replica"]),
            "-" if row["training_loss"] is None else f"{row['training_loss']:.4f}",
            *(format(row[name], spec) for name, spec in formats.items()),
            row["solution"],
        )
        for row in report["replicas"]
    ]
    title = f"{report['method']} of {report['model']} on {report['data']}, {plural(report['epochs'], 'epoch')}"
    out.print(console.table(title, (*numbers, "solution"), rows, numbers=numbers))
    for note in experiment.notes:
        out.print(note)
    if report["first_epoch"] is None:
        out.print("every replica was finished before, so nothing was trained")
    out.print(f"{report['seconds']:.1f} s")
