"""`coset align`: bring one checkpoint to the units of another, and prove that it computes the same."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import typer
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from coset import data
from coset.alignment.align import align as align_solutions
from coset.alignment.driver import Match
from coset.cli import checkpoints, console, model, outputs
from coset.core import state as states
from coset.core.errors import CosetError, ModelError
from coset.symmetries.element_file import save_element
from coset.symmetries.group import Element
from coset.symmetries.infer import symmetry
from coset.symmetries.symmetry import Symmetry
from coset.symmetries.verify import TOLERANCE, difference, numbers


@dataclass(frozen=True)
class Net:
    """The model that checkpoints belong to, as the command line gives it."""

    model: str
    arguments: str | None = None
    inputs: tuple[str, ...] = ()
    symmetry: Path | None = None
    meta: bool = False
    device: str = "cpu"

    @classmethod
    def of(
        cls, name: str, arguments: str | None, inputs: list[str] | None, spec: Path | None, meta: bool, device: str
    ) -> Net:
        """Refuse options that do not go together before any work is done."""
        if device == "meta":
            raise CosetError("--device meta holds no numbers: choose cpu or cuda.")
        if not name and spec is None:
            raise CosetError("Name the model with --model, or give its symmetry with --symmetry.")
        try:
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError) as error:
            raise CosetError(f"--device {device} cannot be used: {str(error).splitlines()[0]}.") from error
        return cls(name, arguments, tuple(inputs or ()), spec, meta, device)


@dataclass(frozen=True)
class Request:
    """The options of the command."""

    first: Path
    second: Path
    output: Path
    net: Net
    method: str = "weights"
    data: str | None = None
    restarts: int = 1
    scale: bool = False
    seed: int = 0


@dataclass(frozen=True)
class Found:
    """A model with its symmetry and example inputs; without weights there is nothing to run."""

    sym: Symmetry
    module: nn.Module | None = None
    inputs: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})


def run(request: Request, as_json: bool) -> None:
    """Align, verify, write and print."""
    checkpoints.check_output("--output", request.output, request.second, [request.first])
    element_file = checkpoints.element_file(request.output)
    outputs.check("--output", element_file, [".safetensors"], [request.first, request.second])
    if request.method in ("activations", "sinkhorn") and request.data is None:
        raise CosetError(f"--method {request.method} runs the model on data: name some with --data.")
    with console.steps(quiet=as_json) as say:
        a, b = (checkpoints.open_checkpoint(path) for path in (request.first, request.second))
        found = find(request.net, request.first, say)
        for path, checkpoint in ((request.first, a), (request.second, b)):
            say(f"checking {path}")
            checkpoints.fitting(checkpoint, found.sym, path, "carried over as they are")
        say(f"aligning {request.second} to {request.first}")
        match = align(request, found, a, b, say)
        say("checking that the function is preserved")
        change = function_change(found, b, match.element)
        say(f"writing {request.output}")
        distances = write(request, found.sym, a, b, match.element)
    report = {
        "method": request.method,
        "objective": match.objective,
        "identity_objective": match.identity_objective,
        "objectives": match.objectives,
        "distance_before": distances[0],
        "distance_after": distances[1],
        "output_change": None if change is None else change[0],
        "output_precision": None if change is None else change[1],
        "groups": len(found.sym.groups),
        "sweeps": match.sweeps,
        "seconds": match.seconds,
        "output": str(request.output),
        "element": str(checkpoints.element_file(request.output)),
    }
    if as_json:
        typer.echo(json.dumps(report, indent=1, allow_nan=False))
    else:
        show(report)


def find(net: Net, weights: Path, say: console.Steps) -> Found:
    """The symmetry: read from a file, or inferred, and verified on the weights if there is a model with some."""
    given = Symmetry.from_json(_text(net.symmetry)) if net.symmetry is not None else None
    if given is not None and not net.model:
        return Found(given)
    say(f"building {net.model}")
    module = model.build(net.model, net.arguments, net.meta)
    args, kwargs = model.example_inputs(module, net.inputs, net.meta)
    if not net.meta:
        model.load(module, weights, quiet=True)
    if given is not None and not net.meta:
        say(f"verifying {net.symmetry} on {net.model}")
        given.verify(module, args, kwargs)
    elif given is None:
        say(f"inferring the symmetry of {net.model}")
    sym = given if given is not None else symmetry(module, args, kwargs)
    return Found(sym, None if net.meta else module, (args, kwargs))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CosetError(f"--symmetry {path} cannot be read: {error}.") from error


def align(
    request: Request, found: Found, a: Mapping[str, Tensor], b: Mapping[str, Tensor], say: console.Steps
) -> Match:
    """By weights tensor by tensor, so that large checkpoints fit; by any other method in memory."""
    one_by_one = request.method in ("auto", "weights") and not request.scale
    first, second = (
        checkpoints.only_known(x, found.sym) if one_by_one else checkpoints.runnable(x, found.sym, found.module, path)
        for x, path in ((a, request.first), (b, request.second))
    )
    return align_solutions(
        first,
        second,
        found.sym,
        request.method,
        model=found.module,
        data=data.load(request.data).train if request.data is not None else None,
        restarts=request.restarts,
        generator=torch.Generator().manual_seed(request.seed),
        scale=request.scale,
        device=request.net.device,
        progress=lambda event: say.tick(event.text),
    )


def function_change(found: Found, b: Mapping[str, Tensor], element: Element) -> tuple[float, str] | None:
    """The largest relative change of the output, and the precision; None where there is no model with weights to run.

    The numbers that are written are compared, so that rounding of factors in 16 bits counts.
    """
    if found.module is None:
        return None
    before = {name: b[name] for name in checkpoints.known(b, found.sym)}
    after = found.sym.act(element, before)
    rounded = [x.dtype for x in before.values() if x.dtype in TOLERANCE] if element.scales else []
    own = next((x.dtype for x in found.module.parameters() if x.is_floating_point()), torch.float32)
    for dtype in (torch.float64, own):
        try:
            outputs = [_outputs(found, state, dtype) for state in (before, after)]
        except ModelError:
            if dtype == own:
                raise
            continue  # some models convert to float32 on the way
        change = difference(outputs[1], outputs[0])
        limit = max(TOLERANCE.get(one, TOLERANCE[torch.float32]) for one in (dtype, *rounded))
        if not change <= limit:
            raise CosetError(f"The aligned network computes another function: its output changes by {change:.1e}.")
        return change, str(dtype).removeprefix("torch.")
    raise AssertionError


def _outputs(found: Found, state: Mapping[str, Tensor], dtype: torch.dtype) -> list[Tensor]:
    assert found.module is not None
    module = copy.deepcopy(found.module).to(dtype).eval()
    args, kwargs = pytree.tree_map(
        lambda x: x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x, found.inputs
    )
    full = states.check(states.to(state, dtype=dtype), states.of(module), "the second checkpoint", unknown="ignore")
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # models that draw random numbers draw the same ones
        return numbers(states.call(module, full, args, kwargs))


def write(
    request: Request, sym: Symmetry, a: Mapping[str, Tensor], b: Mapping[str, Tensor], element: Element
) -> tuple[float, float]:
    """Write the moved checkpoint and its element; |a - b| over all tensors that the model knows, before and after."""
    squares = [0.0, 0.0]

    def moved(name: str) -> Tensor:
        before = b[name]
        after = sym.act(element, {name: before})[name]
        if name in sym.axes and before.is_floating_point():
            reference = a[name].float()
            for k, x in enumerate((before, after)):
                squares[k] += float((reference - x.float()).square().sum(dtype=torch.float64))
        return after

    checkpoints.write(b, request.output, moved, {"coset.aligned_to": request.first.name})
    save_element(checkpoints.element_file(request.output), sym, element)
    return math.sqrt(squares[0]), math.sqrt(squares[1])


def show(report: dict[str, Any]) -> None:
    """Print what was done."""
    out = console.stdout()
    rows = [
        ("objective", f"{report['identity_objective']:.6g}", f"{report['objective']:.6g}"),
        ("distance of the weights", f"{report['distance_before']:.6g}", f"{report['distance_after']:.6g}"),
    ]
    out.print(console.table("Alignment", ("", "before", "after"), rows, numbers=("before", "after")))
    if len(report["objectives"]) > 1:
        spread = f"{min(report['objectives']):.6g} to {max(report['objectives']):.6g}"
        out.print(f"{len(report['objectives'])} starts ended at objectives from {spread}")
    change = report["output_change"]
    if change is None:
        out.print("the model has no weights here, so the function was not checked by running it")
    else:
        out.print(f"same function: the output changes by {change:.1e}, in {report['output_precision']}")
    out.print(f"{report['groups']} groups, {report['sweeps']} sweeps, {report['seconds']:.2f} s")
    out.print(f"wrote {report['output']} and {report['element']}")
