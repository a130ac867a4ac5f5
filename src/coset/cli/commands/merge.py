"""`coset merge`: align any number of checkpoints, average them, repair their norm statistics, and compare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from coset.alignment.methods import NEED_DATA, OF_STATES
from coset.cli import console
from coset.cli.console import open_display
from coset.cli.options import (
    ArgsOption,
    DeviceOption,
    InputOption,
    JsonOption,
    ModelOption,
    OverwriteOption,
    SeedOption,
    SymmetryOption,
)
from coset.core.errors import CosetError


def merge(
    paths: Annotated[list[Path], typer.Argument(metavar="CHECKPOINTS", help="Two checkpoints or more.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The merged checkpoint: .safetensors.")],
    model: ModelOption = "",
    weights: Annotated[
        str | None, typer.Option(help="A weight for each, separated by commas; equal ones if not given.")
    ] = None,
    method: Annotated[str, typer.Option(help=f"{OF_STATES}.")] = "weights",
    data: Annotated[
        str | None, typer.Option(help="A data set, such as cifar10: repairs norm statistics on it, and evaluates.")
    ] = None,
    reference: Annotated[
        int | None, typer.Option(help="Align all to this one, counted from 0; by default jointly to their barycenter.")
    ] = None,
    args: ArgsOption = None,
    input: InputOption = None,
    symmetry: SymmetryOption = None,
    device: DeviceOption = "cpu",
    seed: SeedOption = 0,
    overwrite: OverwriteOption = False,
    json: JsonOption = False,
) -> None:
    """Align checkpoints, average them, and repair their norm statistics.

    Example: coset merge a.safetensors b.safetensors c.safetensors --model resnet20 -o merged.safetensors
    """
    import torch

    from coset.alignment.many import barycenter
    from coset.alignment.merge import merge as merge_solutions
    from coset.cli import files
    from coset.cli.model import ModelSpec, check_named, symmetric_model
    from coset.core.checkpoint import load_state, refuse_other, save_state
    from coset.data import load
    from coset.solutions.dirac import Dirac
    from coset.solutions.evaluate import evaluate

    spec = ModelSpec(model, args, input or (), symmetry, device=device)
    check_named(spec)
    files.check_output("--output", output, [".safetensors"], [*paths, symmetry], overwrite)
    if len(paths) < 2:
        raise CosetError("Merging needs two checkpoints or more.")
    shares = _numbers(weights, len(paths))
    if method in NEED_DATA and (data is None or reference is None):
        raise CosetError(f"--method {method} needs --data, and --reference with the number of a checkpoint.")
    report: dict[str, Any] = {"output": str(output), "inputs": [str(path) for path in paths]}
    with open_display(quiet=json) as display:
        net = symmetric_model(spec, paths[0], display)
        states = []
        for path in paths:
            display.stage(f"reading {path}")
            refuse_other(path)
            state = load_state(path)
            files.check_fits(state, net.sym, path, "taken from the first checkpoint")
            states.append(state)
        solutions = [
            Dirac(files.runnable(state, net.sym, net.module, path)) for state, path in zip(states, paths, strict=True)
        ]
        dataset = load(data, device=device) if data is not None else None
        display.stage("aligning and averaging")
        merged = merge_solutions(
            solutions,
            net.sym,
            shares,
            net.module if dataset is not None else None,
            dataset.train if dataset is not None else None,
            reference=reference,
            method=method,
            generator=torch.Generator().manual_seed(seed),
            device=device,
            progress=display,
        )
        if dataset is not None and net.module is not None:
            display.stage("evaluating")
            average = barycenter(solutions, shares)
            report["test_accuracy"] = {
                "ends": [evaluate(one, net.module, dataset.test).accuracy for one in solutions],
                "plain average": evaluate(average, net.module, dataset.test).accuracy,
                "merged": evaluate(merged, net.module, dataset.test).accuracy,
            }
        with files.writing("--output", output):
            first = states[0]
            own = {name: merged.mean[name].to(x.dtype) for name, x in first.items() if name in merged.mean}
            save_state({**first, **own}, output)
    console.print_json(report) if json else _show(report)


def _numbers(text: str | None, n: int) -> list[float] | None:
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise CosetError(f"--weights {text!r} must be {n} numbers separated by commas.") from error


def _show(report: dict[str, Any]) -> None:
    out = console.stdout()
    accuracy = report.get("test_accuracy")
    if accuracy is not None:
        rows = [(name, f"{value:.2%}") for name, value in zip(report["inputs"], accuracy["ends"], strict=True)]
        rows += [(name, f"{accuracy[name]:.2%}") for name in ("plain average", "merged")]
        out.print(console.table("Merge", ("network", "test accuracy"), rows, numbers=("test accuracy",)))
    out.print(f"wrote {report['output']}")
