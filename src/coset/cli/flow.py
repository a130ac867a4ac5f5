"""`coset flow`: networks that are collected, generated and measured.

As in `coset.cli.app`, nothing here imports torch before a command runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coset.cli.options import ArgsOption, DeviceOption, InputOption, JsonOption, ModelOption, SeedOption, SplitOption
from coset.core.errors import CosetError

flow = typer.Typer(
    no_args_is_help=True,
    help="Generate networks: collect many, fit a flow to them, sample new ones, and evaluate those.",
    epilog="Example: coset flow sample flow.safetensors -n 100 -o samples.safetensors",
)

Known = Annotated[
    str, typer.Option("--model", help="A name of the zoo where no population says it, or module:factory.")
]
Output = Annotated[Path, typer.Option("--output", "-o", help="The file to write: .safetensors.")]
Work = Annotated[
    Path | None,
    typer.Option(help="A folder for checkpoints: the same command goes on from there after it was stopped."),
]
Precision = Annotated[str | None, typer.Option(help="float32 if not given, tf32 or bfloat16.")]
Compile = Annotated[bool, typer.Option("--compile", help="Let torch compile a step, which pays in long runs on CUDA.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Another setting, as docs/flows.md or docs/populations.md list them. Repeat it for more.",
    ),
]


@flow.command(
    epilog="Example: coset flow collect --model mlp:784-10-10 --data mnist --runs 24576 --work nets -o nets.safetensors"
)
def collect(
    model: ModelOption,
    data: Annotated[str, typer.Option(help="A data set, such as mnist: its training split.")],
    runs: Annotated[int, typer.Option(help="Networks to train, from independent starts.", min=1)],
    output: Output,
    work: Work = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data; 25 if not given.")] = None,
    rate: Annotated[
        float | None, typer.Option(help="The largest learning rate; 0.1 for sgd and 0.002 for adam if not given.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Examples of a step; 128 if not given.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="sgd if not given, or adam.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Added to the gradient; 5e-4 if not given.")] = None,
    chunk: Annotated[int | None, typer.Option(help="Networks that are trained together; 4096 if not given.")] = None,
    every: Annotated[
        int | None, typer.Option(help="Keep every k-th iteration; if not given, networks at the end only.")
    ] = None,
    skip: Annotated[int | None, typer.Option(help="Epochs at the beginning of which --every keeps none.")] = None,
    precision: Precision = None,
    compile: Compile = False,
    start: Annotated[
        str,
        typer.Option(help="normal: weights start as Gaussians, whose density a flow knows; model: as it says itself."),
    ] = "normal",
    start_std: Annotated[
        float | None, typer.Option(help="Deviation of normal starts; if not given, that of the model's own, by tensor.")
    ] = None,
    settings: Set = None,
    split: SplitOption = None,
    args: ArgsOption = None,
    input: InputOption = None,
    device: DeviceOption = "cpu",
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Train many networks at once, and write them with their starts as a population."""
    from coset.cli.flow_collect import Request, run
    from coset.cli.model_spec import ModelSpec

    words = _words(
        settings,
        epochs=epochs,
        rate=rate,
        batch_size=batch_size,
        optimizer=optimizer,
        weight_decay=weight_decay,
        chunk=chunk,
        every=every,
        skip=skip,
        precision=precision,
        compile=compile or None,
    )
    net = ModelSpec(model, args, input or (), device=device)
    run(Request(net, data, runs, output, work, words, start, start_std, split, seed), as_json=json)


