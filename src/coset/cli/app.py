"""The `coset` command and its subcommands.

Nothing here imports torch before a command runs, so that `coset --help` answers at once.
"""

from __future__ import annotations

import os
import sys
import warnings
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from coset._version import __version__
from coset.cli import console
from coset.cli.flow import flow
from coset.cli.options import (
    Arguments,
    Checkpoint,
    Device,
    Inputs,
    Json,
    Meta,
    Model,
    Seed,
    Solution,
    Spec,
    Split,
    networks,
)
from coset.core.errors import CosetError

NO_MEMORY = ("can't allocate memory", "out of memory")


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
        except (MemoryError, RuntimeError) as error:
            # Of torch, which has no class of its own for memory that a CPU does not have.
            if not (isinstance(error, MemoryError) or any(text in str(error) for text in NO_MEMORY)):
                raise
            console.complain("error", "There is too little memory for this: ask for less at once.")
            raise typer.Exit(2) from None


app = typer.Typer(
    name="coset",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(flow, name="flow")


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
        Path | None, typer.Option(help="Weights to load: safetensors, or a .pt of plain tensors.", callback=networks)
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


@app.command(
    epilog="Example: coset align a.safetensors b.safetensors --model resnet20 -o b-aligned.safetensors"
    "\n\nExample: coset align llama-a llama-b --model nets:llama --meta --input 1x8:int<32000 -o llama-aligned"
)
def align(
    first: Checkpoint,
    second: Checkpoint,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The aligned second: .safetensors, or a folder for shards.")
    ],
    model: Model = "",
    method: Annotated[
        str, typer.Option(help="weights, activations or sinkhorn; the last two need --data.")
    ] = "weights",
    data: Annotated[str | None, typer.Option(help="A data set, such as mnist, for the methods that run it.")] = None,
    restarts: Annotated[int, typer.Option(help="Starts; all but the first are random.", min=1)] = 1,
    scale: Annotated[bool, typer.Option("--scale", help="Also match the positive factors of ReLU units.")] = False,
    args: Arguments = None,
    input: Inputs = None,
    symmetry: Spec = None,
    meta: Meta = False,
    device: Device = "cpu",
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Permute the units of the second checkpoint to match the first; it computes the same function as before."""
    from coset.cli.align import Net, Request, run

    net = Net.of(model, args, input, symmetry, meta, device)
    run(Request(first, second, output, net, method, data, restarts, scale, seed), as_json=json)


@app.command(
    epilog="Example: coset merge a.safetensors b.safetensors c.safetensors --model resnet20 -o merged.safetensors"
)
def merge(
    checkpoints: Annotated[list[Path], typer.Argument(help="Two checkpoints or more.", callback=networks)],
    output: Annotated[Path, typer.Option("--output", "-o", help="The merged checkpoint: .safetensors.")],
    model: Model = "",
    weights: Annotated[
        str | None, typer.Option(help="A weight for each, separated by commas; equal ones if not given.")
    ] = None,
    method: Annotated[str, typer.Option(help="weights, activations or sinkhorn.")] = "weights",
    data: Annotated[
        str | None, typer.Option(help="A data set, such as cifar10: repairs norm statistics on it, and evaluates.")
    ] = None,
    reference: Annotated[
        int | None, typer.Option(help="Align all to this one, counted from 0; by default jointly to their barycenter.")
    ] = None,
    args: Arguments = None,
    input: Inputs = None,
    symmetry: Spec = None,
    device: Device = "cpu",
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Align checkpoints, average them, and repair their norm statistics."""
    from coset.cli.align import Net
    from coset.cli.merge import Request, run

    net = Net.of(model, args, input, symmetry, False, device)
    run(Request(tuple(checkpoints), output, net, weights, method, data, reference, seed), as_json=json)


@app.command(
    epilog="Example: coset barrier a.safetensors b.safetensors --model mlp:784-512-10 --data mnist --html barrier.html"
    "\n\nExample: coset barrier curve/curve.safetensors --model resnet20 --data cifar10"
)
def barrier(
    first: Annotated[Path, typer.Argument(help="Weights, as of the second; or alone a curve of `coset curve`.")],
    model: Model,
    data: Annotated[str, typer.Option(help="A data set, such as mnist: the loss is that of its test split.")],
    second: Annotated[
        Path | None,
        typer.Argument(help="Weights: .safetensors, a folder of shards, or a .pt of plain tensors.", callback=networks),
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="How to align: weights, activations or sinkhorn. Repeat it to compare.")
    ] = None,
    points: Annotated[int, typer.Option(help="Points of the path, with both ends.", min=2)] = 25,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Also recompute batch-norm statistics on training data at each point; for a curve they always are.",
        ),
    ] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page with the curves: .html.")] = None,
    args: Arguments = None,
    input: Inputs = None,
    device: Device = "cpu",
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Measure the loss between two checkpoints, before and after alignment, or along a curve."""
    from coset.cli.align import Net
    from coset.cli.barrier import Request, run

    net = Net.of(model, args, input, None, False, device)
    run(Request(first, second, net, data, tuple(method or ()), points, repair, html, seed), as_json=json)


@app.command(
    epilog="Example: coset curve a.safetensors b.safetensors --model mlp:64-64-10 --data digits -o curve"
    "\n\nExample: coset curve a.safetensors b.safetensors --model resnet20 --data cifar10 -o curve --set augment=true"
)
def curve(
    first: Solution,
    second: Solution,
    model: Model,
    data: Annotated[str, typer.Option(help="A data set, such as mnist: the curve is learned on its training split.")],
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="Folder for the curve, metrics and checkpoints; a search goes on in its own."),
    ],
    align: Annotated[
        str | None,
        typer.Option(help="How to align the second: activations if not given, weights, wasserstein, kl or sinkhorn."),
    ] = None,
    no_align: Annotated[bool, typer.Option("--no-align", help="Leave the second where it is.")] = False,
    pam: Annotated[
        bool, typer.Option("--pam", help="Learn the permutation of the second and the curve in turn.")
    ] = False,
    robust: Annotated[
        bool, typer.Option("--robust", help="Learn on inputs under attack, and measure the curve there too.")
    ] = False,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data; 50 if not given.")] = None,
    rate: Annotated[float | None, typer.Option(help="The largest learning rate; 0.03 if not given.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Examples of a step; 128 if not given.")] = None,
    shape: Annotated[str | None, typer.Option(help="bezier, which is smooth, if not given; or chain.")] = None,
    bends: Annotated[int | None, typer.Option(help="Control points that are learned; 1 if not given.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Another setting, such as weight_decay=0.001, pam.iterations=2 or attack.steps=7. Repeat it for more.",
        ),
    ] = None,
    points: Annotated[int, typer.Option(help="Points of the curve to measure, with both ends.", min=2)] = 25,
    html: Annotated[Path | None, typer.Option(help="Write a page with the curves: .html.")] = None,
    split: Split = None,
    checkpoint_every: Annotated[int, typer.Option(help="Epochs from one checkpoint to the next.", min=1)] = 1,
    args: Arguments = None,
    device: Device = "cpu",
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Learn a curve of low loss between two solutions; called again after it was stopped, it goes on."""
    from coset.cli.align import Net
    from coset.cli.curve import Request, run

    if no_align and align is not None:
        raise CosetError("--align and --no-align exclude each other: give one of them.")
    if shape not in (None, "bezier", "chain"):
        raise CosetError(f"--shape must be bezier or chain, not {shape!r}.")
    short = {"epochs": epochs, "rate": rate, "batch_size": batch_size, "curve": shape, "bends": bends}
    words = (*(f"{name}={value}" for name, value in short.items() if value is not None), *(settings or ()))
    method = None if no_align else align or "activations"
    net = Net.of(model, args, None, None, False, device)
    run(
        Request(first, second, net, data, out, method, pam, robust, words, split, points, html, checkpoint_every, seed),
        as_json=json,
    )


