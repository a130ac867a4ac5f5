"""How fast is learning a curve? coset beside ordinary training, and beside curve layers in eager torch.

The images are noise: a step takes as long. On CUDA if there is one, else on one thread of the CPU.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from bench import process
from bench.curve_layers import CurveNet
from bench.hardware import copy_speed, default_device, device_name, now, prepare, product_speed
from bench.measurement import Measurement, machine
from coset import MAP, PGD, Adversarial, Connect, Epoch, Method, find_curve, fit, on_epoch, zoo
from coset.core import capture, state
from coset.data import Split
from coset.training.initialise import fresh

LIMIT = 600.0  # seconds for one row
BATCH = 128
STEPS = {"cuda": 40, "cpu": 4}  # of an epoch
EPOCHS = 6  # of which the first, with warm-up and capture, is not counted
RATE, MOMENTUM, DECAY = 0.01, 0.9, 5e-4
ATTACK = PGD(steps=7, low=None, high=None)
# The interpolation reads both ends and the control point and writes the weights; backwards it reads a gradient and
# writes one. Each number has four bytes.
BYTES = 4 * (3 + 1 + 1 + 1)
KEYS = ("ms a step", "of training", "times coset", "peak MiB", "GFLOP", "arithmetic", "interpolation")
NOTES = (
    "Batches of 128 in float32, SGD with momentum and weight decay; the fastest epoch but the first, in CPU seconds on "
    "a CPU. A curve is a quadratic Bezier curve with fixed ends, seen at one t a step; attacks are PGD of seven steps.",
    "coset: MAP, Adversarial and find_curve. On CUDA their steps are captured, unless the note says why not.",
    "eager torch: the module and torch.optim.SGD; for a curve, layers that hold three sets of weights and mix them in "
    "each call, as in Garipov et al. (2018).",
    "of training: over coset's training step, attacked or not as this one. times coset: over coset's step of the task.",
    "arithmetic: GFLOP of the network at the speed of a large matrix product, in tf32 on CUDA as convolutions are, "
    "over the step. interpolation: 24 bytes a parameter at the speed of a large copy, over the step.",
    "peak MiB: what torch allocated on CUDA; else all of the process of a row, of which some 300 are torch itself.",
)


@dataclass(frozen=True)
class CurveCase:
    """A network, the shape of an input, the devices it is measured on, and whether also under attack.

    An attack takes eight times as long, which is much for large networks in eager torch.
    """

    model: str
    shape: tuple[int, ...]
    devices: tuple[str, ...]
    attacked: bool = True


CASES = {
    "MLP 784-512x3-10": CurveCase("mlp:784-512-512-512-10", (784,), ("cpu",)),
    "TinyTen": CurveCase("tinyten", (3, 32, 32), ("cpu", "cuda")),
    "ResNet32": CurveCase("resnet32", (3, 32, 32), ("cuda",), attacked=False),
    "GoogLeNet": CurveCase("googlenet", (3, 32, 32), ("cuda",), attacked=False),
}


@dataclass(frozen=True)
class CurveTask:
    """What a step learns, a network or a curve, and what happens to its inputs before."""

    curve: bool
    attack: PGD | None


TASKS = {
    "training": CurveTask(False, None),
    "curve": CurveTask(True, None),
    "training, attacked": CurveTask(False, ATTACK),
    "curve, attacked": CurveTask(True, ATTACK),
}


def run(seed: int, say: Callable[[str], None]) -> Measurement:
    """One row for each network, task and tool."""
    device = default_device()
    bandwidth, speed = copy_speed(device), product_speed(device, "tf32")
    rows: list[dict[str, Any]] = []
    for name, case in CASES.items():
        if device.type not in case.devices:
            continue
        parameters = sum(p.numel() for p in zoo.build(case.model).parameters())
        for task in [task for task in TASKS if case.attacked or TASKS[task].attack is None]:
            operations = flop(case, TASKS[task].attack)
            for tool in TOOLS:
                say(f"{task} by {tool} on {name}")
                arguments = {"tool": tool, "name": name, "task": task, "seed": seed}
                row: dict[str, Any] = {"network": name, "task": task, "tool": tool}
                row |= process.measure_apart(measure, arguments, KEYS, LIMIT)
                step = row["ms a step"]
                rows.append(row)
                row["of training"] = _over(step, _step(rows, name, task.replace("curve", "training"), "coset"))
                row["times coset"] = _over(step, _step(rows, name, task, "coset"))
                row["GFLOP"] = operations / 1e9
                row["arithmetic"] = _over(1e3 * operations / speed, step)
                if TASKS[task].curve:
                    row["interpolation"] = _over(1e3 * BYTES * parameters / bandwidth, step)
    limits = {"copy GB/s": round(bandwidth / 1e9, 1), "product GFLOP/s": round(speed / 1e9, 1)}
    return Measurement(
        title="Milliseconds of a step along a curve",
        rows=rows,
        notes=NOTES,
        machine=machine("torch") | {"device": device_name()} | limits,
    )


def measure(tool: str, name: str, task: str, seed: int) -> dict[str, Any]:
    """Milliseconds of a step, why it is not captured where it could be, and on CUDA the peak memory."""
    device, case = default_device(), CASES[name]
    prepare(device, seed)
    model = zoo.build(case.model)
    steps = STEPS[device.type]
    split = Split(torch.randn(steps * BATCH, *case.shape), torch.randint(10, (steps * BATCH,))).to(device)
    with _complaints() as messages:
        seconds = TOOLS[tool](model, split, TASKS[task])
    row: dict[str, Any] = {"ms a step": 1e3 * seconds / steps, "note": "; ".join(messages) or None}
    if device.type == "cuda":
        row["peak MiB"] = torch.cuda.max_memory_allocated() / 2**20
    return row


def by_coset(model: nn.Module, split: Split, task: CurveTask) -> float:
    """Seconds of the fastest epoch of `find_curve` or `fit`."""
    device = split.inputs.device
    ends: list[float] = []

    def note(epoch: Epoch) -> None:
        ends.append(now(device))

    if task.curve:
        settings = Connect("sgd", RATE, MOMENTUM, EPOCHS, BATCH, weight_decay=DECAY, attack=task.attack)
        first, last = (state.of(fresh(model)) for _ in range(2))
        find_curve(first, last, model, split, align=False, method=settings, device=device, progress=on_epoch(note))
    else:
        fit(model, split, _training(task.attack), device=device, progress=on_epoch(note))
    return min(end - start for start, end in pairwise(ends))


def _training(attack: PGD | None) -> Method:
    if attack is None:
        return MAP("sgd", RATE, MOMENTUM, EPOCHS, BATCH, weight_decay=DECAY)
    return Adversarial("sgd", RATE, MOMENTUM, EPOCHS, BATCH, weight_decay=DECAY, attack=attack)


def by_torch(model: nn.Module, split: Split, task: CurveTask) -> float:
    """Seconds of the fastest epoch of a loop in eager torch."""
    device = split.inputs.device
    step = eager(model, task, device)
    generator = torch.Generator(device).manual_seed(0)
    ends = []
    for _ in range(EPOCHS):
        for inputs, targets in split.minibatches(BATCH, generator, drop_last=True):
            step(inputs, targets)
        ends.append(now(device))
    return min(end - start for start, end in pairwise(ends))


TOOLS: dict[str, Callable[[nn.Module, Split, CurveTask], float]] = {"coset": by_coset, "eager torch": by_torch}


def eager(model: nn.Module, task: CurveTask, device: torch.device) -> Callable[[Tensor, Tensor], None]:
    """A step of the loop that one writes first, (inputs, targets) -> None."""
    net: nn.Module = CurveNet([fresh(model) for _ in range(3)]) if task.curve else fresh(model)
    net = net.to(device).train()
    # The weights on a curve are no parameters of the optimizer, so their decay is a part of the loss.
    parameters = [p for p in net.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, RATE, MOMENTUM, weight_decay=0.0 if task.curve else DECAY)

    def step(inputs: Tensor, targets: Tensor) -> None:
        point = (torch.rand((), device=device),) if task.curve else ()

        def loss(x: Tensor) -> Tensor:
            return F.cross_entropy(net(x, *point), targets)

        if task.attack is not None:
            inputs = _attack(task.attack, loss, inputs)
        optimizer.zero_grad()
        total = loss(inputs)
        if isinstance(net, CurveNet):
            total = total + DECAY / 2 * net.squares()
        torch.autograd.backward(total)
        optimizer.step()

    return step


def _attack(attack: PGD, loss: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
    x = inputs + attack.epsilon * (2 * torch.rand_like(inputs) - 1)
    for _ in range(attack.steps):
        x.requires_grad_()
        (gradient,) = torch.autograd.grad(loss(x), x)
        x = x.detach() + attack.step * gradient.sign()
        x = torch.clamp(x, inputs - attack.epsilon, inputs + attack.epsilon)
    return x


def flop(case: CurveCase, attack: PGD | None) -> int:
    """Floating-point operations of the convolutions and matrix products of a step, forwards and backwards."""
    model = zoo.build(case.model)
    few = torch.randn(2, *case.shape)
    operations = _operations(model, few)
    if attack is not None:  # its gradients are those of the inputs only
        operations += attack.steps * _operations(model.requires_grad_(False), few.requires_grad_())
    return operations * BATCH // len(few)


def _operations(model: nn.Module, inputs: Tensor) -> int:
    with FlopCounterMode(display=False) as counter:
        torch.autograd.backward(model(inputs).sum())
    return int(counter.get_total_flops())


@contextmanager
def _complaints() -> Iterator[list[str]]:
    """What is said about steps that could not be captured."""
    messages: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    listener, level = Listener(), capture.log.level
    capture.log.addHandler(listener)
    capture.log.setLevel(logging.INFO)
    try:
        yield messages
    finally:
        capture.log.removeHandler(listener)
        capture.log.setLevel(level)


def _step(rows: list[dict[str, Any]], name: str, task: str, tool: str) -> float | None:
    same = (row for row in rows if (row["network"], row["task"], row["tool"]) == (name, task, tool))
    step: float | None = next(same)["ms a step"]
    return step


def _over(a: float | None, b: float | None) -> float | None:
    return a / b if a is not None and b is not None else None
