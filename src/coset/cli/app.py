"""The `coset` command and its subcommands.

Nothing here imports torch before a command runs, so that `coset --help` answers at once.
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from coset._version import __version__
from coset.cli import console
from coset.errors import CosetError


class _Commands(TyperGroup):
    """Turns what a user can cause into one sentence and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            with warnings.catch_warnings():
                # Deprecations inside torch are nothing the user of a command can act on.
                if not sys.warnoptions:
                    warnings.simplefilter("ignore")
                return super().invoke(ctx)
        except CosetError as error:
            console.complain("error", str(error))
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


app = typer.Typer(
    name="coset",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object to stdout, and nothing else.")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of everything that is drawn at random.", min=0)]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"coset {__version__}")
        raise typer.Exit


@app.callback(epilog="Example: coset inspect vit --plot vit.png")
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Work with neural networks modulo their symmetries."""


@app.command(
    epilog="Example: coset inspect resnet20:width=2,norm=frn --json"
    "\n\nExample: coset inspect nets:make --args '{\"depth\": 3}' --input 2x16:int<100 --checkpoint net.safetensors"
)
def inspect(
    model: Annotated[str, typer.Argument(help="A name of the zoo, such as vit, or module:factory.")],
    checkpoint: Annotated[
        Path | None, typer.Option(help="Weights to load: safetensors, or a .pt of plain tensors.")
    ] = None,
    args: Annotated[str | None, typer.Option(help="Arguments of the factory, as a JSON object.")] = None,
    input: Annotated[  # the option's name
        list[str] | None,
        typer.Option(
            help="An example input: 2x3x32x32 (floats), 2x16:int<100 (integers below 100), or name=2x16 for a "
            "keyword. Repeat it for more. By default the model's own example_inputs()."
        ),
    ] = None,
    json: Json = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the model coloured by group: .png, .pdf or .svg.")] = None,
    output: Annotated[
        Path | None, typer.Option(help="Write the symmetry as .json, as Symmetry.from_json reads.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse a model with an op that has no rule.")] = False,
    meta: Annotated[bool, typer.Option("--meta", help="Trace without weights: large models cost no memory.")] = False,
) -> None:
    """Infer the symmetry group of a model, verify it by running the model, and list it."""
    from coset.cli.inspect import Request, run

    run(Request(model, checkpoint, args, tuple(input or ()), plot, output, strict, meta), as_json=json)


@app.command(epilog="Example: coset demo --out out/demo")
def demo(
    out: Annotated[Path, typer.Option(help="Folder for what it draws.")] = Path("out/demo"),
    seed: Seed = 0,
) -> None:
    """Train two small networks, find their symmetry, and move one without changing what it computes."""
    from coset.cli.demo import run

    run(out, seed)


@app.command(epilog="Example: coset bench symmetry --json")
def bench(
    name: Annotated[str | None, typer.Argument(help="Which one; without a name they are listed.")] = None,
    json: Json = False,
    seed: Seed = 0,
) -> None:
    """Measure coset beside other tools, in one run; tools that are not installed are named."""
    from coset.cli.bench import run

    run(name, seed, as_json=json)


def main() -> None:
    """The console script."""
    # Threads that wait by spinning make small models fifty times slower where other programs want the cores. It
    # must be said before torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    app(prog_name="coset")
