"""`coset barrier`: the loss between two checkpoints, before and after alignment, as a table, JSON, or a page."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import typer

from coset import data
from coset.alignment import align
from coset.checkpoint import load_state
from coset.cli import checkpoints, console, outputs
from coset.cli.align import Net, find
from coset.errors import CosetError
from coset.files import atomic_write
from coset.paths import Barrier, barrier, geodesic
from coset.report.barrier import barriers
from coset.report.page import page
from coset.solutions import Dirac

NAIVE = "not aligned"


@dataclass(frozen=True)
class Request:
    """The options of the command."""

    first: Path
    second: Path
    net: Net
    data: str
    methods: tuple[str, ...] = ("weights",)
    points: int = 25
    repair: bool = False
    html: Path | None = None
    seed: int = 0


def run(request: Request, as_json: bool) -> None:
    """Evaluate the straight path, and the straight path to the aligned second network, for each method."""
    outputs.check("--html", request.html, [".html"], [request.first, request.second])
    if request.net.meta:
        raise CosetError("A barrier is measured by running the model, so it cannot be on the meta device.")
    with console.steps(quiet=as_json) as say:
        found = find(request.net, request.first, say)
        if found.module is None:
            raise CosetError("A barrier is measured by running the model: name it with --model.")
        ends = []
        for path in (request.first, request.second):
            full = load_state(path, request.net.device)
            checkpoints.fitting(full, found.sym, path, "left out")
            ends.append(Dirac(checkpoints.runnable(full, found.sym, found.module, path)))
        a, b = ends
        sets = data.load(request.data, device=request.net.device)
        results: dict[str, Barrier] = {}
        for method in (NAIVE, *request.methods):
            say(f"{method}: {request.points} points")
            moved = b
            if method != NAIVE:
                generator = torch.Generator().manual_seed(request.seed)
                match = align(a, b, found.sym, method, found.module, sets.train, generator=generator, progress=say.tick)
                moved = b.push(found.sym, match.element)
            variants = {method: None, f"{method}, repaired": sets.train} if request.repair else {method: None}
            for name, repair in variants.items():

                def tick(done: int, total: int, name: str = name) -> None:
                    say.tick(f"{name}: point {done} of {total}")

                line = geodesic(a, moved)
                results[name] = barrier(line, found.module, sets.test, request.points, repair=repair, progress=tick)
    report = {name: json.loads(result.to_json()) for name, result in results.items()}
    if request.html is not None:
        figure = barriers(results)
        text = page(f"Barrier between {request.first.name} and {request.second.name}", _rows(results), [figure])
        with outputs.writing("--html", request.html), atomic_write(request.html) as temporary:
            temporary.write_text(text, encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(report, indent=1, allow_nan=False))
    else:
        _show(results, request)


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


def _show(results: dict[str, Barrier], request: Request) -> None:
    out = console.stdout()
    rows = _rows(results)
    columns = tuple(rows[0])
    title = f"Test loss between {request.first.name} and {request.second.name}"
    out.print(console.table(title, columns, [tuple(row.values()) for row in rows], numbers=columns[1:]))
    if request.html is not None:
        out.print(f"wrote {request.html}")
