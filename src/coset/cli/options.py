"""Options that several commands have. As in `coset.cli.app`, nothing here imports torch before a command runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def networks(given: Any) -> Any:
    """Refuse curves where networks are wanted."""
    if given:
        from coset.solutions.load import refuse_other

        for path in [given] if isinstance(given, Path) else given:
            refuse_other(path)
    return given


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object to stdout, and nothing else.")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of everything that is drawn at random.", min=0, max=2**63 - 1)]
Model = Annotated[str, typer.Option("--model", help="A name of the zoo, such as resnet20, or module:factory.")]
Arguments = Annotated[str | None, typer.Option("--args", help="Arguments of the factory, as a JSON object.")]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input", help="An example input, such as 2x3x32x32 or 2x16:int<100; by default the model's own example."
    ),
]
Spec = Annotated[
    Path | None,
    typer.Option("--symmetry", help="Read the symmetry from a .json file, as `coset inspect --output` writes it."),
]
Meta = Annotated[bool, typer.Option("--meta", help="Build the model without weights, to save memory.")]
Device = Annotated[str, typer.Option("--device", help="Where to compute: cpu or cuda.")]
Checkpoint = Annotated[
    Path,
    typer.Argument(help="Weights: .safetensors, a folder of shards, or a .pt of plain tensors.", callback=networks),
]
Solution = Annotated[Path, typer.Argument(help="A solution that `coset fit` wrote, or any checkpoint.")]
Split = Annotated[
    int | None, typer.Option("--split", help="Which standard split of a UCI set; the first if not given.")
]
