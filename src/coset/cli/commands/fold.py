"""`coset fold`: move the gains of norms into the weights that read them, so that streams can be rotated."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coset.cli import console
from coset.cli.console import open_display
from coset.cli.options import (
    ArgsOption,
    CheckpointArgument,
    DeviceOption,
    InputOption,
    JsonOption,
    ModelOption,
    OverwriteOption,
    SymmetryOption,
)
from coset.core.errors import CosetError
from coset.core.names import plural


def fold(
    checkpoint: CheckpointArgument,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The folded checkpoint: .safetensors, or a folder for shards.")
    ],
    model: ModelOption = "",
    args: ArgsOption = None,
    input: InputOption = None,
    symmetry: SymmetryOption = None,
    device: DeviceOption = "cpu",
    overwrite: OverwriteOption = False,
    json: JsonOption = False,
) -> None:
    """Make the gains of norms one; the network computes the same function as before.

    Fold two checkpoints, and `coset align` can rotate the residual stream of one to match the other.

    Example: coset fold a.safetensors --model gpt:norm=rms,tied=false -o a-folded.safetensors
    """
    from coset.cli import files
    from coset.cli.model import ModelSpec, check_named, function_change, symmetric_model
    from coset.symmetries.fold import fold as fold_state

    spec = ModelSpec(model, args, input or (), symmetry, device=device)
    check_named(spec)
    files.check_output_checkpoint("--output", output, checkpoint, [symmetry], overwrite)
    with open_display(quiet=json) as display:
        source = files.open_checkpoint(checkpoint)
        net = symmetric_model(spec, checkpoint, display)
        display.stage(f"checking {checkpoint}")
        files.check_fits(source, net.sym, checkpoint, "carried over as they are")
        gains = list(dict.fromkeys(gain for group in net.sym.matrices for gain in group.gains))
        if not gains:
            blocked = dict.fromkeys(gain for group in net.sym.blocked for gain in group.gains)
            reason = f": {', '.join(blocked)} stand before tied weights" if blocked else ""
            raise CosetError(f"There is no gain to fold for a stream that could turn{reason}.")
        folded = fold_state(dict(source), net.sym)
        display.stage("checking that the function is preserved")
        change = function_change(net, folded, net.sym.identity(), source)
        display.stage(f"writing {output}")
        files.write(source, output, folded.__getitem__, {})
    report = {
        "output": str(output),
        "gains": gains,
        "output_change": None if change is None else change[0],
        "output_precision": None if change is None else change[1],
    }
    if json:
        console.print_json(report)
        return
    out = console.stdout()
    out.print(f"{plural(len(gains), 'gain')} folded, such as {gains[0]}")
    if change is not None:
        out.print(f"same function: the output changes by {change[0]:.1e}, in {change[1]}")
    out.print(f"wrote {output}")
