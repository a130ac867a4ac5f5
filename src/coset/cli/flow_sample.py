"""`coset flow sample`: networks that a flow generates, as a population."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import typer

from coset.cli import console, outputs
from coset.cli.experiment import Experiment
from coset.cli.flow_files import TRAINED, described, net_of, noise_of, open_flow, split_of, symmetry_of, trained_on
from coset.cli.flow_parts import Parts, batches
from coset.cli.flow_watch import Steps, stoppable
from coset.cli.model_spec import ModelSpec
from coset.core import state as states
from coset.core.errors import CosetError
from coset.core.names import plural
from coset.core.progress import Progress
from coset.flow.flow import BATCH, Flow
from coset.flow.guidance import Guidance
from coset.flow.likelihood import DivergenceName
from coset.populations.population import Population
from coset.populations.scores import spread

ON_CPU = 64  # networks of a batch there, where larger ones are not faster: what is lost if the command is stopped
EXAMPLES = 256  # that a guided flow is measured on at each step, so that the work does not grow with the data


@dataclass(frozen=True)
class Request:
    """The options of the command.

    net
        the model of the samples, without a name where that is not needed; of another width than the flow's if `widens`
    method
        heun when None, and rk4 for densities
    guide, strength, split
        a data set that the networks should do well on, how much that counts, and which standard split it is
    work
        a folder for the batches, from which the command goes on
    """

    flow: Path
    net: ModelSpec
    count: int
    output: Path
    widens: bool = False
    steps: int = 32
    method: str | None = None
    noise: float = 0.0
    conditions: tuple[str, ...] = ()
    guide: str | None = None
    strength: float | None = None
    split: int | None = None
    log_prob: bool = False
    exact: bool = False
    work: Path | None = None
    seed: int = 0


def run(request: Request, as_json: bool) -> None:
    """Sample, write and print."""
    begin = time.perf_counter()
    outputs.check("--output", request.output, [".safetensors"], [request.flow])
    _check(request)
    condition = asked(request.conditions)
    with console.steps(quiet=as_json) as say:
        flow = open_flow(request.flow, request.net.device)
        split = split_of(request.split, request.guide, flow.sampler.about)
        request = replace(request, net=_net(request, flow), split=split)
        flow, guidance = _prepared(request, flow, say)
    how = {
        "steps": request.steps,
        "method": _method(request),
        "noise": request.noise,
        "condition": condition,
        "guide": request.guide,
        "split": request.split,
        "strength": _strength(request),
        "seed": request.seed,
    }
    model_of = described(request.net) if request.net.name else {}
    began = time.perf_counter()
    parts, made = [], 0
    total = request.steps * -(-request.count // _at_once(request))
    with stoppable(total, "sampling", request.work, as_json) as (show, _):
        steps = Steps(request.steps, total, show)
        for part, was_read in _drawn(request, flow, guidance, {**how, **model_of}, steps):
            parts.append(part)
            if was_read:
                steps.skip_batch()
            else:
                made += len(part)
    rate = made / (time.perf_counter() - began)
    how = {"flow": str(request.flow), **how}
    trained = {TRAINED: trained_on(flow.sampler.about)}
    population = replace(Population.concat(parts), about={**how, **model_of, **trained})
    logs = population.labels.get("log_prob")
    with outputs.writing("--output", request.output):
        population.save(request.output)
    report = {
        **how,
        "model": request.net.name or None,
        "device": request.net.device,
        "networks": len(population),
        "networks_read": len(population) - made,
        "networks_per_second": rate if made else None,
        "log_prob": None if logs is None else spread(logs).record(),
        "output": str(request.output),
        "seconds": time.perf_counter() - begin,
    }
    if as_json:
        typer.echo(json.dumps(report, indent=1, allow_nan=False))
    else:
        _show(population, report)


def asked(words: Sequence[str]) -> dict[str, list[float]]:
    """The numbers of each condition NAME=VALUE or NAME=VALUE,VALUE."""
    found: dict[str, list[float]] = {}
    for word in words:
        name, _, text = word.partition("=")
        try:
            numbers = [float(number) for number in text.split(",")]
        except ValueError:
            numbers = [math.nan]
        if not name or not all(map(math.isfinite, numbers)):
            raise CosetError(f"--condition {word!r} cannot be read: write NAME=NUMBER, such as loss=0.1.")
        if name in found:
            raise CosetError(f"--condition {name} is given twice.")
        found[name] = numbers
    return found


def _check(request: Request) -> None:
    """Refuse options that do not go together."""
    for option, value in (("--strength", request.strength), ("--split", request.split)):
        if request.guide is None and value is not None:
            raise CosetError(f"{option} is that of guidance: name the data with --guide.")
    if request.log_prob and (request.guide is not None or request.noise):
        raise CosetError("--log-prob is the density of the flow itself: leave out --guide and --noise.")
    if request.exact and not request.log_prob:
        raise CosetError("--exact is how densities are computed: ask for them with --log-prob.")
    if not 0 <= request.noise < math.inf:
        raise CosetError(f"--noise must be finite and not negative, not {request.noise}.")


def _net(request: Request, flow: Flow) -> ModelSpec:
    """The model of the samples, without a name where neither the options nor the flow know it."""
    if request.guide is not None or "inputs" in flow.sampler.about:
        return net_of(request.net, {request.flow: flow.sampler.about})
    return request.net


def _prepared(request: Request, flow: Flow, say: console.Steps) -> tuple[Flow, Guidance | None]:
    """The flow for networks of the model, and what guides it."""
    net = request.net
    if not net.name:
        return flow, None
    say(f"building {net.name}{'' if request.guide is None else f' and reading {request.guide}'}")
    task = None if request.guide is None else Experiment.of(net, request.guide, request.split)
    module = net.build() if task is None else task.module
    if request.widens:
        say(f"inferring the symmetry of {net.name}")
        flow = flow.on(symmetry_of(module, net), states.of(module))
    else:
        states.check(flow.sampler.space.template, states.of(module), str(request.flow))
    if task is None:
        return flow, None
    train = task.dataset.train
    noise = noise_of(None, flow.sampler.about) if train.targets.is_floating_point() else None
    strength = _strength(request) or 0.0
    return flow, Guidance(module.to(net.device), train, strength, min(EXAMPLES, len(train)), noise=noise)


def _drawn(
    request: Request,
    flow: Flow,
    guidance: Guidance | None,
    how: dict[str, Any],
    progress: Progress,
) -> Iterator[tuple[Population, bool]]:
    """Batches of networks, with their log densities if asked for, and whether they were made before."""
    device = request.net.device
    generator = torch.Generator(device).manual_seed(request.seed)
    parts = None
    if request.work is not None:
        content = hashlib.sha256(request.flow.read_bytes()).hexdigest()[:16]
        density = "exact" if request.exact else request.log_prob
        asked = {**how, "flow": content, "density": density, "device": torch.device(device).type}
        parts = Parts(request.work, json.loads(json.dumps(asked)))

    def make(n: int) -> Population:
        condition = {name: torch.tensor(numbers).expand(n, -1) for name, numbers in how["condition"].items()}
        known: dict[str, Any] = {"condition": condition, "generator": generator, "progress": progress}
        if not request.log_prob:
            samples = flow.sample(n, request.steps, _method(request), noise=request.noise, guidance=guidance, **known)
            return replace(samples, starts=None)
        divergence: DivergenceName = "exact" if request.exact else "hutchinson"
        samples, logs = flow.sample_with_log_prob(n, request.steps, _method(request), divergence=divergence, **known)
        return replace(samples, starts=None, labels={**samples.labels, "log_prob": logs})

    return batches(parts, request.count, _at_once(request), generator, make)


def _at_once(request: Request) -> int:
    return BATCH if torch.device(request.net.device).type == "cuda" else ON_CPU


def _method(request: Request) -> str:
    return request.method or ("rk4" if request.log_prob else "heun")


def _strength(request: Request) -> float | None:
    return None if request.guide is None else 1.0 if request.strength is None else request.strength


def _show(population: Population, report: dict[str, Any]) -> None:
    out = console.stdout()
    out.print(f"{population}")
    if (logs := report["log_prob"]) is not None:
        deviation = "" if logs["std"] is None else f", deviation {logs['std']:,.2f}"
        out.print(f"log density: mean {logs['mean']:,.2f}{deviation}")
    out.print(f"wrote {report['output']}")
    if report["networks_read"]:
        out.print(f"{plural(report['networks_read'], 'network')} sampled before")
    rate = report["networks_per_second"]
    speed = "" if rate is None else f", {rate:.4g} networks a second once it was ready"
    out.print(f"{report['seconds']:.1f} s{speed}")
