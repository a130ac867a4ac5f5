"""`coset reproduce`: a figure or table of a paper, and what the paper says beside what was found."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import coset_papers
from coset.cli import console, outputs
from coset.cli.options import DeviceOption, JsonOption, SeedOption
from coset.core.errors import CosetError

VERDICTS = {True: "holds", False: "DOES NOT HOLD", None: "not comparable"}


@dataclass(frozen=True)
class Request:
    """The options of the command."""

    name: str | None
    scale: str
    device: str
    out: Path
    seed: int
    redraw: Path | None


def run(request: Request, as_json: bool) -> None:
    """Reproduce a figure and print its claims, or draw a record again, or list what there is."""
    if request.redraw is not None:
        return _redraw(request, as_json)
    if request.name is None:
        return _list(as_json)
    with console.steps(quiet=as_json) as say, outputs.writing("--out", request.out):
        settings = coset_papers.Settings(request.scale, request.device, request.seed, request.out, say)
        record = coset_papers.reproduce(request.name, settings)
    if as_json:
        typer.echo(json.dumps(record, indent=1, allow_nan=False))
        return None
    out = console.stdout()
    _show(out, record)
    stem = f"{request.name.replace('/', '-')}-{request.scale}"
    out.print(f"\n{record['seconds']:.1f} s, {record['GiB']:.1f} GiB, {record['device']}")
    out.print(f"wrote {request.out / stem}.json and .png")
    return None


def _list(as_json: bool) -> None:
    titles = {name: exhibit.title for name, exhibit in coset_papers.exhibits().items()}
    if as_json:
        typer.echo(json.dumps(titles, indent=1))
        return
    console.stdout().print(console.table("Figures and tables", ("name", "what it shows"), list(titles.items())))


def _redraw(request: Request, as_json: bool) -> None:
    assert request.redraw is not None
    if request.name is not None:
        raise CosetError("--redraw takes no name: the record knows its figure.")
    with outputs.writing("--redraw", request.redraw):
        picture = coset_papers.redraw(request.redraw)
    typer.echo(json.dumps({"picture": str(picture)}) if as_json else f"wrote {picture}")


def _show(out: Console, record: dict[str, Any]) -> None:
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
    """Reproduce a figure or table of a paper, and print what the paper says beside what was found."""
    run(Request(None if list_all else name, scale, device, out, seed, None if list_all else redraw), as_json=json)


def register(app: typer.Typer) -> None:
    """Add `coset reproduce` to the command line: the entry point of the group `coset.commands`."""
    app.command(
        epilog="Example: coset reproduce gelberg2024/fig3 --scale short"
        "\n\nExample: coset reproduce --redraw out/reproduce/gelberg2024-fig3-short.json"
    )(reproduce)
