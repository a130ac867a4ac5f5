"""Many small networks trained at once: seconds of a step of one network, and what the device allows.

python bench/collect.py [--model mlp:784-10-10] [--networks 512] [--batch 128] [--steps 20] [--device cuda]
                        [--precision tf32] [--json F.json]
python bench/collect.py --order [--json F.json]

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

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

import coset
from coset import data, zoo
from coset.core import state as states
from coset.core.device import matmul_precision
from coset.data import Split
from coset.populations import chunk as collecting_chunk
from coset.populations.chunk import Chunk, Collect, per_example
from coset.populations.collect import collect
from coset.populations.shared_inputs import outputs_of_all
from coset.solutions.likelihood import Classification

CLASSES, REPEATS = 10, 5
CHUNKS, CHUNK = 16, 32  # of --order
COPIED = 2**28  # bytes of the copy that is timed
WIDTH = {"cpu": 2048, "cuda": 8192}  # of the product that is timed


def main() -> None:
    """Measure, print a table, and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mlp:784-10-10")
    parser.add_argument("--networks", type=int, default=512)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="float32", choices=["float32", "tf32"])
    parser.add_argument("--order", action="store_true", help="what networks of a chunk have in common")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    record = in_common() if options.order else steps(options)
    if options.json is not None:
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def steps(options: Any) -> dict[str, Any]:
    """Seconds, and a table of them."""
    with matmul_precision(options.precision):
        record = measured(options)
    print(f"{options.model}, {options.networks} networks, batches of {options.batch}, {record['device']}\n")
    print("| | seconds of a step | of a step of one network |\n| --- | ---: | ---: |")
    for name, seconds in record["seconds"].items():
        alone = "" if name == "one by one" else f"{seconds:.2e}"
        print(f"| {name} | {alone} | {record['seconds of one network'][name]:.2e} |")
    return record


def measured(options: Any) -> dict[str, Any]:
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
    bandwidth, rate = copying(device), multiplying(device)
    bmm = patch.object(collecting_chunk, "outputs_of_all", unfolded)
    all_at_once = patch.object(collecting_chunk, "group_size", lambda *_: n)
    found = {"collect": together(settings, net, starts, split)}
    if device.type == "cuda":
        found["compiled"] = together(replace(settings, compile=True), net, starts, split)
    found |= {
        "all at once": together(settings, net, starts, split, all_at_once),
        "bmm": together(settings, net, starts, split, bmm),
        "one by one": alone(settings, net, split),
        "limit: memory": 7 * weights / bandwidth,
        "limit: products": flops / rate,
    }
    return {
        "command": "python bench/collect.py",
        "model": options.model, "networks": n, "batch": options.batch, "precision": options.precision,
        "seconds": found,
        "seconds of one network": {name: t if name == "one by one" else t / n for name, t in found.items()},
        "bytes moved": 7 * weights, "bytes a second": bandwidth,
        "flops": flops, "flops a second": rate,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "one CPU core",
        "versions": {"coset": coset.__version__, "torch": torch.__version__, "python": platform.python_version()},
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
    found: Tensor = torch.vmap(lambda state: functional_call(model, state, (inputs,)))(population)
    return found


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
    given = {name: x.clone().requires_grad_() for name, x in population.items()}
    with FlopCounterMode(display=False) as count:
        outputs = outputs_of_all(net, given, inputs)
        torch.autograd.grad(outputs.sum(), list(given.values()))
    return int(count.get_total_flops())


def copying(device: torch.device) -> float:
    """Bytes a second that are read and written by a copy."""
    a, b = torch.zeros(2, COPIED // 4, device=device)
    return 2 * COPIED / timed(lambda: a.copy_(b), device)


def multiplying(device: torch.device) -> float:
    """Floating operations a second of a large product."""
    width = WIDTH[device.type]
    a, b = torch.randn(2, width, width, device=device)
    return 2 * width**3 / timed(lambda: a @ b, device)


def in_common() -> dict[str, Any]:
    """Shares of variances that lie between chunks, and a table of them."""
    digits, net = data.load("digits"), zoo.build("mlp:64-16-10")
    rows = []
    print("| epochs | schedule | accuracy | training loss | outputs | log p of the target |")
    print("| ---: | --- | ---: | ---: | ---: | ---: |")
    for epochs in (5, 20):
        for schedule in ("cosine", "constant"):
            settings = Collect(epochs=epochs, batch_size=32, schedule=schedule, chunk=CHUNK)
            found = collect(net, digits.train, CHUNKS * CHUNK, settings)
            outputs = outputs_of_all(net, found.states, digits.test.inputs)
            logs = -per_example(Classification(), outputs, digits.test.targets, torch.ones(()))
            shares = [between(x) for x in (found.labels["loss"], outputs, logs)]
            rows.append({"epochs": epochs, "schedule": schedule, "accuracy": float(found.labels["accuracy"].mean())})
            rows[-1] |= dict(zip(("loss", "outputs", "log p"), shares, strict=True))
            texts = " | ".join(f"{share:.3f}" for share in shares)
            print(f"| {epochs} | {schedule} | {rows[-1]['accuracy']:.3f} | {texts} |", flush=True)
    return {"command": "python bench/collect.py --order", "chunks": CHUNKS, "chunk": CHUNK, "rows": rows}


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


if __name__ == "__main__":
    main()
