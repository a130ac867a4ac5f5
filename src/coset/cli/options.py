"""Options that several commands have. Nothing here imports torch before a command runs, so that help comes at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object to stdout, and nothing else.")]
SeedOption = Annotated[
    int,
    typer.Option("--seed", metavar="INTEGER", help="Seed of everything that is drawn at random.", min=0, max=2**63 - 1),
]
ModelOption = Annotated[str, typer.Option("--model", help="A name of the zoo, such as resnet20, or module:factory.")]
ArgsOption = Annotated[str | None, typer.Option("--args", help="Arguments of the factory, as a JSON object.")]
InputOption = Annotated[
    list[str] | None,
    typer.Option(
        "--input", help="An example input, such as 2x3x32x32 or 2x16:int<100; by default the model's own example."
    ),
]
SymmetryOption = Annotated[
    Path | None,
    typer.Option(
        "--symmetry",
        help="Read the symmetry from a .json file, as `coset inspect --output` writes it; or `permutations`, to leave "
        "rotations and other matrices aside.",
    ),
]
MetaOption = Annotated[bool, typer.Option("--meta", help="Build the model without weights, to save memory.")]
DeviceOption = Annotated[str, typer.Option("--device", help="Where to compute: cpu or cuda.")]
SplitOption = Annotated[
    int | None, typer.Option("--split", help="Which standard split of a UCI set; the first if not given.")
]
CheckpointArgument = Annotated[
    Path,
    typer.Argument(help="Weights: .safetensors, a folder of shards, or a .pt of plain tensors."),
]
SolutionArgument = Annotated[Path, typer.Argument(help="A solution that `coset fit` wrote, or any checkpoint.")]
CheckpointSecondsOption = Annotated[
    float,
    typer.Option("--checkpoint-seconds", help="Seconds from one checkpoint to the next; 0: after every epoch.", min=0),
]
OutputOption = Annotated[Path, typer.Option("--output", "-o", help="The file to write: .safetensors.")]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace files of that name, if there are some.")]
WorkOption = Annotated[
    Path | None,
    typer.Option("--work", help="A folder for checkpoints: the same command goes on there after it was stopped."),
]
ModelOfFileOption = Annotated[
    str, typer.Option("--model", help="A name of the zoo where no population says it, or module:factory.")
]
PrecisionOption = Annotated[str | None, typer.Option("--precision", help="float32 if not given, tf32 or bfloat16.")]
CompileOption = Annotated[
    bool, typer.Option("--compile", help="Let torch compile a step, which pays in long runs on CUDA.")
]


def settings_option(help: str) -> Any:
    """The option --set of a command that has settings of some dataclass."""
    return typer.Option("--set", metavar="NAME=VALUE", help=f"{help} Repeat it for more.")
