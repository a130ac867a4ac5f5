"""How fast is variational training? coset.fit beside a plain loop in torch, on images like MNIST's and CIFAR-10's.

The images are noise: a step takes as long. On CUDA if there is one, else on the CPU.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from bench import process
from bench.hardware import default_device, device_name, wait
from bench.measurement import Measurement, installed, machine
from coset import VI, Epoch, fit, on_epoch, zoo
from coset.data import Split
from coset.training.initialise import fresh

LIMIT = 600.0  # seconds for one tool on one network
BATCH = 500
EPOCHS = 4  # of which the first, with warm-up and capture, is not counted
NOTES = (
    "Mean-field VI, SGD with momentum, batches of 500 examples, one sample a step; seconds of the whole training of "
    "all networks, from the median epoch.",
    "plain torch: a mean and a deviation a tensor, functional_call and torch.optim, network after network.",
    "bayesian-torch: dnn_to_bnn with reparameterized layers, network after network.",
)


@dataclass(frozen=True)
class TrainingCase:
    """A network with data: `examples` an epoch, and how long a training is."""

    model: str
    shape: tuple[int, ...]
    examples: int
    replicas: int
    epochs: int
    settings: VI


CASES = {
    "MLP 784-512x3-10, two networks": TrainingCase(
        "mlp:784-512-512-512-10", (784,), 60_000, 2, 300, VI("sgd", 0.06, batch_size=BATCH, epochs=EPOCHS)
    ),
    "the same, tf32": TrainingCase(
        "mlp:784-512-512-512-10",
        (784,),
        60_000,
        2,
        300,
        VI("sgd", 0.06, batch_size=BATCH, epochs=EPOCHS, precision="tf32"),
    ),
    "ResNet20 FRN, bfloat16": TrainingCase(
        "resnet20:norm=frn",
        (3, 32, 32),
        50_000,
        1,
        1,
        VI("sgd", 0.05, batch_size=BATCH, epochs=EPOCHS, precision="bfloat16"),
    ),
    "the same, compiled": TrainingCase(
        "resnet20:norm=frn",
        (3, 32, 32),
        50_000,
        1,
        1,
        VI("sgd", 0.05, batch_size=BATCH, epochs=EPOCHS, precision="bfloat16", compile=True),
    ),
}


def run(seed: int, say: Callable[[str], None]) -> Measurement:
    """One row for each network and tool, each measured in a process of its own."""
    rows: list[dict[str, Any]] = []
    for name in CASES:
        for tool in TOOLS:
            say(f"{tool} on {name}")
            rows.append({"network": name, "tool": tool} | _measure(tool, name, seed))
        ours = next(row for row in rows if row["network"] == name and row["tool"] == "coset")
        for row in rows:
            if row["network"] == name and row["ms a step"] and ours["ms a step"]:
                row["times coset"] = row["ms a step"] / ours["ms a step"]
    where = machine("torch", "bayesian-torch") | {"device": device_name()}
    return Measurement("Seconds of variational training", rows, NOTES, where)


def _measure(tool: str, name: str, seed: int) -> dict[str, Any]:
    keys = ("epochs", "seconds", "ms a step", "times coset", "peak MiB")
    if tool == "bayesian-torch" and installed(tool) is None:
        return {**dict.fromkeys(keys), "note": "not installed"}
    if tool != "coset" and CASES[name].settings.compile:
        return {**dict.fromkeys(keys), "note": "as above"}
    return process.measure_apart(measure, {"tool": tool, "name": name, "seed": seed}, keys, LIMIT)


def measure(tool: str, name: str, seed: int) -> dict[str, Any]:
    """Seconds of a few steps, as those of a training."""
    device = default_device()
    few = 40 if device.type == "cuda" else 10 if CASES[name].shape == (784,) else 1
    case = replace(CASES[name], examples=few * BATCH)
    torch.manual_seed(seed)
    model = zoo.build(case.model)
    inputs = torch.randn(case.examples, *case.shape, device=device)
    split = Split(inputs, torch.randint(10, (case.examples,), device=device))
    steps = case.examples // BATCH
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds = TOOLS[tool](model, split, case)
    full = CASES[name].examples // BATCH
    row = {"epochs": case.epochs, "seconds": seconds / steps * full * case.epochs, "ms a step": 1e3 * seconds / steps}
    if device.type == "cuda":
        row["peak MiB"] = torch.cuda.max_memory_allocated() / 2**20
    return row


def by_coset(model: nn.Module, split: Split, case: TrainingCase) -> float:
    """The median epoch of coset.fit."""
    seconds: list[float] = []

    def note(epoch: Epoch) -> None:
        if epoch.replica == 0:
            seconds.append(epoch.seconds)

    fit(model, split, case.settings, replicas=case.replicas, device=split.inputs.device, progress=on_epoch(note))
    return statistics.median_high(seconds[1:])


def by_plain(model: nn.Module, split: Split, case: TrainingCase) -> float:
    """The median epoch of the loop that one writes first, for as many networks."""
    prepared = _prepared(model, split)
    return case.replicas * _median(lambda: _plain_epoch(split, case, *prepared))


def by_bayesian_torch(model: nn.Module, split: Split, case: TrainingCase) -> float:
    """The median epoch of a network whose layers bayesian-torch has replaced."""
    from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn, get_kl_loss

    net = fresh(model)
    prior = {"prior_mu": 0.0, "prior_sigma": 1.0, "posterior_mu_init": 0.0, "posterior_rho_init": -4.6}
    dnn_to_bnn(net, {**prior, "type": "Reparameterization", "moped_enable": False, "moped_delta": 0.5})
    net = net.to(split.inputs.device)
    optimizer = torch.optim.SGD(net.parameters(), 0.01, 0.9)
    generator = torch.Generator(split.inputs.device).manual_seed(0)

    def epoch() -> None:
        for inputs, targets in split.minibatches(BATCH, generator, drop_last=True):
            optimizer.zero_grad()
            with _autocast(split, case):
                logits = net(inputs)
            loss = F.cross_entropy(logits.float(), targets) + get_kl_loss(net) / len(split)
            torch.autograd.backward(loss)
            optimizer.step()

    return case.replicas * _median(epoch)


TOOLS: dict[str, Callable[[nn.Module, Split, TrainingCase], float]] = {
    "coset": by_coset,
    "plain torch": by_plain,
    "bayesian-torch": by_bayesian_torch,
}


def _prepared(model: nn.Module, split: Split) -> tuple[Any, ...]:
    net = fresh(model).to(split.inputs.device)
    mean = {name: p.detach().clone().requires_grad_() for name, p in net.named_parameters()}
    rho = {name: torch.full_like(p, math.log(math.expm1(0.01))).requires_grad_() for name, p in mean.items()}
    optimizer = torch.optim.SGD([*mean.values(), *rho.values()], 0.01, 0.9)
    return net, mean, rho, optimizer


def _plain_epoch(
    split: Split,
    case: TrainingCase,
    model: nn.Module,
    mean: dict[str, Tensor],
    rho: dict[str, Tensor],
    optimizer: torch.optim.Optimizer,
) -> None:
    torch.set_float32_matmul_precision("high" if case.settings.precision == "tf32" else "highest")
    generator = torch.Generator(split.inputs.device).manual_seed(0)
    v = case.settings.prior_variance
    for inputs, targets in split.minibatches(BATCH, generator, drop_last=True):
        std = {name: F.softplus(r) for name, r in rho.items()}
        weights = {name: m + std[name] * torch.randn_like(m) for name, m in mean.items()}
        with _autocast(split, case):
            logits = functional_call(model, weights, (inputs,))
        kl = sum(
            (((s.square() + mean[name].square()) / v - 1) / 2 - s.log() + math.log(v) / 2).sum()
            for name, s in std.items()
        )
        loss = F.cross_entropy(logits.float(), targets) + kl / len(split)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()


def _autocast(split: Split, case: TrainingCase) -> torch.autocast:
    enabled = case.settings.precision == "bfloat16"
    return torch.autocast(split.inputs.device.type, torch.bfloat16, enabled=enabled)


def _median(epoch: Callable[[], None]) -> float:
    seconds = []
    for _ in range(EPOCHS):
        wait()
        start = time.perf_counter()
        epoch()
        wait()
        seconds.append(time.perf_counter() - start)
    return statistics.median_high(seconds[1:])