@app.command(
    epilog="Example: coset apply b-aligned.element.safetensors b-later.safetensors -o later-aligned.safetensors"
)
def apply(
    element: Annotated[Path, typer.Argument(help="The .element.safetensors that `coset align` wrote.")],
    checkpoint: Checkpoint,
    output: Annotated[Path, typer.Option("--output", "-o", help="The moved checkpoint: .safetensors, or a folder.")],
    inverse: Annotated[bool, typer.Option("--inverse", help="Undo the permutation instead.")] = False,
    json: Json = False,
) -> None:
    """Replay an alignment on another checkpoint of the same layout, without a model."""
    from coset.cli.apply import Request, run

    run(Request(element, checkpoint, output, inverse), as_json=json)


@app.command(
    epilog="Example: coset fit --model mlp:64-64-10 --data digits --method vi --out run --set epochs=100"
    "\n\nExample: coset fit --model mlp:6-50-1 --data uci/yacht --method laplace --out yacht --set base.epochs=200"
)
def fit(
    model: Model,
    data: Annotated[str, typer.Option(help="A data set, such as mnist: its training split.")],
    method: Annotated[
        str, typer.Option(help="map, vi, symmetrized-vi, laplace, sgld, sghmc, hmc, deep-ensemble or adversarial.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for solutions, metrics and checkpoints; a run goes on in its own.")],
    replicas: Annotated[int, typer.Option(help="Solutions from independent starts.", min=1)] = 1,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A setting of the method, such as rate=0.01 or base.epochs=20. Repeat it for more.",
        ),
    ] = None,
    split: Split = None,
    checkpoint_every: Annotated[int, typer.Option(help="Epochs from one checkpoint to the next.", min=1)] = 1,
    args: Arguments = None,
    device: Device = "cpu",
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Train networks or find posteriors; called again after it was stopped, it goes on."""
    from coset.cli.align import Net
    from coset.cli.fit import Request, run

    net = Net.of(model, args, None, None, False, device)
    run(Request(net, data, method, out, tuple(settings or ()), split, replicas, checkpoint_every, seed), as_json=json)


@app.command(
    epilog="Example: coset evaluate run/replica-0/solution.safetensors --model mlp:64-64-10 --data digits --elbo"
)
def evaluate(
    solution: Solution,
    model: Model,
    data: Annotated[str, typer.Option(help="A data set, such as mnist: its test split.")],
    samples: Annotated[int, typer.Option(help="Networks drawn from a random solution.", min=1)] = 128,
    elbo: Annotated[
        bool, typer.Option("--elbo", help="Also the evidence lower bound of the training split, of a Gaussian.")
    ] = False,
    prior_variance: Annotated[
        float | None, typer.Option(help="Of the prior, for --elbo; 1 if not given, as in vi.")
    ] = None,
    split: Split = None,
    args: Arguments = None,
    device: Device = "cpu",
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Measure how good a solution is: its loss, accuracy and calibration, or the error of a regression."""
    from coset.cli.align import Net
    from coset.cli.evaluate import Request, run

    if prior_variance is not None and not elbo:
        raise CosetError("--prior-variance is that of the evidence lower bound: ask for it with --elbo.")
    variance = (1.0 if prior_variance is None else prior_variance) if elbo else None
    net = Net.of(model, args, None, None, False, device)
    run(Request(solution, net, data, split, samples, variance, seed), as_json=json)


