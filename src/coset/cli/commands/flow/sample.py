"""`coset flow sample`: networks that a flow generates, as a population."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from coset.cli import console
from coset.cli.options import (
    ArgsOption,
    DeviceOption,
    InputOption,
    JsonOption,
    OutputOption,
    OverwriteOption,
    SeedOption,
    WorkOption,
)
from coset.core.errors import CosetError
from coset.core.names import plural


def sample(
    path: Annotated[Path, typer.Argument(metavar="FLOW", help="A flow that `coset flow fit` wrote.")],
    output: OutputOption,
    count: Annotated[int, typer.Option("--count", "-n", help="Networks to sample.", min=1)] = 100,
    steps: Annotated[int, typer.Option(help="Steps from an untrained network to a sample.", min=1)] = 32,
    method: Annotated[
        str | None,
        typer.Option(
            help="euler, midpoint, heun or rk4; heun if not given, and rk4 for --log-prob. Of Euclidean flows also "
            "dopri5, dopri8, bosh3 or adaptive_heun, which choose their own steps."
        ),
    ] = None,
    noise: Annotated[float, typer.Option(help="Deviation of a random move before each step.")] = 0.0,
    condition: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="What the flow is asked for, such as loss=0.1. Repeat it for more."),
    ] = None,
    guide: Annotated[str | None, typer.Option(help="A data set that networks should do well on.")] = None,
    strength: Annotated[
        float | None, typer.Option(help="How fast --guide leads down its loss, in speeds of the flow; 1 if not given.")
    ] = None,
    split: Annotated[
        int | None,
        typer.Option(help="Which standard split of a UCI set --guide is; that of the networks if not given."),
    ] = None,
    log_prob: Annotated[bool, typer.Option("--log-prob", help="Also the log density of each, as a label.")] = False,
    exact: Annotated[
        bool, typer.Option("--exact", help="Densities without an estimate: the work of a gradient for every weight.")
    ] = False,
    model: Annotated[
        str, typer.Option("--model", help="The model of the networks if the flow does not say it, or module:factory.")
    ] = "",
    width_of: Annotated[
        str, typer.Option(help="A model that differs from that of the flow in width: sample for it.")
    ] = "",
    args: ArgsOption = None,
    input: InputOption = None,
    work: WorkOption = None,
    device: DeviceOption = "cpu",
    seed: SeedOption = 0,
    overwrite: OverwriteOption = False,
    json: JsonOption = False,
) -> None:
    """Generate networks, and write them as a population.

    Example: coset flow sample flow.safetensors -n 100 -o samples.safetensors

    Example: coset flow sample flow.safetensors -n 100 --width-of mlp:784-32-10 -o wide.safetensors
    """
    from dataclasses import replace

    import torch

    from coset.cli import files, network_sampler
    from coset.cli.console import BatchesListener, open_display
    from coset.cli.model_of_file import spec_of
    from coset.cli.population_files import TRAINED, open_flow, optional_spec, record_of, split_of, trained_on
    from coset.cli.run_folder import resumable
    from coset.cli.sample_batches import batches, sample_folder
    from coset.flow.likelihood import DivergenceName
    from coset.populations.population import Population
    from coset.populations.scores import spread

    begin = time.perf_counter()
    if model and width_of:
        raise CosetError("--model and --width-of both name the model of the samples: give one of them.")
    spec = optional_spec(width_of or model, args, input, device)
    files.check_output("--output", output, [".safetensors"], [path], overwrite)
    _check_guidance(guide, strength, split)
    _check_density(log_prob, exact, is_steered=guide is not None or bool(noise))
    if not 0 <= noise < math.inf:
        raise CosetError(f"--noise must be finite and not negative, not {noise}.")
    labels = read_conditions(condition or ())
    if guide is not None and strength is None:
        strength = 1.0
    with open_display(quiet=json) as display:
        flow = open_flow(path, device)
        about = flow.sampler.about
        split = split_of(split, guide, about)
        if guide is not None or "inputs" in about:
            spec = spec_of(spec, {path: (about, flow.sampler.space.template)})
        if width_of:
            flow = network_sampler.widen(flow, spec, display)
        elif spec.name:
            network_sampler.check_model(flow, spec, path)
        guidance = None
        if guide is not None:
            display.stage(f"building {spec.name} and reading {guide}")
            guidance = network_sampler.guidance_by(flow, spec, guide, split, strength or 0.0)
    how = {
        "steps": steps,
        "method": method or ("rk4" if log_prob else "heun"),
        "noise": noise,
        "condition": labels,
        "guide": guide,
        "split": split,
        "strength": strength,
        "seed": seed,
        **(record_of(spec) if spec.name else {}),
    }
    divergence: DivergenceName | None = ("exact" if exact else "hutchinson") if log_prob else None
    sampler = network_sampler.NetworkSampler(flow, guidance, steps, how["method"], noise, labels, divergence)
    request = {**how, "density": "exact" if exact else log_prob, "device": torch.device(device).type}
    generator = torch.Generator(device).manual_seed(seed)
    size = network_sampler.batch_size(device)
    begin_sampling = time.perf_counter()
    parts, new = [], 0
    with resumable("--work", work, json) as display, sample_folder(work, request, path) as folder:
        display.stage("sampling")
        progress = BatchesListener(display, steps, -(-count // size))
        for part, was_read in batches(folder, count, size, generator, lambda n: sampler.draw(n, generator, progress)):
            parts.append(part)
            if was_read:
                progress.skip()
            else:
                new += len(part)
    rate = new / (time.perf_counter() - begin_sampling)
    how = {"flow": str(path), **how}
    population = replace(Population.concat(parts), about={**how, TRAINED: trained_on(about)})
    logs = population.labels.get("log_prob")
    with files.writing("--output", output):
        population.save(output)
    report = {
        **{name: value for name, value in how.items() if name not in ("arguments", "inputs")},
        "model": spec.name or None,
        "device": device,
        "networks": len(population),
        "networks_read": len(population) - new,
        "networks_per_second": rate if new else None,
        "log_prob": None if logs is None else spread(logs).record(),
        "output": str(output),
        "seconds": time.perf_counter() - begin,
    }
    console.print_json(report) if json else _show(str(population), report)


def read_conditions(words: Sequence[str]) -> dict[str, list[float]]:
    """The numbers of each condition NAME=VALUE or NAME=VALUE,VALUE."""
    conditions: dict[str, list[float]] = {}
    for word in words:
        name, _, text = word.partition("=")
        try:
            numbers = [float(number) for number in text.split(",")]
        except ValueError:
            numbers = [math.nan]
        if not name or not all(map(math.isfinite, numbers)):
            raise CosetError(f"--condition {word!r} cannot be read: write NAME=NUMBER, such as loss=0.1.")
        if name in conditions:
            raise CosetError(f"--condition {name} is given twice.")
        conditions[name] = numbers
    return conditions


def _check_guidance(guide: str | None, strength: float | None, split: int | None) -> None:
    for option, value in (("--strength", strength), ("--split", split)):
        if guide is None and value is not None:
            raise CosetError(f"{option} is that of guidance: name the data with --guide.")


def _check_density(log_prob: bool, exact: bool, is_steered: bool) -> None:
    if log_prob and is_steered:
        raise CosetError("--log-prob is the density of the flow itself: leave out --guide and --noise.")
    if exact and not log_prob:
        raise CosetError("--exact is how densities are computed: ask for them with --log-prob.")


def _show(population: str, report: dict[str, Any]) -> None:
    out = console.stdout()
    out.print(population)
    if (logs := report["log_prob"]) is not None:
        deviation = "" if logs["std"] is None else f", deviation {logs['std']:,.2f}"
        out.print(f"log density: mean {logs['mean']:,.2f}{deviation}")
    out.print(f"wrote {report['output']}")
    if report["networks_read"]:
        out.print(f"{plural(report['networks_read'], 'network')} sampled before")
    rate = report["networks_per_second"]
    speed = "" if rate is None else f", {rate:.4g} networks a second once it was ready"
    out.print(f"{report['seconds']:.1f} s{speed}")
