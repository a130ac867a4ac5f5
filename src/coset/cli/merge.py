"""`coset merge`: align any number of checkpoints, average them, repair their norm statistics, and compare."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import typer

from coset import data
from coset.alignment.merge import merge
from coset.cli import checkpoints, console, outputs
from coset.cli.align import Net, find
from coset.core.checkpoint import load_state, save_state
from coset.core.errors import CosetError
from coset.solutions.dirac import Dirac
from coset.solutions.evaluate import evaluate


@dataclass(frozen=True)
class Request:
    """The options of the command."""

    inputs: tuple[Path, ...]
    output: Path
    net: Net
    weights: str | None = None
    method: str = "weights"
    data: str | None = None
    reference: int | None = None
    seed: int = 0


def run(request: Request, as_json: bool) -> None:
    """Merge, write and print; with data, accuracies of the ends, of the merged and of the plain average."""
    outputs.check("--output", request.output, [".safetensors"], request.inputs)
    if len(request.inputs) < 2:
        raise CosetError("Merging needs two checkpoints or more.")
    weights = _weights(request.weights, len(request.inputs))
    if request.method in ("activations", "sinkhorn") and (request.data is None or request.reference is None):
        raise CosetError(f"--method {request.method} needs --data, and --reference with the number of a checkpoint.")
    with console.steps(quiet=as_json) as say:
        found = find(request.net, request.inputs[0], say)
        states = []
        for path in request.inputs:
            say(f"reading {path}")
            full = load_state(path)
            checkpoints.fitting(full, found.sym, path, "taken from the first checkpoint")
            states.append(full)
        pairs = zip(states, request.inputs, strict=True)
        known = [Dirac(checkpoints.runnable(state, found.sym, found.module, path)) for state, path in pairs]
        chosen = data.load(request.data, device=request.net.device) if request.data is not None else None
        say("aligning and averaging")
        merged = merge(
            known,
            found.sym,
            weights,
            found.module if chosen is not None else None,
            chosen.train if chosen is not None else None,
            reference=request.reference,
            method=request.method,
            generator=torch.Generator().manual_seed(request.seed),
            device=request.net.device,
            progress=lambda event: say.tick(event.text),
        )
        report: dict[str, Any] = {"output": str(request.output), "inputs": [str(path) for path in request.inputs]}
        if chosen is not None and found.module is not None:
            say("evaluating")
            from coset.alignment.many import barycenter

            plain = barycenter(known, weights)
            report["test_accuracy"] = {
                "ends": [evaluate(one, found.module, chosen.test).accuracy for one in known],
                "plain average": evaluate(plain, found.module, chosen.test).accuracy,
                "merged": evaluate(merged, found.module, chosen.test).accuracy,
            }
        with outputs.writing("--output", request.output):
            merged_names = [name for name in states[0] if name in merged.mean]
            written = {name: merged.mean[name].to(states[0][name].dtype) for name in merged_names}
            save_state({**states[0], **written}, request.output)
    if as_json:
        typer.echo(json.dumps(report, indent=1, allow_nan=False))
    else:
        _show(report)


def _weights(text: str | None, n: int) -> list[float] | None:
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise CosetError(f"--weights {text!r} must be {n} numbers separated by commas.") from error


def _show(report: dict[str, Any]) -> None:
    out = console.stdout()
    found = report.get("test_accuracy")
    if found is not None:
        rows = [(name, f"{value:.2%}") for name, value in zip(report["inputs"], found["ends"], strict=True)]
        rows += [(name, f"{found[name]:.2%}") for name in ("plain average", "merged")]
        out.print(console.table("Merge", ("network", "test accuracy"), rows, numbers=("test accuracy",)))
    out.print(f"wrote {report['output']}")
