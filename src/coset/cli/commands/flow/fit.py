"""`coset flow fit`: learn to generate networks like those of a population."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from coset.cli import console
from coset.cli.options import (
    ArgsOption,
    CheckpointSecondsOption,
    CompileOption,
    DeviceOption,
    InputOption,
    JsonOption,
    ModelOfFileOption,
    OutputOption,
    OverwriteOption,
    PrecisionOption,
    SeedOption,
    SplitOption,
    WorkOption,
    settings_option,
)
from coset.core.names import plural

SETTING = settings_option("Another setting, such as unseen=64 or optimizer=adam.")


def fit(
    population: Annotated[Path, typer.Argument(help="Networks that `coset flow collect` wrote.")],
    output: OutputOption,
    data: Annotated[
        str | None, typer.Option(help="A data set: errors also count by what they do to outputs on it. Recommended.")
    ] = None,
    model: ModelOfFileOption = "",
    geometry: Annotated[str, typer.Option(help="euclidean, normalized or geometric.")] = "geometric",
    coupling: Annotated[
        str, typer.Option(help="Where a network comes from: training (its own start), ot or independent.")
    ] = "training",
    network: Annotated[str, typer.Option(help="The network that learns: units, relational or pna.")] = "units",
    width: Annotated[int, typer.Option(help="Its features.", min=1)] = 256,
    depth: Annotated[int, typer.Option(help="Its layers.", min=1)] = 6,
    heads: Annotated[int, typer.Option(help="Its heads of attention, of units.", min=1)] = 8,
    predict: Annotated[str, typer.Option(help="What it predicts: velocity or endpoint.")] = "velocity",
    conditions: Annotated[str, typer.Option(help="Labels that samples can be asked for, such as loss,accuracy.")] = "",
    epochs: Annotated[int | None, typer.Option(help="Passes over the population; 200 if not given.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Networks of a step; 256 if not given.")] = None,
    rate: Annotated[float | None, typer.Option(help="The largest learning rate; 0.02 if not given.")] = None,
    precision: PrecisionOption = None,
    compile: CompileOption = False,
    settings: Annotated[list[str] | None, SETTING] = None,
    work: WorkOption = None,
    checkpoint_seconds: CheckpointSecondsOption = 60.0,
    split: SplitOption = None,
    args: ArgsOption = None,
    input: InputOption = None,
    device: DeviceOption = "cpu",
    seed: SeedOption = 0,
    overwrite: OverwriteOption = False,
    json: JsonOption = False,
) -> None:
    """Learn a flow that leads from untrained networks to trained ones.

    Example: coset flow fit nets.safetensors --data mnist --geometry geometric --work flow -o flow.safetensors
    """
    from dataclasses import asdict
    from typing import get_args, get_type_hints

    import torch

    from coset.cli import files
    from coset.cli.console import PartsListener, open_display
    from coset.cli.experiment import Experiment
    from coset.cli.model_of_file import spec_of
    from coset.cli.population_files import (
        check_members,
        infer_symmetry,
        open_population,
        optional_spec,
        split_of,
    )
    from coset.cli.run_folder import resumable
    from coset.cli.settings import choice, read
    from coset.flow.flow import Flow
    from coset.flow.matching import FlowPlan, Matching
    from coset.flow.velocity_network import Architecture
    from coset.training.network import check_call

    begin = time.perf_counter()
    hints = get_type_hints(FlowPlan)
    plan = FlowPlan(
        geometry=choice("--geometry", geometry, get_args(hints["geometry"])),
        coupling=choice("--coupling", coupling, get_args(hints["coupling"])),
        architecture=Architecture(
            choice("--network", network, get_args(get_type_hints(Architecture)["kind"])), width, depth, heads
        ),
        predict=choice("--predict", predict, get_args(hints["predict"])),
        conditions=tuple(name for name in conditions.split(",") if name),
    )
    spec = optional_spec(model, args, input, device)
    files.check_output("--output", output, [".safetensors"], [population], overwrite)
    options = {
        "epochs": epochs,
        "batch_size": batch_size,
        "rate": rate,
        "precision": precision,
        "compile": compile or None,
    }
    method = Matching(**read(Matching, "fit", settings or (), options))
    networks = open_population(population, device)
    spec = spec_of(spec, {population: (networks.about, networks.states)})
    split = split_of(split, data, networks.about)
    with open_display(quiet=json) as display:
        display.stage(f"building {spec.name}{'' if data is None else f' and reading {data}'}")
        experiment = None if data is None else Experiment.of(spec, data, split)
        module = spec.build() if experiment is None else experiment.module
        check_members(networks, module, population)
        if experiment is not None:
            check_call(module, experiment.dataset.train, torch.device(device))
        display.stage(f"inferring the symmetry of {spec.name}")
        flow = Flow.of(infer_symmetry(module, spec), plan)
    with resumable("--work", work, json) as display:
        display.stage("learning")
        training = PartsListener(display, 1, method.epochs)
        flow.fit(
            networks,
            method,
            model=None if experiment is None else module,
            data=None if experiment is None else experiment.dataset.train,
            seed=seed,
            device=device,
            out=work,
            progress=training,
            checkpoint_seconds=checkpoint_seconds,
        )
    assert training.last is not None  # checkpoints are written before the last epoch, which comes again
    with files.writing("--output", output):
        flow.save(output)
    report = {
        "population": str(population),
        "networks": len(networks),
        "model": spec.name,
        "data": data,
        "split": split,
        "plan": asdict(plan),
        "settings": asdict(method),
        "seed": seed,
        "device": device,
        "parameters": sum(p.numel() for p in flow.sampler.field.parameters()),
        "first_epoch": training.first,
        "loss": training.last.loss,
        "unseen": training.last.more.get("unseen"),
        "output": str(output),
        "seconds": time.perf_counter() - begin,
    }
    console.print_json(report) if json else _show(str(networks), report)


def _show(population: str, report: dict[str, Any]) -> None:
    out = console.stdout()
    plan = report["plan"]
    labels = f" that know {', '.join(plan['conditions'])}" if plan["conditions"] else ""
    out.print(f"{plan['geometry']} flow, coupling {plan['coupling']}: {report['parameters']:,} parameters{labels}")
    out.print(f"learned from {population} of {report['model']}, {plural(report['settings']['epochs'], 'epoch')}")
    kind = "of velocities" if report["data"] is None else f"of velocities and of outputs on {report['data']}"
    out.print(f"error {kind}: {report['loss']:.4f} in the last epoch")
    if report["unseen"] is not None:
        count = plural(report["settings"]["unseen"], "network")
        out.print(f"on {count} that it has not learned from: {report['unseen']:.4f}")
    out.print(f"wrote {report['output']}")
    out.print(f"{report['seconds']:.1f} s")
