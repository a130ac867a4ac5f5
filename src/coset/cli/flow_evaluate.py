"""`coset flow evaluate`: how good, how different and how new the networks of a population are."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import typer

from coset.cli import console, outputs
from coset.cli.experiment import Experiment
from coset.cli.flow_figure import spreads
from coset.cli.flow_files import net_of, noise_of, open_population, require_members, split_of, symmetry_of, trained_on
from coset.cli.flow_measure import Measured, Measures
from coset.cli.flow_watch import stoppable
from coset.cli.model_spec import ModelSpec
from coset.core.errors import CosetError
from coset.core.files import atomic_write
from coset.core.names import plural
from coset.plot.page import page
from coset.populations.novelty import COUNT, NAMES, Novelty
from coset.populations.population import Population

LARGE = 1e4  # numbers from which on few digits tell enough


@dataclass(frozen=True)
class Request:
    """The options of the command; `net` has no name where a population says it.

    against, fresh: networks that the flow learned from, and networks like them that it has not seen.
    count, pairs: networks of each population that are measured at most, and pairs of them for barriers.
    noise: of the targets of a regression, if not that of the training. work: a folder for what is measured, from which
    the command goes on.
    """

    samples: Path
    net: ModelSpec
    data: str
    split: int | None = None
    against: Path | None = None
    fresh: Path | None = None
    count: int = 512
    pairs: int = 256
    noise: float | None = None
    html: Path | None = None
    work: Path | None = None
    seed: int = 0

    @property
    def files(self) -> dict[str, Path]:
        """Of each population."""
        given = {"samples": self.samples, "training": self.against, "fresh": self.fresh}
        return {name: path for name, path in given.items() if path is not None}


def run(request: Request, as_json: bool) -> None:
    """Measure and print."""
    begin = time.perf_counter()
    outputs.check("--html", request.html, [".html"], [*request.files.values()])
    if request.noise is not None and not 0 < request.noise < float("inf"):
        raise CosetError(f"--noise must be positive and finite, not {request.noise}.")
    populations = {name: open_population(path, request.net.device) for name, path in request.files.items()}
    abouts = [one.about for one in populations.values()]
    net = net_of(request.net, dict(zip(request.files.values(), abouts, strict=True)))
    noise = noise_of(request.noise, *abouts)
    split = split_of(request.split, request.data, *abouts)
    _warn_of_another_split(split, request, populations)
    with console.steps(quiet=as_json) as say:
        say(f"building {net.name} and reading {request.data}")
        task = Experiment.of(net, request.data, split)
        for name, path in reversed(request.files.items()):  # the weights of the samples come last and stay
            require_members(populations[name], task.module, path)
        say(f"inferring the symmetry of {net.name}")
        sym = symmetry_of(task.module, net)
        task.module.to(net.device)
    chosen = {name: _some(one, request) for name, one in populations.items()}
    total = Measures.PER_POPULATION * len(chosen) + Measures.OF_NOVELTY * ("training" in chosen)
    news = None
    with stoppable(total, "measuring", request.work, as_json) as (show, _):
        measures = Measures(task, sym, noise, request.pairs, request.seed, request.work, show)
        if "training" in chosen:  # first, since it may be refused
            count = min(COUNT, request.count)
            news = measures.novelty(chosen["samples"], populations["training"], chosen.get("fresh"), count)
        found = {name: measures.of(str(request.files[name]), one) for name, one in chosen.items()}
    table = rows(found)
    numbered = "" if split is None else f", number {split}"
    title = f"Networks on the {task.split_name} split of {request.data}{numbered}"
    notes = task.notes if measures.noise is None else [*task.notes, f"the noise of the targets is {measures.noise:g}"]
    said = [] if news is None or news.memorised is None else news.summary()[-1:]
    if request.html is not None:
        text = page(f"{request.samples}: {title}", table, [spreads(found, news)], [*notes, *said])
        with outputs.writing("--html", request.html), atomic_write(request.html) as temporary:
            temporary.write_text(text, encoding="utf-8")
    if as_json:
        report = {
            "model": net.name,
            "data": request.data,
            "split": split,
            "noise": measures.noise,
            "evaluated_on": task.split_name,
            "seed": request.seed,
            "device": net.device,
            "populations": {
                name: {"file": str(request.files[name]), "networks": len(populations[name]), **_record(one)}
                for name, one in found.items()
            },
            "novelty": None if news is None else json.loads(news.to_json()),
            "parts_read": measures.read,
            "seconds": time.perf_counter() - begin,
        }
        typer.echo(json.dumps(report, indent=1, allow_nan=False))
        return
    out = console.stdout()
    columns = tuple(table[0])
    out.print(console.table(title, columns, [tuple(row.values()) for row in table], numbers=columns[1:]))
    for note in notes:
        out.print(note)
    if news is not None:
        out.print()
        _show_novelty(news)
    for line in said:
        out.print(line)
    if request.html is not None:
        out.print(f"wrote {request.html}")
    if measures.read:
        out.print(f"{plural(measures.read, 'part')} measured before")
    out.print(f"{time.perf_counter() - begin:.1f} s")


def rows(found: dict[str, Measured]) -> list[dict[str, str]]:
    """A line for each population."""
    made = []
    for name, one in found.items():
        losses, accuracies, whole = one.scores.losses, one.scores.accuracies, one.averages.rows[-1]
        row = {"": name, "networks": str(one.networks)}
        if accuracies is not None:
            row |= {
                "accuracy": f"{accuracies.mean:.2%}",
                "deviation": "" if accuracies.std is None else f"{accuracies.std:.2%}",
            }
        row |= {"loss": _short(losses.mean)}
        if whole.accuracy is not None:
            row |= {"averaged accuracy": f"{whole.accuracy:.2%}"}
        row |= {"averaged loss": _short(whole.nll)}
        if whole.rmse is not None:
            row |= {"averaged rmse": _short(whole.rmse)}
        if whole.accuracy is not None:
            row |= {"diversity": "" if one.diversity is None else f"{one.diversity.pairwise:.4f}"}
        heights = {} if one.barriers is None else one.barriers.spreads
        row |= {"barrier": _short(heights["before"].mean, 3) if heights else ""}
        row |= {"aligned": _short(heights["paired"].mean, 3) if heights else ""}
        made.append(row)
    return made


def _short(x: float, digits: int = 4) -> str:
    """So many digits after the point; large numbers in few."""
    return f"{x:.{digits}f}" if abs(x) < LARGE else f"{x:.{digits}g}"


def _warn_of_another_split(split: int | None, request: Request, populations: dict[str, Population]) -> None:
    """Whoever was trained on another standard split may have seen the examples of this one."""
    for name, one in populations.items():
        known = trained_on(one.about)
        if known.get("data") == request.data and known.get("split") is not None and known["split"] != split:
            text = f"was trained on split {known['split']} of {request.data}, so it has seen examples of split {split}."
            console.complain("warning", f"{request.files[name]} {text}")


def _some(population: Population, request: Request) -> Population:
    """At most `count` networks, drawn at random, since neighbours may be of one run."""
    if len(population) <= request.count:
        return population
    order = torch.randperm(len(population), generator=torch.Generator().manual_seed(request.seed))
    return population[order[: request.count]]


def _show_novelty(news: Novelty) -> None:
    """A line for each kind of networks."""
    title = f"Distance to the nearest training network{'' if news.exact else ', at most'}"
    columns = ("", "networks", "mean", "least", "mistakes that overlap")
    table = []
    for kind, one in news.kinds.items():
        d, agreements = one.distances, one.agreements
        overlap = "" if agreements is None else f"{agreements.mean:.1%}"
        table.append((NAMES[kind], str(d.n), f"{d.mean:.4g}", f"{d.least:.4g}", overlap))
    out = console.stdout()
    out.print(console.table(title, columns, table, numbers=columns[1:]))


def _record(one: Measured) -> dict[str, Any]:
    return {
        "measured": one.networks,
        **json.loads(one.scores.to_json()),
        "averages": json.loads(one.averages.to_json()),
        "diversity": None if one.diversity is None else json.loads(one.diversity.to_json()),
        "barriers": None if one.barriers is None else json.loads(one.barriers.to_json()),
    }