@app.command(epilog="Example: coset overlap run/replica-0/solution.safetensors --model mlp:64-64-10")
def overlap(
    solution: Solution,
    model: Model,
    entropy: Annotated[str, typer.Option(help="importance, infonce, bethe or exact.")] = "importance",
    samples: Annotated[int, typer.Option(help="Networks drawn from the posterior.", min=2)] = 64,
    elements: Annotated[
        int, typer.Option(help="Permutations of each, of importance and infonce; more narrow the bounds.", min=2)
    ] = 20,
    args: Arguments = None,
    input: Inputs = None,
    device: Device = "cpu",
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Tell whether the equivalent modes of a Gaussian posterior overlap, so that symmetrization can change it."""
    from coset.cli.align import Net
    from coset.cli.overlap import Request, run

    net = Net.of(model, args, input, None, False, device)
    run(Request(solution, net, entropy, samples, elements, seed), as_json=json)


@app.command(epilog="Example: coset demo --out out/demo")
def demo(
    out: Annotated[Path, typer.Option(help="Folder for what it draws.")] = Path("out/demo"),
    seed: Seed = 0,
) -> None:
    """Train two small networks, find their symmetry, move one without changing what it computes, align and merge."""
    from coset.cli.demo import run

    run(out, seed)


def add_plugins() -> None:
    """Add the commands that other distributions bring.

    Each entry point of the group `coset.commands` is a function that takes this app and adds its command. One that
    cannot be loaded becomes a command that says so, since the others must not suffer from it.
    """
    for point in entry_points(group="coset.commands"):
        try:
            point.load()(app)
        except Exception as error:
            _add_broken(point, error)


def _add_broken(point: EntryPoint, error: Exception) -> None:
    def explain() -> None:
        raise CosetError(f"The command {point.name} of {point.value} cannot be loaded: {error}.")

    app.command(name=point.name, help="(cannot be loaded)")(explain)


add_plugins()


def main() -> None:
    """The console script."""
    # Threads that wait by spinning make small models fifty times slower where other programs want the cores. It
    # must be said before torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    app(prog_name="coset")
