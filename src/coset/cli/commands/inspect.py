"""`coset inspect`: the symmetry of a model as tables, as JSON, and as a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coset.cli import console
from coset.cli.console import open_display
from coset.cli.options import ArgsOption, JsonOption, OverwriteOption
from coset.core.errors import CosetError
from coset.core.names import plural

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from coset.symmetries.group import FixedAxis, Group, MatrixGroup, Scaling
    from coset.symmetries.symmetry import Symmetry

ROWS = 30


def inspect(
    model: Annotated[str, typer.Argument(help="A name of the zoo, such as vit, or module:factory.")],
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Weights to load: safetensors, or a .pt of plain tensors."),
    ] = None,
    args: ArgsOption = None,
    input: Annotated[  # the option's name
        list[str] | None,
        typer.Option(
            help="An example input: 2x3x32x32 (floats), 2x16:int<100 (integers below 100), or name=2x16 for a "
            "keyword. Repeat it for more. By default the model's own example_inputs()."
        ),
    ] = None,
    json: JsonOption = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the model coloured by group: .png, .pdf or .svg.")] = None,
    output: Annotated[
        Path | None, typer.Option(help="Write the symmetry as .json, as Symmetry.from_json reads.")
    ] = None,
    overwrite: OverwriteOption = False,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse a model with an op that has no rule.")] = False,
    meta: Annotated[bool, typer.Option("--meta", help="Trace without weights: large models cost no memory.")] = False,
) -> None:
    """Infer the symmetry group of a model, verify it by running the model, and list it.

    Example: coset inspect resnet20:width=2,norm=frn --json

    Example: coset inspect nets:make --args '{"depth": 3}' --input 2x16:int<100 --checkpoint net.safetensors
    """
    from coset.cli import files
    from coset.cli.model import ModelSpec, load_weights
    from coset.plot.figure import FORMATS, save
    from coset.plot.groups import groups
    from coset.symmetries.infer import symmetry
    from coset.symmetries.serialization import summary

    files.check_output("--plot", plot, FORMATS, [checkpoint], overwrite)
    files.check_output("--output", output, [".json"], [checkpoint], overwrite)
    if meta and checkpoint is not None:
        raise CosetError("--meta traces without weights, so give either --meta or --checkpoint.")
    spec = ModelSpec(model, args, input or (), meta=meta)
    with open_display(quiet=json) as display:
        display.stage(f"building {model}")
        module = spec.build()
        if checkpoint is not None:
            load_weights(module, checkpoint)
        positional, keywords = spec.example_inputs(module)
        display.stage(f"inferring and verifying the symmetry of {model}")
        sym = symmetry(module, positional, keywords, strict=strict)
        if plot is not None:
            display.stage(f"drawing {plot}")
            figure = groups(sym, model)
    if output is not None:
        files.write_text("--output", output, sym.to_json() + "\n")
    if plot is not None:
        with files.writing("--plot", plot):
            save(figure, plot)
    if json:
        console.print_json({"model": model} | summary(sym))
    else:
        _show(model, sym, console.stdout())


def _show(name: str, sym: Symmetry, out: Console) -> None:
    """Print tables of groups, scalings and what is fixed, and the verification."""
    from coset.symmetries.serialization import moved_tensors, scalar_tensors

    turning = (_matrices("Matrices", sym.matrices), _matrices("Matrices that gains forbid", sym.blocked))
    for table in (_groups(sym.groups), _scalings(sym.scalings), *turning, _fixed(sym.fixed)):
        if table is not None:
            out.print(table)
            out.print()
    scalars = len(scalar_tensors(sym))
    aside = f" ({scalars} more hold one number)" if scalars else ""
    order = f"{plural(len(sym.groups), 'group')}, 10^{sym.log_order / math.log(10):,.1f} permutations"
    out.print(f"{name}: {order}")
    out.print(f"continuous dimensions: {sym.dimension:,}")
    out.print(f"tensors moved: {len(moved_tensors(sym))} of {len(sym.axes) - scalars}{aside}")
    out.print(_verified(sym), soft_wrap=True)
    out.print("seconds: " + ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in sym.seconds.items()))


def _groups(groups: Sequence[Group]) -> Table | None:
    from coset.symmetries.show import group_rows

    rows = [(name, "permutation", *rest) for name, *rest in group_rows(groups)]
    columns = ("group", "kind", "count", "units", "tensors", "first members (tensor:axis)")
    return _table("Groups", columns, rows)


def _scalings(scalings: Sequence[Scaling]) -> Table | None:
    from coset.symmetries.show import scaling_rows

    columns = ("kind", "of the units", "count", "units", "exact")
    return _table("Scalings: a free factor or sign for each unit", columns, scaling_rows(scalings))


def _matrices(title: str, matrices: Sequence[MatrixGroup]) -> Table | None:
    from coset.symmetries.show import matrix_rows

    return _table(title, ("of the units", "count", "units", "each is"), matrix_rows(matrices))


def _fixed(fixed: Sequence[FixedAxis]) -> Table | None:
    from coset.symmetries.show import fixed_rows

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
    check = sym.verification
    if check is None:
        return "not verified: a model on the meta device has no weights to run with"
    return (
        f"{check.note}: the output changes by {check.deviation:.1e} under random elements, by {check.control:.1e} "
        f"under a wrong permutation, by {check.sensitivity:.1e} under another input"
    )
