"""`coset inspect`: the symmetry of a model as tables, as JSON, and as a picture."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from coset.cli import console, model, outputs
from coset.core.errors import CosetError
from coset.core.files import atomic_write
from coset.core.names import plural
from coset.plot.figure import FORMATS, save
from coset.plot.groups import groups
from coset.symmetries.group import FixedAxis, Group, Scaling
from coset.symmetries.infer import symmetry
from coset.symmetries.show import fixed_rows, group_rows, scaling_rows
from coset.symmetries.summary import moved_tensors, scalar_tensors, summary
from coset.symmetries.symmetry import Symmetry

ROWS = 30


@dataclass(frozen=True)
class Request:
    """The options of the command."""

    model: str
    checkpoint: Path | None = None
    arguments: str | None = None
    inputs: tuple[str, ...] = ()
    plot: Path | None = None
    output: Path | None = None
    strict: bool = False
    meta: bool = False


def run(request: Request, as_json: bool) -> None:
    """Infer, write the files that were asked for, and print."""
    outputs.check("--plot", request.plot, FORMATS, [request.checkpoint])
    outputs.check("--output", request.output, [".json"], [request.checkpoint])
    with console.steps(quiet=as_json) as say:
        sym = infer(request, say)
        if request.plot is not None:
            say(f"drawing {request.plot}")
            figure = groups(sym, request.model)
    if request.output is not None:
        with outputs.writing("--output", request.output), atomic_write(request.output) as temporary:
            temporary.write_text(sym.to_json() + "\n", encoding="utf-8")
    if request.plot is not None:
        with outputs.writing("--plot", request.plot):
            save(figure, request.plot)
    if as_json:
        typer.echo(json.dumps({"model": request.model} | summary(sym), indent=1, allow_nan=False))
    else:
        show(request.model, sym, console.stdout())


def infer(request: Request, say: Callable[[str], None]) -> Symmetry:
    """Build the model, load its weights, and find its symmetry."""
    if request.meta and request.checkpoint is not None:
        raise CosetError("--meta traces without weights, so give either --meta or --checkpoint.")
    say(f"building {request.model}")
    net = model.build(request.model, request.arguments, request.meta)
    if request.checkpoint is not None:
        model.load(net, request.checkpoint)
    args, kwargs = model.example_inputs(net, request.inputs, request.meta)
    say(f"inferring and verifying the symmetry of {request.model}")
    return symmetry(net, args, kwargs, strict=request.strict)


def show(name: str, sym: Symmetry, out: Console) -> None:
    """Print tables of groups, scalings and what is fixed, and the verification."""
    for table in (_groups(sym.groups), _scalings(sym.scalings), _fixed(sym.fixed)):
        if table is not None:
            out.print(table)
            out.print()
    scalars = len(scalar_tensors(sym))
    aside = f" ({scalars} more hold one number)" if scalars else ""
    out.print(f"{name}: {plural(len(sym.groups), 'group')}, 10^{sym.log_order / math.log(10):,.1f} permutations")
    out.print(f"tensors moved: {len(moved_tensors(sym))} of {len(sym.axes) - scalars}{aside}")
    out.print(_verified(sym), soft_wrap=True)
    out.print("seconds: " + ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in sym.seconds.items()))


def _groups(groups: Sequence[Group]) -> Table | None:
    rows = [(name, "permutation", *rest) for name, *rest in group_rows(groups)]
    columns = ("group", "kind", "count", "units", "tensors", "first members (tensor:axis)")
    return _table("Groups", columns, rows)


def _scalings(scalings: Sequence[Scaling]) -> Table | None:
    columns = ("kind", "of the units", "count", "units", "exact")
    return _table("Scalings: a free factor or sign for each unit", columns, scaling_rows(scalings))


def _fixed(fixed: Sequence[FixedAxis]) -> Table | None:
    return _table("Fixed", ("op", "reason", "count", "first (tensor:axis)"), fixed_rows(fixed))


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table | None:
    """The first rows, and how many groups, scalings or axes the others stand for."""
    if not rows:
        return None
    texts = [[str(cell) for cell in row] for row in rows[:ROWS]]
    table = console.table(title, columns, texts, numbers=("count", "units", "tensors"))
    if len(rows) > ROWS:
        count = columns.index("count")
        table.caption = f"... {sum(int(str(row[count])) for row in rows[ROWS:])} more; use --json for all"
        table.caption_justify = "left"
    return table


def _verified(sym: Symmetry) -> str:
    found = sym.verification
    if found is None:
        return "not verified: a model on the meta device has no weights to run with"
    return (
        f"{found.note}: the output changes by {found.deviation:.1e} under random elements, by {found.control:.1e} "
        f"under a wrong permutation, by {found.sensitivity:.1e} under another input"
    )
