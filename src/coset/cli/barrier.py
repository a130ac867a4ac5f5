"""`coset barrier`: the loss between two checkpoints, before and after alignment, or along a curve.

As a table, JSON, or a page.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import typer

from coset import data
from coset.alignment.align import align
from coset.alignment.repair import running_norms
from coset.cli import checkpoints, console, outputs
from coset.cli.align import Net, find
from coset.cli.curve import REPAIRED, measured
from coset.cli.evaluate import prepare
from coset.core import state as states
from coset.core.checkpoint import load_state
from coset.core.errors import CosetError
from coset.core.files import atomic_write
from coset.paths.barrier import Barrier, barrier
from coset.paths.curve import is_curve, load_curve
from coset.paths.geodesic import geodesic
from coset.plot.barrier import barriers
from coset.plot.page import page
from coset.solutions.dirac import Dirac

NAIVE = "not aligned"


@dataclass(frozen=True)
class Request:
    """The options of the command; without a second checkpoint the first is a curve."""

    first: Path
    second: Path | None
    net: Net
    data: str
    methods: tuple[str, ...] = ()
    points: int = 25
    repair: bool = False
    html: Path | None = None
    seed: int = 0


def run(request: Request, as_json: bool) -> None:
    """Measure and print."""
    outputs.check("--html", request.html, [".html"], [request.first, request.second])
    if request.net.meta:
        raise CosetError("A barrier is measured by running the model, so it cannot be on the meta device.")
    with console.steps(quiet=as_json) as say:
        if request.second is None:
            what, results = _along(request, say)
        elif is_curve(request.first):
            raise CosetError(f"{request.first} holds a curve, which has both ends: leave out {request.second}.")
        else:
            what, results = _between(request, request.second, say)
    if request.html is not None:
        text = page(f"Barrier {what}", _rows(results), [barriers(results)])
        with outputs.writing("--html", request.html), atomic_write(request.html) as temporary:
            temporary.write_text(text, encoding="utf-8")
    if as_json:
        report = {name: json.loads(result.to_json()) for name, result in results.items()}
        typer.echo(json.dumps(report, indent=1, allow_nan=False))
    else:
        _show(results, what, request)


def _between(request: Request, second: Path, say: console.Steps) -> tuple[str, dict[str, Barrier]]:
    """The straight path, and the straight path to the aligned second network, for each method."""
    found = find(request.net, request.first, say)
    if found.module is None:
        raise CosetError("A barrier is measured by running the model: name it with --model.")
    ends = []
    for path in (request.first, second):
        full = load_state(path, request.net.device)
        checkpoints.fitting(full, found.sym, path, "left out")
        ends.append(Dirac(checkpoints.runnable(full, found.sym, found.module, path)))
    a, b = ends
    sets = data.load(request.data, device=request.net.device)
    results: dict[str, Barrier] = {}
    for method in (NAIVE, *(request.methods or ("weights",))):
        say(f"{method}: {request.points} points")
        moved = b
        if method != NAIVE:
            generator = torch.Generator().manual_seed(request.seed)
            match = align(
                a,
                b,
                found.sym,
                method,
                found.module,
                sets.train,
                generator=generator,
                progress=lambda event: say.tick(event.text),
            )
            moved = found.sym.act(match.element, b)
        variants = {method: None, f"{method}, repaired": sets.train} if request.repair else {method: None}
        for name, repair in variants.items():

            def tick(done: int, total: int, name: str = name) -> None:
                say.tick(f"{name}: point {done} of {total}")

            line = geodesic(a, moved)
            results[name] = barrier(line, found.module, sets.test, request.points, repair=repair, progress=tick)
    return f"between {request.first.name} and {second.name}", results


def _along(request: Request, say: console.Steps) -> tuple[str, dict[str, Barrier]]:
    """The curve, and the straight line between its ends; repaired if there are norms to repair, as they need it."""
    if request.first.exists() and not is_curve(request.first):
        raise CosetError(
            f"{request.first} holds no curve: name a second checkpoint, or a curve that `coset curve` wrote."
        )
    if request.methods:
        raise CosetError("--method aligns two checkpoints, and a curve has its ends where they are: leave it out.")
    curve = load_curve(request.first, request.net.device)
    say(f"building {request.net.model} and reading {request.data}")
    task = prepare(request.net, request.data, None)
    states.check(curve.points[0].mean, states.of(task.module), str(request.first))
    found = measured(curve, task, request.points, say)
    suffix = ", repaired" if running_norms(task.module) else ""
    return f"along {request.first.name}", {name + suffix: result for name, result in found.items()}


def _rows(results: dict[str, Barrier]) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = []
    for name, result in results.items():
        middle = len(result.t) // 2
        row: dict[str, Any] = {
            "path": name,
            "barrier (nats)": f"{result.height:.4f}",
            "loss at the ends": f"{result.endpoints[0]:.4f}, {result.endpoints[1]:.4f}",
            "loss halfway": f"{result.loss[middle]:.4f}",
            "accuracy halfway": f"{result.accuracy[middle]:.2%}" if result.accuracy is not None else "",
        }
        rows.append(row)
    return rows


def _show(results: dict[str, Barrier], what: str, request: Request) -> None:
    out = console.stdout()
    rows = _rows(results)
    columns = tuple(rows[0])
    out.print(console.table(f"Test loss {what}", columns, [tuple(row.values()) for row in rows], numbers=columns[1:]))
    if request.second is None and all(name.endswith(", repaired") for name in results):
        out.print(REPAIRED)
    if request.html is not None:
        out.print(f"wrote {request.html}")
