"""`coset fit`: find solutions by any method, in a folder that a stopped run goes on from."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import typer

from coset.cli import console, methods, outputs, runs
from coset.cli.align import Net
from coset.cli.evaluate import Task, prepare
from coset.core.names import plural
from coset.core.progress import Epoch
from coset.inference.adversarial import Adversarial
from coset.inference.fit import fit
from coset.solutions.attack import in_units_of
from coset.solutions.evaluate import evaluate
from coset.training.folder import METRICS, SOLUTION
from coset.training.loop import Method


@dataclass(frozen=True)
class Request:
    """The options of the command."""

    net: Net
    data: str
    method: str
    out: Path
    settings: tuple[str, ...] = ()
    split: int | None = None
    replicas: int = 1
    checkpoint_every: int = 1
    seed: int = 0


class Watch:
    """Follows the epochs of all networks of a run.

    before: epochs of networks that were finished before. show: what is called with the text and the number of epochs
    done in all.
    """

    def __init__(self, before: int, show: Callable[[str, int], None], announce: Callable[[str], None]) -> None:
        self.first: int | None = None  # the first epoch of this call
        self._before, self._show, self._announce = before, show, announce
        self._done: dict[tuple[int, int], int] = {}

    def __call__(self, epoch: Epoch) -> None:
        if self.first is None:
            self.first = epoch.epoch
            if epoch.epoch > 1:
                self._announce(f"epoch {epoch.epoch} of {epoch.epochs}, resumed")
        self._done[epoch.replica, epoch.copy] = epoch.epoch
        text = f"replica {epoch.replica}: epoch {epoch.epoch} of {epoch.epochs}, loss {epoch.loss:.4f}"
        self._show(text, self._before + sum(self._done.values()))


def run(request: Request, as_json: bool) -> None:
    """Train, evaluate and print; a run that is refused leaves no folder."""
    start = time.perf_counter()
    method = methods.build(request.method, request.settings)
    with console.steps(quiet=as_json) as say:
        say(f"building {request.net.model} and reading {request.data}")
        task = prepare(request.net, request.data, request.split)
    if isinstance(method, Adversarial) and not method.attack.mean:
        method = replace(method, attack=in_units_of(task.sets, method.attack))
    replicas = [request.out / f"replica-{k}" for k in range(request.replicas)]
    try:
        with (
            runs.undone(request.out),
            outputs.writing("--out", request.out),
            _watch(method, replicas, as_json) as watch,
        ):
            solutions = fit(
                task.module,
                task.sets.train,
                method,
                request.replicas,
                request.seed,
                request.net.device,
                request.out,
                watch,
                checkpoint_every=request.checkpoint_every,
            )
    except KeyboardInterrupt:
        console.complain("stopped", "the same command goes on from the last checkpoint.")
        raise
    rows: list[dict[str, Any]] = []
    with console.steps(quiet=as_json) as say:
        for k, (q, folder) in enumerate(zip(solutions, replicas, strict=True)):
            say(f"evaluating replica {k} on the {task.scored} split")
            generator = torch.Generator().manual_seed(request.seed)
            rows.append(
                {
                    "replica": k,
                    "kind": type(q).__name__,
                    "training_loss": _training_loss(folder),
                    **asdict(evaluate(q, task.module, task.split, generator=generator)),
                    "solution": str(folder / SOLUTION),
                }
            )
    report = {
        "method": request.method,
        "settings": asdict(method),  # type: ignore[call-overload]
        "model": request.net.model,
        "data": request.data,
        "split": request.split,
        "seed": request.seed,
        "device": request.net.device,
        "epochs": method.epochs,
        "first_epoch": watch.first,
        "evaluated_on": task.scored,
        "target_std": task.target_std,
        "replicas": rows,
        "seconds": time.perf_counter() - start,
    }
    if as_json:
        typer.echo(json.dumps(report, indent=1, allow_nan=False))
    else:
        _show(task, report)


@contextmanager
def _watch(method: Method, replicas: list[Path], quiet: bool) -> Iterator[Watch]:
    pattern = SOLUTION if method.copies == 1 else f"copy-*/{SOLUTION}"
    before = method.epochs * sum(len(list(folder.glob(pattern))) for folder in replicas)
    total = method.epochs * method.copies * len(replicas)
    with runs.epochs(total, before, "training", quiet) as (show, announce):
        yield Watch(before, show, announce)


def _training_loss(folder: Path) -> float:
    """Of the last epoch; the mean over the networks of a replica."""
    losses = []
    for file in folder.rglob(METRICS):
        last = file.read_text(encoding="utf-8").splitlines()[-1]
        losses.append(float(json.loads(last)["loss"]))
    return sum(losses) / len(losses)


def _show(task: Task, report: dict[str, Any]) -> None:
    out = console.stdout()
    formats = {"nll": ".4f", "accuracy": ".2%", "ece": ".4f"} if task.sets.classes else {"nll": ".4f", "rmse": ".4f"}
    numbers = ("replica", "training loss", *(f"{report['evaluated_on']} {name}" for name in formats))
    rows = [
        (
            str(row["replica"]),
            f"{row['training_loss']:.4f}",
            *(format(row[name], spec) for name, spec in formats.items()),
            row["solution"],
        )
        for row in report["replicas"]
    ]
    title = f"{report['method']} of {report['model']} on {report['data']}, {plural(report['epochs'], 'epoch')}"
    out.print(console.table(title, (*numbers, "solution"), rows, numbers=numbers))
    for note in task.notes:
        out.print(note)
    if report["first_epoch"] is None:
        out.print("every replica was finished before, so nothing was trained")
    out.print(f"{report['seconds']:.1f} s")
