"""`coset overlap`: whether the equivalent modes of a posterior overlap, so that its symmetry matters."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import torch
import typer

from coset.cli import console, model
from coset.cli.align import Net
from coset.cli.evaluate import require_gaussian
from coset.core import state as states
from coset.core.errors import CosetError
from coset.solutions.load import load
from coset.solutions.overlap import Overlap, overlap
from coset.solutions.overlap_estimators import Entropy
from coset.symmetries.infer import symmetry


@dataclass(frozen=True)
class Request:
    """The options of the command."""

    solution: Path
    net: Net
    entropy: str = "importance"
    samples: int = 64
    elements: int = 20
    seed: int = 0


def run(request: Request, as_json: bool) -> None:
    """Infer the symmetry at the mean of the posterior, measure and print."""
    entropy = next((name for name in get_args(Entropy) if name == request.entropy), None)
    if entropy is None:
        raise CosetError(f"--entropy must be {' or '.join(get_args(Entropy))}, not {request.entropy!r}.")
    with console.steps(quiet=as_json) as say:
        q = load(request.solution)
        require_gaussian(q, request.solution, "the overlap")
        say(f"inferring the symmetry of {request.net.model}")
        module = model.build(request.net.model, request.net.arguments)
        module.load_state_dict(states.check(q.mean, states.of(module), str(request.solution)), strict=False)
        sym = symmetry(module, *model.example_inputs(module, request.net.inputs))
        say(f"measuring the overlap, {request.samples} samples")
        generator = torch.Generator(request.net.device).manual_seed(request.seed)
        on_device = q.to(request.net.device)
        found = overlap(on_device, sym, entropy, request.samples, request.elements, generator=generator)
    if as_json:
        typer.echo(json.dumps(_report(request, found), indent=1, allow_nan=False))
    else:
        _show(found)


def _report(request: Request, found: Overlap) -> dict[str, object]:
    sets = {
        name: {"information": information, "log_order": order} for name, (information, order) in found.of_sets.items()
    }
    return {
        "solution": str(request.solution),
        "entropy": request.entropy,
        "index": found.index,
        "information": found.information,
        "error": found.error,
        "lower": found.lower,
        "upper": found.upper,
        "log_order": found.log_order,
        "sets": sets,
        "sentence": found.sentence,
    }


def _show(found: Overlap) -> None:
    out = console.stdout()
    columns = ("units moved", "information", "± error", "lower", "upper", "log|G|", "index")
    numbers = (f"{found.information:.2f}", f"{found.error:.1g}", f"{found.lower:.2f}", f"{found.upper:.2f}")
    rows = [("all", *numbers, f"{found.log_order:.2f}", f"{found.index:z.3f}")]
    rows += [
        (f"{name} alone", f"{information:.2f}", "", "", "", f"{order:.2f}", f"{1 - information / order:z.3f}")
        for name, (information, order) in found.of_sets.items()
    ]
    out.print(console.table("Overlap of equivalent modes, in nats", columns, rows, numbers=columns[1:]))
    out.print(found.sentence)
