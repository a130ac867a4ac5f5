"""`coset reproduce`: a figure or table of a paper, and what the paper says beside our numbers."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import coset_papers
from coset.cli import console
from coset.cli.console import open_display
from coset.cli.options import DeviceOption, JsonOption, SeedOption
from coset.core.errors import CosetError

VERDICTS = {True: "holds", False: "DOES NOT HOLD", None: "not comparable"}


def reproduce(
    name: Annotated[str | None, typer.Argument(help="PAPER/FIGURE; without a name they are listed.")] = None,
    list_all: Annotated[bool, typer.Option("--list", help="List all figures and tables.")] = False,
    scale: Annotated[
        str, typer.Option(help="smoke (half a minute), short (minutes on a CPU) or paper (the paper's own settings).")
    ] = "smoke",
    device: DeviceOption = "cpu",
    out: Annotated[Path, typer.Option(help="Folder for the record, the picture, and parts to go on from.")] = Path(
        "out/reproduce"
    ),
    redraw: Annotated[Path | None, typer.Option(help="Draw the picture of a record again: .json.")] = None,
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Reproduce a figure or table of a paper, and print what the paper says beside our numbers."""
    if redraw is not None and not list_all:
        _redraw(redraw, name, as_json=json)
    elif name is None or list_all:
        _list(as_json=json)
    else:
        from coset.cli import files

        with open_display(quiet=json) as display, files.writing("--out", out):
            record = coset_papers.reproduce(name, coset_papers.Settings(scale, device, seed, out, display.stage))
        if json:
            typer.echo(json_format.dumps(record, indent=1, allow_nan=False))
        else:
            _print(record, out / f"{name.replace('/', '-')}-{scale}")


def register(app: typer.Typer) -> None:
    """Add `coset reproduce` to the command line: the entry point of the group `coset.commands`."""
    app.command(
        epilog="Example: coset reproduce gelberg2024/fig3 --scale short"
        "\n\nExample: coset reproduce --redraw out/reproduce/gelberg2024-fig3-short.json"
    )(reproduce)


def _list(as_json: bool) -> None:
    titles = coset_papers.titles()
    if as_json:
        typer.echo(json_format.dumps(titles, indent=1))
        return
    console.stdout().print(console.table("Figures and tables", ("name", "what it shows"), list(titles.items())))


def _redraw(record: Path, name: str | None, as_json: bool) -> None:
    if name is not None:
        raise CosetError("--redraw takes no name: the record knows its figure.")
    from coset.cli import files

    with files.writing("--redraw", record):
        picture = coset_papers.redraw(record)
    typer.echo(json_format.dumps({"picture": str(picture)}) if as_json else f"wrote {picture}")


def _print(record: dict[str, Any], stem: Path) -> None:
    out = console.stdout()
    _print_claims(out, record)
    out.print(f"\n{record['seconds']:.1f} s, {record['GiB']:.1f} GiB, {record['device']}")
    out.print(f"wrote {stem}.json and .png")


def _print_claims(out: Console, record: dict[str, Any]) -> None:
    columns = ("claim", "published", "ours", "verdict")
    rows = [
        (claim["text"], _cell(claim["published"]), _cell(claim["ours"]), VERDICTS[claim["holds"]])
        for claim in record["claims"]
    ]
    out.print(console.table(f"{record['figure']} at scale {record['scale']}: {record['title']}", columns, rows))
    notes = [claim["note"] for claim in record["claims"] if claim["note"]]
    if notes:
        out.print()
    for note in notes:
        out.print(note)


def _cell(value: str | float | None) -> str:
    return "" if value is None else value if isinstance(value, str) else f"{value:.4g}"
