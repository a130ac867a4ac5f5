"""`coset align`: bring one checkpoint to the units of another, and prove that it computes the same."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coset.alignment.methods import NEED_DATA, OF_STATES
from coset.cli import console
from coset.cli.console import open_display
from coset.cli.options import (
    ArgsOption,
    CheckpointArgument,
    DeviceOption,
    InputOption,
    JsonOption,
    MetaOption,
    ModelOption,
    OverwriteOption,
    SeedOption,
    SymmetryOption,
)
from coset.core.errors import CosetError

if TYPE_CHECKING:
    from torch import Tensor

    from coset.symmetries.group import Element
    from coset.symmetries.symmetry import Symmetry


def align(
    first: CheckpointArgument,
    second: CheckpointArgument,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The aligned second: .safetensors, or a folder for shards.")
    ],
    model: ModelOption = "",
    method: Annotated[str, typer.Option(help=f"{OF_STATES}; those that run the model need --data.")] = "weights",
    data: Annotated[str | None, typer.Option(help="A data set, such as mnist, for the methods that run it.")] = None,
    restarts: Annotated[int, typer.Option(help="Starts; all but the first are random.", min=1)] = 1,
    scale: Annotated[bool, typer.Option("--scale", help="Also match the positive factors of ReLU units.")] = False,
    args: ArgsOption = None,
    input: InputOption = None,
    symmetry: SymmetryOption = None,
    meta: MetaOption = False,
    device: DeviceOption = "cpu",
    seed: SeedOption = 0,
    overwrite: OverwriteOption = False,
    json: JsonOption = False,
) -> None:
    """Permute the units of the second checkpoint to match the first; it computes the same function as before.

    Example: coset align a.safetensors b.safetensors --model resnet20 -o b-aligned.safetensors

    Example: coset align llama-a llama-b --model nets:llama --meta --input 1x8:int<32000 -o llama-aligned
    """
    import torch

    from coset.alignment.align import align as align_states
    from coset.cli import files
    from coset.cli.model import ModelSpec, check_named, function_change, symmetric_model
    from coset.data import load

    spec = ModelSpec(model, args, input or (), symmetry, meta, device)
    check_named(spec)
    files.check_output_checkpoint("--output", output, second, [first, symmetry], overwrite)
    element_file = files.element_file(output)
    files.check_output("--output", element_file, [".safetensors"], [first, second, symmetry], overwrite)
    if method in NEED_DATA and data is None:
        raise CosetError(f"--method {method} runs the model on data: name some with --data.")
    with open_display(quiet=json) as display:
        a, b = (files.open_checkpoint(path) for path in (first, second))
        net = symmetric_model(spec, first, display)
        in_parts = method in ("auto", "weights") and not scale  # tensor by tensor, so that large checkpoints fit
        for path, checkpoint in ((first, a), (second, b)):
            display.stage(f"checking {path}")
            files.check_fits(checkpoint, net.sym, path, "carried over as they are", values=not in_parts)
        display.stage(f"aligning {second} to {first}")
        a_state, b_state = (
            files.model_tensors(x, net.sym) if in_parts else files.runnable(x, net.sym, net.module, path)
            for x, path in ((a, first), (b, second))
        )
        match = align_states(
            a_state,
            b_state,
            net.sym,
            method,
            model=net.module,
            data=load(data).train if data is not None else None,
            restarts=restarts,
            generator=torch.Generator().manual_seed(seed),
            scale=scale,
            device=device,
            progress=display,
        )
        display.stage("checking that the function is preserved")
        change = function_change(net, b, match.element)
        display.stage(f"writing {output}")
        before, after = _write(output, a, b, net.sym, match.element, first.name)
    report = {
        "method": method,
        "objective": match.objective,
        "identity_objective": match.identity_objective,
        "objectives": match.objectives,
        "distance_before": before,
        "distance_after": after,
        "output_change": None if change is None else change[0],
        "output_precision": None if change is None else change[1],
        "groups": len(net.sym.groups),
        "sweeps": match.sweeps,
        "seconds": match.seconds,
        "output": str(output),
        "element": str(element_file),
    }
    console.print_json(report) if json else _show(report)


def _write(
    output: Path, a: Mapping[str, Tensor], b: Mapping[str, Tensor], sym: Symmetry, element: Element, reference: str
) -> tuple[float, float]:
    """Write the aligned checkpoint and its element; |a - b| over all tensors that the model knows, before and after."""
    import torch

    from coset.cli import files
    from coset.symmetries.serialization import save_element

    squares = [0.0, 0.0]

    def aligned(name: str) -> Tensor:
        before = b[name]
        after = sym.act(element, {name: before})[name]
        if name in sym.axes and before.is_floating_point():
            target = a[name].float()
            for k, x in enumerate((before, after)):
                squares[k] += float((target - x.float()).square().sum(dtype=torch.float64))
        return after

    element_file = files.element_file(output)
    save_element(element_file, sym, element)
    try:
        files.write(b, output, aligned, {"coset.aligned_to": reference})
    except BaseException:
        element_file.unlink(missing_ok=True)  # as it says nothing without the checkpoint
        raise
    return math.sqrt(squares[0]), math.sqrt(squares[1])


def _show(report: dict[str, Any]) -> None:
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
    out.print(f"groups: {report['groups']}, sweeps: {report['sweeps']}, seconds: {report['seconds']:.2f}")
    out.print(f"wrote {report['output']} and {report['element']}")
