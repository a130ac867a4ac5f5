"""`coset flow collect`: train many networks, as one file that a flow can learn from."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import typer
from torch import nn

from coset.cli import console, outputs, settings as setting_texts
from coset.cli.experiment import Experiment
from coset.cli.flow_files import described, symmetry_of
from coset.cli.flow_watch import watching
from coset.cli.model_spec import ModelSpec
from coset.core.errors import CosetError
from coset.core.names import plural
from coset.flow.coordinates import normal_starts
from coset.populations.chunk import Collect
from coset.populations.collect import Draw, collect
from coset.populations.population import Population
from coset.populations.scores import spread


@dataclass(frozen=True)
class Request:
    """The options of the command; `start_std` is the deviation of all weights, that of the model's own if None."""

    net: ModelSpec
    data: str
    runs: int
    output: Path
    work: Path | None = None
    settings: tuple[str, ...] = ()
    start: str = "normal"
    start_std: float | None = None
    split: int | None = None
    seed: int = 0


def run(request: Request, as_json: bool) -> None:
    """Train, write and print."""
    begin = time.perf_counter()
    outputs.check("--output", request.output, [".safetensors"], [])
    _check_start(request)
    settings = Collect(**setting_texts.read(Collect, "collect", request.settings))
    with console.steps(quiet=as_json) as say:
        say(f"building {request.net.name} and reading {request.data}")
        task = Experiment.of(request.net, request.data, request.split)
        draw = _draw(request, task.module)
    parts = -(-request.runs // settings.chunk)
    with watching(parts, settings.epochs, "training", request.work, as_json) as watch:
        found = collect(
            task.module,
            task.dataset.train,
            request.runs,
            settings,
            draw=draw,
            seed=request.seed,
            device=request.net.device,
            out=request.work,
            progress=watch,
        )
    known = {"data": request.data, "split": request.split, "data_digest": found.about["data"]}
    start = {"start": request.start, "start_std": request.start_std}
    kept = replace(found.to("cpu"), about={**found.about, **described(request.net), **known, **start})
    with outputs.writing("--output", request.output):
        kept.save(request.output)
    report = {
        "model": request.net.name,
        **known,
        **start,
        "settings": asdict(settings),
        "seed": request.seed,
        "device": request.net.device,
        "runs": request.runs,
        "left_out": request.runs - len(set(kept.labels["run"].tolist())),
        "networks": len(kept),
        "first_epoch": watch.first,
        "labels": {name: spread(x).record() for name, x in kept.labels.items() if name in ("loss", "accuracy")},
        "output": str(request.output),
        "seconds": time.perf_counter() - begin,
    }
    if as_json:
        typer.echo(json.dumps(report, indent=1, allow_nan=False))
    else:
        _show(kept, report)


def _check_start(request: Request) -> None:
    if request.start not in ("normal", "model"):
        raise CosetError(f"--start must be normal or model, not {request.start!r}.")
    if request.start_std is None:
        return
    if request.start == "model":
        raise CosetError("--start-std is that of normal starts: leave it out, or --start model.")
    if not 0 < request.start_std < float("inf"):
        raise CosetError(f"--start-std must be positive and finite, not {request.start_std}.")


def _draw(request: Request, module: nn.Module) -> Draw | None:
    """Normal starts, whose density a flow can know; None for those of the model itself."""
    if request.start == "model":
        return None
    return normal_starts(module, symmetry_of(module, request.net), request.start_std).states


def _show(population: Population, report: dict[str, Any]) -> None:
    out = console.stdout()
    columns = ("", "mean", "deviation", "least", "largest")
    rows = []
    for name, one in report["labels"].items():
        spec = ".2%" if name == "accuracy" else ".4f"
        cells = ("" if one[key] is None else format(one[key], spec) for key in ("mean", "std", "least", "largest"))
        rows.append((f"training {name}", *cells))
    out.print(f"{population}")
    out.print(console.table(f"{report['model']} on {report['data']}", columns, rows, numbers=columns[1:]))
    if report["left_out"]:
        out.print(f"{report['left_out']} of {plural(report['runs'], 'run')} diverged and left out")
    if report["first_epoch"] is None:
        out.print("all networks were trained before")
    out.print(f"wrote {report['output']}")
    out.print(f"{report['seconds']:.1f} s")
