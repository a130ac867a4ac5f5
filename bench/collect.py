"""Many small networks trained at once: seconds of a step of one network, and what the device allows.

collect: as `coset.collect` trains. compiled: the same with compile=True, on CUDA. all at once: not in groups. bmm: each
network multiplies the inputs by itself, as `vmap` does by itself. one by one: torch.optim.SGD on one network. Inputs
are random. On a CPU, seconds are those of one core.

The limits are for a whole step: what must be moved (weights read twice and written, gradients written and read,
velocities read and written) over the rate of a copy measured here, and the products (forward, and for the gradients of
the weights and, from the second layer on, of the inputs) over the rate of a large product measured here.

--order measures how alike the order of the minibatches makes networks of one chunk, on the digits: the share of the
variance that lies between chunks, (B - W) / (B + (k - 1) W) with the mean squares B between and W within chunks of k.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal
from unittest.mock import patch

import torch
import typer
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from bench.hardware import copy_speed, product_speed
from bench.record import versions
from coset import data, zoo
from coset.cli.options import DeviceOption
from coset.core import state as states
from coset.core.errors import CosetError
from coset.core.files import write_json
from coset.core.functional import matmul_precision
from coset.data import Split
from coset.populations import chunk as collecting_chunk
from coset.populations.chunk import Chunk, Collect, per_example
from coset.populations.collect import collect
from coset.populations.population_outputs import outputs_of_all
from coset.solutions.likelihood import Classification

CLASSES, REPEATS = 10, 5
CHUNKS, CHUNK = 16, 32  # of --order


@dataclass(frozen=True)
class Workload:
    """How many networks of a model take how many steps, on batches of `batch`."""

    model: str
    networks: int
    batch: int
    steps: int
    device: str
    precision: Literal["float32", "tf32"]


def main(
    model: Annotated[str, typer.Option(help="Of the zoo, or module:factory.")] = "mlp:784-10-10",
    networks: Annotated[int, typer.Option(min=1)] = 512,
    batch: Annotated[int, typer.Option(min=1)] = 128,
    steps: Annotated[int, typer.Option(help="Of an epoch.", min=1)] = 20,
    device: DeviceOption = "cpu",
    precision: Annotated[str, typer.Option(help="float32 or tf32.")] = "float32",
    order: Annotated[bool, typer.Option("--order", help="What networks of a chunk have in common.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write the record as JSON.")] = None,
) -> None:
    """Measure, print a table, and write it."""
    if precision not in ("float32", "tf32"):
        raise CosetError(f"--precision must be float32 or tf32, not {precision!r}.")
    torch.set_num_threads(1)
    workload = Workload(model, networks, batch, steps, device, "tf32" if precision == "tf32" else "float32")
    record = in_common() if order else seconds_of_steps(workload)
    if json is not None:
        write_json(json, record)


def seconds_of_steps(options: Workload) -> dict[str, Any]:
    """Seconds, and a table of them."""
    with matmul_precision(options.precision):
        record = measure(options)
    print(f"{options.model}, {options.networks} networks, batches of {options.batch}, {record['device']}\n")
    print("| | seconds of a step | of a step of one network |\n| --- | ---: | ---: |")
    for name, seconds in record["seconds"].items():
        alone = "" if name == "one by one" else f"{seconds:.2e}"
        print(f"| {name} | {alone} | {record['seconds of one network'][name]:.2e} |")
    return record


def measure(options: Workload) -> dict[str, Any]:
    """All figures."""
    device, n = torch.device(options.device), options.networks
    torch.manual_seed(0)
    net = zoo.build(options.model).to(device)
    (example,) = zoo.example_input(net)
    size = options.batch * options.steps
    inputs = torch.randn(size, *example.shape[1:], device=device)
    split = Split(inputs, torch.randint(CLASSES, (size,), device=device))
    settings = Collect(epochs=REPEATS + 1, batch_size=options.batch, rate=1e-3, precision=options.precision)
    starts = {name: x + 0.01 * torch.randn(n, *x.shape, device=device) for name, x in states.of(net).items()}
    weights = sum(x.numel() * x.element_size() for x in starts.values())
    flops = products(net, {name: x[:2] for name, x in starts.items()}, inputs[: options.batch]) / 2 * n
    bandwidth, rate = copy_speed(device), product_speed(device, options.precision)
    bmm = patch.object(collecting_chunk, "outputs_of_all", unfolded)
    all_at_once = patch.object(collecting_chunk, "group_size", lambda *_: n)
    seconds = {"collect": together(settings, net, starts, split)}
    if device.type == "cuda":
        seconds["compiled"] = together(replace(settings, compile=True), net, starts, split)
    seconds |= {
        "all at once": together(settings, net, starts, split, all_at_once),
        "bmm": together(settings, net, starts, split, bmm),
        "one by one": alone(settings, net, split),
        "limit: memory": 7 * weights / bandwidth,
        "limit: products": flops / rate,
    }
    return {
        "command": "python -m bench collect",
        "model": options.model, "networks": n, "batch": options.batch, "precision": options.precision,
        "seconds": seconds,
        "seconds of one network": {name: t if name == "one by one" else t / n for name, t in seconds.items()},
        "bytes moved": 7 * weights, "bytes a second": bandwidth,
        "flops": flops, "flops a second": rate,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "one CPU core",
        "versions": versions(),
    }  # fmt: skip


def together(
    settings: Collect,
    net: nn.Module,
    starts: dict[str, Tensor],
    split: Split,
    change: AbstractContextManager[Any] | None = None,
) -> float:
    """Seconds of a step of all networks, with what is changed."""
    generator = torch.Generator(split.inputs.device).manual_seed(0)
    with change or nullcontext():
        chunk = Chunk(settings, net, starts, split, generator)
        return timed(chunk.epoch, split.inputs.device) / chunk.steps


def unfolded(model: nn.Module, population: dict[str, Tensor], inputs: Tensor) -> Tensor:
    """`outputs_of_all` as `vmap` does it by itself."""
    outputs: Tensor = torch.vmap(lambda state: functional_call(model, state, (inputs,)))(population)
    return outputs


def alone(settings: Collect, net: nn.Module, split: Split) -> float:
    """Seconds of a step of one network."""
    optimizer = torch.optim.SGD(net.parameters(), 1e-3, settings.momentum, weight_decay=settings.weight_decay)
    batches = list(split.minibatches(settings.batch_size, shuffle=False))

    def epoch() -> None:
        for inputs, targets in batches:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(inputs), targets)
            torch.autograd.backward(loss)
            optimizer.step()

    return timed(epoch, split.inputs.device) / len(batches)


def products(net: nn.Module, population: dict[str, Tensor], inputs: Tensor) -> int:
    """Floating operations of the products of a step."""
    weights = {name: x.clone().requires_grad_() for name, x in population.items()}
    with FlopCounterMode(display=False) as count:
        outputs = outputs_of_all(net, weights, inputs)
        torch.autograd.grad(outputs.sum(), list(weights.values()))
    return int(count.get_total_flops())


def in_common() -> dict[str, Any]:
    """Shares of variances that lie between chunks, and a table of them."""
    digits, net = data.load("digits"), zoo.build("mlp:64-16-10")
    rows = []
    print("| epochs | schedule | accuracy | training loss | outputs | log p of the target |")
    print("| ---: | --- | ---: | ---: | ---: | ---: |")
    for epochs in (5, 20):
        for schedule in ("cosine", "constant"):
            settings = Collect(epochs=epochs, batch_size=32, schedule=schedule, chunk=CHUNK)
            population = collect(net, digits.train, CHUNKS * CHUNK, settings)
            outputs = outputs_of_all(net, population.states, digits.test.inputs)
            logs = -per_example(Classification(), outputs, digits.test.targets, torch.ones(()))
            shares = [between(x) for x in (population.labels["loss"], outputs, logs)]
            accuracy = float(population.labels["accuracy"].mean())
            rows.append({"epochs": epochs, "schedule": schedule, "accuracy": accuracy})
            rows[-1] |= dict(zip(("loss", "outputs", "log p"), shares, strict=True))
            texts = " | ".join(f"{share:.3f}" for share in shares)
            print(f"| {epochs} | {schedule} | {accuracy:.3f} | {texts} |", flush=True)
    return {"command": "python -m bench collect --order", "chunks": CHUNKS, "chunk": CHUNK, "rows": rows}


def between(x: Tensor) -> float:
    """The share of the variance of (chunks * k, ...) that lies between chunks, all entries together."""
    parts = x.detach().double().reshape(CHUNKS, CHUNK, -1)
    mean_squares, within = CHUNK * parts.mean(1).var(0), parts.var(1).mean(0)
    return float((mean_squares - within).sum() / (mean_squares + (CHUNK - 1) * within).sum())


def timed(act: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call, the median of several after a first one."""
    # Of a core that others use too, only the time of this process counts.
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    seconds = []
    for _ in range(REPEATS + 1):
        start = clock()
        act()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(clock() - start)
    return statistics.median(seconds[1:])
