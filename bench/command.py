"""`coset bench`: run a measurement, and print its rows."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

import bench
from coset.cli import console
from coset.cli.options import Json, Seed


def run(name: str | None, seed: int, as_json: bool) -> None:
    """List the benches, or run one and print it as a table or as JSON."""
    if name is None:
        return _list(as_json)
    with console.steps(quiet=as_json) as say:
        found = bench.run(name, seed, say)
    if as_json:
        record = {"bench": name, "seed": seed} | asdict(found)
        typer.echo(json.dumps(record, indent=1, allow_nan=False))
        return None
    out = console.stdout()
    keys = list(found.rows[0])
    rows = [[_cell(row[key]) for key in keys] for row in found.rows]
    out.print(console.table(found.title, keys, rows, numbers=[key for key in keys if _numeric(found, key)]))
    out.print()
    for note in found.notes:
        out.print(note)
    out.print(", ".join(f"{key} {value or 'not installed'}" for key, value in found.machine.items()))
    return None


def _list(as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(bench.BENCHES, indent=1))
        return
    console.stdout().print(console.table("Benches", ("name", "what it measures"), list(bench.BENCHES.items())))


def _numeric(found: bench.Result, key: str) -> bool:
    return any(isinstance(row[key], int | float) for row in found.rows)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.1e}" if 0 < abs(value) < 0.01 else f"{value:,.2f}" if abs(value) < 100 else f"{value:,.0f}"
    return "" if value is None else str(value)


def measure(
    name: Annotated[str | None, typer.Argument(help="Which one; without a name they are listed.")] = None,
    json: Json = False,
    seed: Seed = 0,
) -> None:
    """Measure coset beside other tools, in one run; tools that are not installed are named."""
    run(name, seed, as_json=json)


def register(app: typer.Typer) -> None:
    """Add `coset bench` to the command line: the entry point of the group `coset.commands`."""
    app.command(name="bench", epilog="Example: coset bench symmetry --json")(measure)
