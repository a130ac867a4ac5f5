"""`coset flow evaluate`: how good, how different and how new the networks of a population are."""

from __future__ import annotations

import json as json_file
import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coset.cli import console
from coset.cli.options import (
    ArgsOption,
    DeviceOption,
    InputOption,
    JsonOption,
    ModelOfFileOption,
    OverwriteOption,
    SeedOption,
    SplitOption,
    WorkOption,
)
from coset.core.errors import CosetError
from coset.core.names import plural

if TYPE_CHECKING:
    from coset.cli.population_evaluator import PopulationQuality
    from coset.populations.novelty import Novelty
    from coset.populations.population import Population

LARGE = 1e4  # numbers from which on few digits tell enough


def evaluate(
    samples: Annotated[Path, typer.Argument(help="Networks, as of `coset flow sample` or `coset flow collect`.")],
    data: Annotated[str, typer.Option(help="A data set, such as mnist: its test split.")],
    model: ModelOfFileOption = "",
    against: Annotated[
        Path | None, typer.Option(help="The networks that the flow learned from, to see whether samples are new.")
    ] = None,
    fresh: Annotated[
        Path | None, typer.Option(help="Networks trained like those from another seed: as new as can be.")
    ] = None,
    count: Annotated[int, typer.Option(help="Networks of each file that are measured at most.", min=1)] = 512,
    pairs: Annotated[int, typer.Option(help="Pairs of networks whose barrier is measured at most.", min=1)] = 256,
    noise: Annotated[
        float | None,
        typer.Option(
            help="Standard deviation of the targets of a regression; that of the training, or 1, if not given."
        ),
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with the table and a picture: .html.")] = None,
    work: WorkOption = None,
    split: SplitOption = None,
    args: ArgsOption = None,
    input: InputOption = None,
    device: DeviceOption = "cpu",
    seed: SeedOption = 0,
    overwrite: OverwriteOption = False,
    json: JsonOption = False,
) -> None:
    """Measure how good, how different and how new networks are.

    Example: coset flow evaluate samples.safetensors --data mnist --against nets.safetensors --fresh fresh.safetensors
    """
    from coset.cli import files
    from coset.cli.console import open_display
    from coset.cli.experiment import Experiment
    from coset.cli.model_of_file import spec_of
    from coset.cli.population_evaluator import PopulationEvaluator
    from coset.cli.population_figure import spreads
    from coset.cli.population_files import (
        check_members,
        infer_symmetry,
        noise_of,
        open_population,
        optional_spec,
        split_of,
    )
    from coset.cli.run_folder import resumable
    from coset.core.resume import hold
    from coset.plot.page import page
    from coset.populations.novelty import COUNT

    begin = time.perf_counter()
    spec = optional_spec(model, args, input, device)
    paths = {"samples": samples, "training": against, "fresh": fresh}
    sources = {name: path for name, path in paths.items() if path is not None}
    files.check_output("--html", html, [".html"], list(sources.values()), overwrite)
    if noise is not None and not 0 < noise < float("inf"):
        raise CosetError(f"--noise must be positive and finite, not {noise}.")
    populations = {name: open_population(path, device) for name, path in sources.items()}
    abouts = {sources[name]: population.about for name, population in populations.items()}
    spec = spec_of(spec, {sources[name]: (one.about, one.states) for name, one in populations.items()})
    split = split_of(split, data, *abouts.values())
    _warn_of_another_split(split, data, abouts)
    with open_display(quiet=json) as display:
        display.stage(f"building {spec.name} and reading {data}")
        experiment = Experiment.of(spec, data, split)
        for name, path in reversed(sources.items()):  # the weights of the samples come last and stay
            check_members(populations[name], experiment.module, path)
        display.stage(f"inferring the symmetry of {spec.name}")
        sym = infer_symmetry(experiment.module, spec)
        experiment.module.to(device)
    subsets = {name: _subset(population, count, seed) for name, population in populations.items()}
    novelty = None
    with resumable("--work", work, json) as display, nullcontext() if work is None else hold(work):
        display.stage("measuring")
        evaluator = PopulationEvaluator(
            experiment,
            sym,
            display,
            total=PopulationEvaluator.parts(len(sources), novelty="training" in sources),
            noise=noise_of(noise, *abouts.values()),
            pairs=pairs,
            seed=seed,
            work=work,
        )
        if "training" in sources:  # first, since it may be refused
            novelty = evaluator.novelty(
                subsets["samples"], populations["training"], subsets.get("fresh"), min(COUNT, count)
            )
        qualities = {name: evaluator.quality(str(sources[name]), subset) for name, subset in subsets.items()}
    table = _rows(qualities)
    number = "" if split is None else f", number {split}"
    title = f"Networks on the {experiment.split_name} split of {data}{number}"
    notes = experiment.notes
    if evaluator.noise is not None:
        notes = [*notes, f"the noise of the targets is {evaluator.noise:g}"]
    verdict = [] if novelty is None or novelty.memorised is None else novelty.summary()[-1:]
    if html is not None:
        text = page(f"{samples}: {title}", table, [spreads(qualities, novelty)], [*notes, *verdict])
        files.write_text("--html", html, text)
    if json:
        report = {
            "model": spec.name,
            "data": data,
            "split": split,
            "noise": evaluator.noise,
            "evaluated_on": experiment.split_name,
            "seed": seed,
            "device": device,
            "populations": {
                name: {"file": str(sources[name]), "networks": len(populations[name]), **_record(quality)}
                for name, quality in qualities.items()
            },
            "novelty": None if novelty is None else json_file.loads(novelty.to_json()),
            "parts_read": evaluator.read,
            "seconds": time.perf_counter() - begin,
        }
        console.print_json(report)
        return
    out = console.stdout()
    columns = tuple(table[0])
    out.print(console.table(title, columns, [tuple(row.values()) for row in table], numbers=columns[1:]))
    for note in notes:
        out.print(note)
    if novelty is not None:
        out.print()
        _show_novelty(novelty)
    for line in verdict:
        out.print(line)
    if html is not None:
        out.print(f"wrote {html}")
    if evaluator.read:
        out.print(f"{plural(evaluator.read, 'part')} measured before")
    out.print(f"{time.perf_counter() - begin:.1f} s")


def _rows(qualities: dict[str, PopulationQuality]) -> list[dict[str, str]]:
    """A line for each population."""
    rows = []
    for name, one in qualities.items():
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
        rows.append(row)
    return rows


def _short(x: float, digits: int = 4) -> str:
    """So many digits after the point; large numbers in few."""
    return f"{x:.{digits}f}" if abs(x) < LARGE else f"{x:.{digits}g}"


def _warn_of_another_split(split: int | None, data: str, abouts: Mapping[Path, Mapping[str, Any]]) -> None:
    """Whoever was trained on another standard split may have seen the examples of this one."""
    from coset.cli.population_files import trained_on

    for path, about in abouts.items():
        training = trained_on(about)
        if training.get("data") == data and training.get("split") is not None and training["split"] != split:
            text = f"was trained on split {training['split']} of {data}, so it has seen examples of split {split}."
            console.complain("warning", f"{path} {text}")


def _subset(population: Population, count: int, seed: int) -> Population:
    """At most `count` networks, drawn at random, since neighbours may be of one run."""
    import torch

    if len(population) <= count:
        return population
    order = torch.randperm(len(population), generator=torch.Generator().manual_seed(seed))
    return population[order[:count]]


def _show_novelty(novelty: Novelty) -> None:
    """A line for each kind of networks."""
    from coset.populations.novelty import NAMES

    title = f"Distance to the nearest training network{'' if novelty.exact else ', at most'}"
    columns = ("", "networks", "mean", "least", "mistakes that overlap")
    table = []
    for kind, one in novelty.kinds.items():
        d, agreements = one.distances, one.agreements
        overlap = "" if agreements is None else f"{agreements.mean:.1%}"
        table.append((NAMES[kind], str(d.n), f"{d.mean:.4g}", f"{d.least:.4g}", overlap))
    out = console.stdout()
    out.print(console.table(title, columns, table, numbers=columns[1:]))


def _record(one: PopulationQuality) -> dict[str, Any]:
    return {
        "measured": one.networks,
        **json_file.loads(one.scores.to_json()),
        "averages": json_file.loads(one.averages.to_json()),
        "diversity": None if one.diversity is None else json_file.loads(one.diversity.to_json()),
        "barriers": None if one.barriers is None else json_file.loads(one.barriers.to_json()),
    }
