"""Alignment and merging of trained networks, the experiments of docs/merging.md: mnist, cifar10, ten and population.

mnist: two MLPs, and barriers by each method. cifar10: two ResNet20 of width 4 with batch norm, and the accuracy
halfway. ten: ten MLPs merged into one. population: 2000 small MLPs aligned to a reference.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

import coset
from bench.record import Out, device_name, report, versions
from coset import Solution, data, zoo
from coset.alignment.many import barycenter
from coset.cli.options import DeviceOption
from coset.core.errors import CosetError

MLP = "mlp:784-512-512-512-10"
RESNET = "resnet20:width=4"
SMALL = (784, 10, 10)


def main(
    experiment: Annotated[str, typer.Argument(help="mnist, cifar10, ten or population.")],
    device: DeviceOption = "cpu",
    epochs: Annotated[int | None, typer.Option(help="Fewer for a trial.", min=1)] = None,
    out: Out = None,
) -> None:
    """Run one experiment."""
    if experiment not in EXPERIMENTS:
        raise CosetError(f"There is no experiment {experiment!r}, only {', '.join(EXPERIMENTS)}.")
    start = time.perf_counter()
    record = EXPERIMENTS[experiment](device, epochs)
    record |= {
        "command": f"python -m bench merging {experiment} --device {device}"
        + (f" --epochs {epochs}" if epochs else ""),
        "seconds": time.perf_counter() - start,
        "device": device_name(device),
        "versions": versions(),
    }
    report(record, out)


def trained(
    spec: str, split: data.Split, method: coset.MAP, replicas: int, device: str
) -> tuple[torch.nn.Module, list[Solution]]:
    """Networks from independent seeds."""
    model = zoo.build(spec).to(device)

    def say(epoch: Any) -> None:
        if epoch.epoch % 10 == 0 or epoch.epoch == epoch.epochs:
            print(f"replica {epoch.replica} epoch {epoch.epoch}: {epoch.loss:.4f} {epoch.accuracy:.4f}", flush=True)

    return model, coset.fit(
        model, split, method, replicas=replicas, seed=0, device=device, progress=coset.on_epoch(say)
    )


def mnist(device: str, epochs: int | None) -> dict[str, Any]:
    """Naive and aligned barriers of two MLPs trained by SGD."""
    sets = data.load("mnist", device=device)
    method = coset.MAP(optimizer="sgd", rate=0.1, momentum=0.9, epochs=epochs or 30, batch_size=500)
    model, (a, b) = trained(MLP, sets.train, method, 2, device)
    sym = coset.symmetry(model, (sets.test.inputs[:8],))
    rows: dict[str, Any] = {}
    for name in ("not aligned", "weights", "activations", "sinkhorn"):
        start, aligned = time.perf_counter(), b
        if name != "not aligned":
            match = coset.align(a, b, sym, name, model, sets.train)
            aligned = sym.act(match.element, b)
        seconds = time.perf_counter() - start
        path = coset.geodesic(a, aligned)
        results = {split: coset.barrier(path, model, getattr(sets, split)) for split in ("test", "train")}
        rows[name] = {
            "test barrier": results["test"].height,
            "train barrier": results["train"].height,
            "loss": results["test"].loss,
            "accuracy": results["test"].accuracy,
            "seconds of alignment": seconds,
        }
        print(name, {k: v for k, v in rows[name].items() if not isinstance(v, tuple)}, flush=True)
    return {"model": MLP, "data": "mnist", "epochs": method.epochs, "paths": rows}


def cifar10(device: str, epochs: int | None) -> dict[str, Any]:
    """Halfway accuracy of two ResNets: naive, aligned, and with batch-norm statistics recomputed."""
    sets = data.load("cifar10", device=device)
    method = coset.MAP(
        optimizer="sgd", rate=0.2, momentum=0.9, weight_decay=5e-4, epochs=epochs or 40, batch_size=500,
        schedule="onecycle", augment=True, precision="bfloat16",
    )  # fmt: skip
    model, (a, b) = trained(RESNET, sets.train, method, 2, device)
    sym = coset.symmetry(model, (sets.test.inputs[:8],))
    statistics = data.Split(sets.train.inputs[:10000], sets.train.targets[:10000])
    rows: dict[str, Any] = {}
    for name in ("not aligned", "weights", "activations"):
        start, aligned = time.perf_counter(), b
        if name != "not aligned":
            aligned = sym.act(coset.align(a, b, sym, name, model, statistics).element, b)
        seconds = time.perf_counter() - start
        for repair in (None, statistics):
            loss = coset.barrier(coset.geodesic(a, aligned), model, sets.test, points=11, repair=repair)
            assert loss.accuracy is not None
            rows[name + (", repaired" if repair is not None else "")] = {
                "test barrier": loss.height,
                "halfway accuracy": loss.accuracy[5],
                "accuracy of the ends": [loss.accuracy[0], loss.accuracy[-1]],
                "accuracy": loss.accuracy,
                "loss": loss.loss,
                "seconds of alignment": seconds,
            }
        print(name, seconds, {k: v["halfway accuracy"] for k, v in rows.items()}, flush=True)
    return {"model": RESNET, "data": "cifar10", "epochs": method.epochs, "paths": rows}


def ten(device: str, epochs: int | None) -> dict[str, Any]:
    """Ten MLPs merged: star and joint alignment, repaired or not, beside the plain average."""
    sets = data.load("mnist", device=device)
    method = coset.MAP(optimizer="sgd", rate=0.1, momentum=0.9, epochs=epochs or 20, batch_size=500)
    model, ends = trained(MLP, sets.train, method, 10, device)
    sym = coset.symmetry(model, (sets.test.inputs[:8],))

    def accuracy(solution: Solution) -> float:
        share = coset.evaluate(solution, model, sets.test).accuracy
        assert share is not None  # the targets are classes
        return share

    accuracies: dict[str, Any] = {"average of the ends": sum(map(accuracy, ends)) / 10}
    accuracies["plain average"] = accuracy(barycenter(ends))
    for name, reference in (("star", 0), ("joint", None)):
        match = coset.align_many(ends, sym, reference)
        aligned = [sym.act(element, one) for one, element in zip(ends, match.elements, strict=True)]
        merged = coset.merge(ends, sym, model=model, data=sets.train, reference=reference)
        around = sym.identity()
        for i in range(10):
            around = match.between(i, (i + 1) % 10) @ around
        accuracies[name] = {
            "merged": accuracy(barycenter(aligned)),
            "merged and repaired": accuracy(merged),
            "objective": match.objective,
            "seconds": match.seconds,
            "cycle is the identity": all(
                torch.equal(around[group.name].cpu(), torch.arange(group.size)) for group in sym.groups
            ),
        }
        print(name, accuracies[name], flush=True)
    return {"model": MLP, "data": "mnist", "epochs": method.epochs, **accuracies}


def population(device: str, epochs: int | None) -> dict[str, Any]:
    """2000 MLPs 784-10-10, trained together for a while, aligned to the first in one call."""
    sets = data.load("mnist", flatten=True)
    states = _small_networks(2000, sets.train, 200)
    model = zoo.build("mlp:" + "-".join(map(str, SMALL)))
    sym = coset.symmetry(model, (sets.test.inputs[:8],))
    match = coset.align_many(states, sym, 0)
    before, after = (_distance(s) for s in (states, sym.act(match.element, states)))
    return {
        "networks": 2000,
        "seconds of alignment": match.seconds,
        "sweeps": match.sweeps,
        "mean distance to the reference before": before,
        "mean distance to the reference after": after,
    }


def _distance(states: dict[str, Tensor]) -> float:
    squares = sum((x[1:] - x[:1]).flatten(1).square().sum(1) for x in states.values())
    assert isinstance(squares, Tensor)
    return float(squares.sqrt().mean())


def _small_networks(count: int, split: data.Split, steps: int) -> dict[str, Tensor]:
    """Networks trained by SGD on shared minibatches, from different initialisations."""
    generator = torch.Generator().manual_seed(0)
    layers = list(zip(SMALL[1:], SMALL[:-1], strict=True))
    states: dict[str, Tensor] = {}
    for k, (out, size) in enumerate(layers):
        states[f"layers.{k}.weight"] = torch.randn(count, out, size, generator=generator) / size**0.5
        states[f"layers.{k}.bias"] = torch.zeros(count, out)
    for x in states.values():
        x.requires_grad_(True)
    optimizer = torch.optim.SGD(states.values(), lr=0.1, momentum=0.9)
    for inputs, targets in itertools.islice(split.minibatches(64, generator), steps):
        h = torch.relu(inputs @ states["layers.0.weight"].mT + states["layers.0.bias"][:, None])
        logits = h @ states["layers.1.weight"].mT + states["layers.1.bias"][:, None]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.repeat(count)) * count
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return {name: x.detach() for name, x in states.items()}


EXPERIMENTS: dict[str, Callable[[str, int | None], dict[str, Any]]] = {
    "mnist": mnist,
    "cifar10": cifar10,
    "ten": ten,
    "population": population,
}