@flow.command(
    epilog="Example: coset flow fit nets.safetensors --data mnist --geometry geometric --work flow -o flow.safetensors"
)
def fit(
    population: Annotated[Path, typer.Argument(help="Networks that `coset flow collect` wrote.")],
    output: Output,
    data: Annotated[
        str | None, typer.Option(help="A data set: errors also count by what they do to outputs on it. Recommended.")
    ] = None,
    model: Known = "",
    geometry: Annotated[str, typer.Option(help="euclidean, normalized or geometric.")] = "geometric",
    coupling: Annotated[
        str, typer.Option(help="Where a network comes from: training (its own start), ot or independent.")
    ] = "training",
    network: Annotated[str, typer.Option(help="The network that learns: units, relational or pna.")] = "units",
    width: Annotated[int, typer.Option(help="Its features.", min=1)] = 256,
    depth: Annotated[int, typer.Option(help="Its layers.", min=1)] = 6,
    heads: Annotated[int, typer.Option(help="Its heads of attention, of units.", min=1)] = 8,
    predict: Annotated[str, typer.Option(help="What it predicts: velocity or endpoint.")] = "velocity",
    conditions: Annotated[str, typer.Option(help="Labels that samples can be asked for, such as loss,accuracy.")] = "",
    epochs: Annotated[int | None, typer.Option(help="Passes over the population; 200 if not given.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Networks of a step; 256 if not given.")] = None,
    rate: Annotated[float | None, typer.Option(help="The largest learning rate; 0.02 if not given.")] = None,
    precision: Precision = None,
    compile: Compile = False,
    settings: Set = None,
    work: Work = None,
    checkpoint_seconds: Annotated[float, typer.Option(help="Seconds from one checkpoint to the next.", min=0)] = 60.0,
    split: SplitOption = None,
    args: ArgsOption = None,
    input: InputOption = None,
    device: DeviceOption = "cpu",
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Learn a flow that leads from untrained networks to trained ones."""
    from coset.cli.flow_files import named
    from coset.cli.flow_fit import Request, planned, run

    words = _words(
        settings, epochs=epochs, batch_size=batch_size, rate=rate, precision=precision, compile=compile or None
    )
    plan = planned(geometry, coupling, network, width, depth, heads, predict, conditions)
    net = named(model, args, input, device)
    request = Request(
        population,
        net,
        plan,
        output,
        data=data,
        split=split,
        settings=words,
        work=work,
        checkpoint_seconds=checkpoint_seconds,
        seed=seed,
    )
    run(request, as_json=json)


@flow.command(
    epilog="Example: coset flow sample flow.safetensors -n 100 -o samples.safetensors"
    "\n\nExample: coset flow sample flow.safetensors -n 100 --width-of mlp:784-32-10 -o wide.safetensors"
)
def sample(
    file: Annotated[Path, typer.Argument(metavar="FLOW", help="A flow that `coset flow fit` wrote.")],
    output: Output,
    count: Annotated[int, typer.Option("--count", "-n", help="Networks to sample.", min=1)] = 100,
    steps: Annotated[int, typer.Option(help="Steps from an untrained network to a sample.", min=1)] = 32,
    method: Annotated[
        str | None,
        typer.Option(
            help="euler, midpoint, heun or rk4; heun if not given, and rk4 for --log-prob. Of Euclidean flows also "
            "dopri5, dopri8, bosh3 or adaptive_heun, which choose their own steps."
        ),
    ] = None,
    noise: Annotated[float, typer.Option(help="Deviation of a random move before each step.")] = 0.0,
    condition: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="What the flow is asked for, such as loss=0.1. Repeat it for more."),
    ] = None,
    guide: Annotated[str | None, typer.Option(help="A data set that networks should do well on.")] = None,
    strength: Annotated[
        float | None, typer.Option(help="How fast --guide leads down its loss, in speeds of the flow; 1 if not given.")
    ] = None,
    split: Annotated[
        int | None,
        typer.Option(help="Which standard split of a UCI set --guide is; that of the networks if not given."),
    ] = None,
    log_prob: Annotated[bool, typer.Option("--log-prob", help="Also the log density of each, as a label.")] = False,
    exact: Annotated[
        bool, typer.Option("--exact", help="Densities without an estimate: the work of a gradient for every weight.")
    ] = False,
    model: Annotated[
        str, typer.Option("--model", help="The model of the networks if the flow does not say it, or module:factory.")
    ] = "",
    width_of: Annotated[
        str, typer.Option(help="A model that differs from that of the flow in width: sample for it.")
    ] = "",
    args: ArgsOption = None,
    input: InputOption = None,
    work: Work = None,
    device: DeviceOption = "cpu",
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Generate networks, and write them as a population."""
    from coset.cli.flow_files import named
    from coset.cli.flow_sample import Request, run

    if model and width_of:
        raise CosetError("--model and --width-of both name the model of the samples: give one of them.")
    request = Request(
        file,
        named(width_of or model, args, input, device),
        count,
        output,
        bool(width_of),
        steps,
        method,
        noise,
        tuple(condition or ()),
        guide,
        strength,
        split,
        log_prob,
        exact,
        work,
        seed,
    )
    run(request, as_json=json)


@flow.command(
    epilog="Example: coset flow evaluate samples.safetensors --data mnist --against nets.safetensors"
    " --fresh fresh.safetensors"
)
def evaluate(
    samples: Annotated[Path, typer.Argument(help="Networks, as of `coset flow sample` or `coset flow collect`.")],
    data: Annotated[str, typer.Option(help="A data set, such as mnist: its test split.")],
    model: Known = "",
    against: Annotated[
        Path | None, typer.Option(help="The networks that the flow learned from, to see whether samples are new.")
    ] = None,
    fresh: Annotated[
        Path | None, typer.Option(help="Networks trained like those from another seed: as new as can be.")
    ] = None,
    count: Annotated[int, typer.Option(help="Networks of each file that are measured at most.", min=1)] = 512,
    pairs: Annotated[int, typer.Option(help="Pairs of networks whose barrier is measured at most.", min=1)] = 256,
    noise: Annotated[
        float | None,
        typer.Option(
            help="Standard deviation of the targets of a regression; that of the training, or 1, if not given."
        ),
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with the table and a picture: .html.")] = None,
    work: Work = None,
    split: SplitOption = None,
    args: ArgsOption = None,
    input: InputOption = None,
    device: DeviceOption = "cpu",
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Measure how good, how different and how new networks are."""
    from coset.cli.flow_evaluate import Request, run
    from coset.cli.flow_files import named

    net = named(model, args, input, device)
    run(Request(samples, net, data, split, against, fresh, count, pairs, noise, html, work, seed), as_json=json)


def _words(settings: list[str] | None, **short: object) -> tuple[str, ...]:
    """Options and --set as NAME=VALUE."""
    return (*(f"{name}={value}" for name, value in short.items() if value is not None), *(settings or ()))
