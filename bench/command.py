"""`python -m bench NAME` and, in a checkout, `coset bench NAME`: one command for each benchmark."""

from __future__ import annotations

import importlib
import inspect
import json as json_format
from collections.abc import Callable
from dataclasses import asdict
from functools import wraps
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

import bench
from coset.cli import console
from coset.cli.console import open_display
from coset.cli.options import JsonOption, SeedOption
from coset.core.errors import CosetError

HELP = "Measure how fast coset is and how well it does, beside other tools; without a name, list the benchmarks."


class _Benchmark(TyperCommand):
    """A benchmark whose file is imported when it is called, not when all are listed."""

    def make_context(self, info_name: Any, args: list[str], parent: Any = None, **extra: Any) -> Any:
        module = importlib.import_module(f"bench.{self.name}")
        function = getattr(module, "main", None) or _table(str(self.name))
        single = typer.Typer(pretty_exceptions_enable=False, add_completion=False, rich_markup_mode=None)
        single.command(name=self.name, help=inspect.getdoc(module))(_with_packages(str(self.name), function))
        return typer.main.get_command(single).make_context(info_name, args, parent, **extra)


def _with_packages(name: str, function: Callable[..., None]) -> Callable[..., None]:
    """The function, with one sentence about a package that it needs and that is not installed."""

    @wraps(function)
    def call(*args: Any, **options: Any) -> None:
        try:
            function(*args, **options)
        except ModuleNotFoundError as error:
            raise CosetError(f"The bench {name} needs {error.name}, which is not installed.") from error

    return call


class _Benchmarks(TyperGroup):
    """All benchmarks of this folder."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(bench.benchmarks())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        texts = bench.benchmarks()
        if cmd_name not in texts:
            raise bench.unknown(cmd_name)
        return _Benchmark(cmd_name, callback=lambda: None, help=texts[cmd_name])


group = typer.Typer(
    cls=_Benchmarks,
    help=HELP,
    epilog="Example: coset bench symmetry --json",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@group.callback()
def _list(context: typer.Context, json: JsonOption = False) -> None:
    if context.invoked_subcommand is not None:
        return
    texts = bench.benchmarks()
    if json:
        typer.echo(json_format.dumps(texts, indent=1))
        return
    console.stdout().print(console.table("Benchmarks", ("name", "what it measures"), list(texts.items())))


def _table(name: str) -> Callable[..., None]:
    """The command of a benchmark that makes a table."""

    def measure(json: JsonOption = False, seed: SeedOption = 0) -> None:
        with open_display(quiet=json) as display:
            measurement = bench.run(name, seed, display.stage)
        if json:
            record = {"bench": name, "seed": seed} | asdict(measurement)
            typer.echo(json_format.dumps(record, indent=1, allow_nan=False))
        else:
            _print(measurement)

    return measure


def _print(measurement: bench.Measurement) -> None:
    out, keys = console.stdout(), list(measurement.rows[0])
    rows = [[_cell(row[key]) for key in keys] for row in measurement.rows]
    numbers = [key for key in keys if any(isinstance(row[key], int | float) for row in measurement.rows)]
    out.print(console.table(measurement.title, keys, rows, numbers=numbers))
    out.print()
    for note in measurement.notes:
        out.print(note)
    out.print(", ".join(f"{key} {value or 'not installed'}" for key, value in measurement.machine.items()))


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.1e}" if 0 < abs(value) < 0.01 else f"{value:,.2f}" if abs(value) < 100 else f"{value:,.0f}"
    return "" if value is None else str(value)


def register(app: typer.Typer) -> None:
    """Add `coset bench` to the command line: the entry point of the group `coset.commands`."""
    app.add_typer(group, name="bench")


def execute() -> None:
    """`python -m bench`."""
    try:
        group(prog_name="python -m bench")
    except CosetError as error:
        console.complain("error", str(error))
        raise SystemExit(2) from None
