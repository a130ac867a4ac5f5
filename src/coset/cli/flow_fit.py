"""`coset flow fit`: learn to generate networks like those of a population."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import torch
import typer

from coset.cli import console, outputs, settings as setting_texts
from coset.cli.experiment import Experiment
from coset.cli.flow_files import net_of, open_population, require_members, split_of, symmetry_of
from coset.cli.flow_watch import watching
from coset.cli.model_spec import ModelSpec
from coset.core.errors import CosetError
from coset.core.names import plural
from coset.flow.flow import Flow
from coset.flow.matching import FlowPlan, Matching
from coset.flow.velocity_network import Architecture
from coset.populations.population import Population
from coset.training.network import check_call


@dataclass(frozen=True)
class Request:
    """The options of the command; `net` has no name where the population says it."""

    population: Path
    net: ModelSpec
    plan: FlowPlan
    output: Path
    data: str | None = None
    split: int | None = None
    settings: tuple[str, ...] = ()
    work: Path | None = None
    checkpoint_seconds: float = 60.0
    seed: int = 0


def planned(
    geometry: str, coupling: str, network: str, width: int, depth: int, heads: int, predict: str, conditions: str
) -> FlowPlan:
    """The plan that options describe; words are refused by the name of their option."""
    for key, given in (("geometry", geometry), ("coupling", coupling), ("predict", predict)):
        _check(f"--{key}", given, get_args(get_type_hints(FlowPlan)[key]))
    _check("--network", network, get_args(get_type_hints(Architecture)["kind"]))
    words: dict[str, Any] = {"geometry": geometry, "coupling": coupling, "predict": predict}
    kind: Any = network
    names = tuple(name for name in conditions.split(",") if name)
    return FlowPlan(architecture=Architecture(kind, width, depth, heads), conditions=names, **words)


def run(request: Request, as_json: bool) -> None:
    """Learn, write and print."""
    begin = time.perf_counter()
    outputs.check("--output", request.output, [".safetensors"], [request.population])
    settings = Matching(**setting_texts.read(Matching, "fit", request.settings))
    population = open_population(request.population, request.net.device)
    net = net_of(request.net, {request.population: population.about})
    split = split_of(request.split, request.data, population.about)
    with console.steps(quiet=as_json) as say:
        say(f"building {net.name}{'' if request.data is None else f' and reading {request.data}'}")
        task = None if request.data is None else Experiment.of(net, request.data, split)
        module = net.build() if task is None else task.module
        require_members(population, module, request.population)
        if task is not None:
            check_call(module, task.dataset.train, torch.device(net.device))
        say(f"inferring the symmetry of {net.name}")
        flow = Flow.of(symmetry_of(module, net), request.plan)
    with watching(1, settings.epochs, "learning", request.work, as_json) as watch:
        flow.fit(
            population,
            settings,
            model=None if task is None else module,
            data=None if task is None else task.dataset.train,
            seed=request.seed,
            device=net.device,
            out=request.work,
            progress=watch,
            checkpoint_seconds=request.checkpoint_seconds,
        )
    assert watch.last is not None  # checkpoints are written before the last epoch, which comes again
    with outputs.writing("--output", request.output):
        flow.save(request.output)
    report = {
        "population": str(request.population),
        "networks": len(population),
        "model": net.name,
        "data": request.data,
        "split": split,
        "plan": asdict(request.plan),
        "settings": asdict(settings),
        "seed": request.seed,
        "device": net.device,
        "parameters": sum(p.numel() for p in flow.sampler.field.parameters()),
        "first_epoch": watch.first,
        "loss": watch.last.loss,
        "unseen": watch.last.more.get("unseen"),
        "output": str(request.output),
        "seconds": time.perf_counter() - begin,
    }
    if as_json:
        typer.echo(json.dumps(report, indent=1, allow_nan=False))
    else:
        _show(population, flow, report)


def _check(option: str, given: str, choices: Sequence[str]) -> None:
    if given not in choices:
        raise CosetError(f"{option} must be {' or '.join(choices)}, not {given!r}.")


def _show(population: Population, flow: Flow, report: dict[str, Any]) -> None:
    out = console.stdout()
    plan = flow.plan
    told = f" that know {', '.join(plan.conditions)}" if plan.conditions else ""
    out.print(f"{plan.geometry} flow, coupling {plan.coupling}: {report['parameters']:,} parameters{told}")
    out.print(f"learned from {population} of {report['model']}, {plural(report['settings']['epochs'], 'epoch')}")
    counted = "of velocities" if report["data"] is None else f"of velocities and of outputs on {report['data']}"
    out.print(f"error {counted}: {report['loss']:.4f} in the last epoch")
    if report["unseen"] is not None:
        left = plural(report["settings"]["unseen"], "network")
        out.print(f"on {left} that it has not learned from: {report['unseen']:.4f}")
    out.print(f"wrote {report['output']}")
    out.print(f"{report['seconds']:.1f} s")
