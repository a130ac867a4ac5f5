"""`coset apply`: replay the permutations that `coset align` wrote, on any checkpoint of the same layout."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import typer
from torch import Tensor

from coset.cli import checkpoints, console
from coset.symmetries.element_file import load_element


@dataclass(frozen=True)
class Request:
    """The options of the command."""

    element: Path
    checkpoint: Path
    output: Path
    inverse: bool = False


def run(request: Request, as_json: bool) -> None:
    """Move every tensor that the symmetry knows, and carry the others over."""
    checkpoints.check_output("--output", request.output, request.checkpoint, [request.element])
    sym, element = load_element(request.element)
    if request.inverse:
        element = element.inverse()
    source = checkpoints.open_checkpoint(request.checkpoint)
    with console.steps(quiet=as_json) as say:
        say(f"checking {request.checkpoint}")
        checkpoints.fitting(source, sym, request.checkpoint, "carried over as they are")

        def moved(name: str) -> Tensor:
            return sym.act(element, {name: source[name]})[name]

        say(f"writing {request.output}")
        checkpoints.write(source, request.output, moved, {})
    report = {"output": str(request.output), "tensors": len(source), "groups": len(sym.groups)}
    if as_json:
        typer.echo(json.dumps(report, indent=1))
    else:
        console.stdout().print(f"wrote {request.output}: {len(source)} tensors, moved by {len(sym.groups)} groups")
