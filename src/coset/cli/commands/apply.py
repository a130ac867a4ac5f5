"""`coset apply`: replay the element that `coset align` wrote, on any checkpoint of the same layout."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coset.cli import console
from coset.cli.console import open_display
from coset.cli.options import CheckpointArgument, JsonOption, OverwriteOption
from coset.core.names import plural

if TYPE_CHECKING:
    from torch import Tensor


def apply(
    element: Annotated[Path, typer.Argument(help="The .element.safetensors that `coset align` wrote.")],
    checkpoint: CheckpointArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="The moved checkpoint: .safetensors, or a folder.")],
    inverse: Annotated[bool, typer.Option("--inverse", help="Undo the element instead.")] = False,
    overwrite: OverwriteOption = False,
    json: JsonOption = False,
) -> None:
    """Replay an alignment on another checkpoint of the same layout, without a model.

    Example: coset apply b-aligned.element.safetensors b-later.safetensors -o later-aligned.safetensors
    """
    from coset.cli import files
    from coset.symmetries.serialization import load_element

    files.check_output_checkpoint("--output", output, checkpoint, [element], overwrite)
    source = files.open_checkpoint(checkpoint)
    sym, change = load_element(element)
    if inverse:
        change = change.inverse()
    with open_display(quiet=json) as display:
        display.stage(f"checking {checkpoint}")
        files.check_fits(source, sym, checkpoint, "carried over as they are")
        sym.refuse_gains(change, source)

        def image(name: str) -> Tensor:
            return sym.act(change, {name: source[name]})[name]

        display.stage(f"writing {output}")
        files.write(source, output, image, {})
    if json:
        console.print_json({"output": str(output), "tensors": len(source), "groups": len(sym.groups)})
    else:
        console.stdout().print(
            f"wrote {output}: {plural(len(source), 'tensor')}, moved by {plural(len(sym.groups), 'group')}"
        )
