"""Networks on neural graphs: parameters, seconds a training step, and memory held for the gradient.

A step is forward, a squared loss over every weight, backward; on a CPU its seconds are those of one core. Held is what
the forward pass saves for the gradient, each storage counted once, without parameters.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Annotated

import torch
import typer
from torch import Tensor, nn

import coset
from coset.cli.options import DeviceOption
from coset.core import state as states
from coset.weightspace.graph import NeuralGraph, Wiring, neural_graph
from coset.weightspace.pna import PNA
from coset.weightspace.relational_transformer import RelationalTransformer
from coset.weightspace.unit_transformer import UnitTransformer
from coset.zoo import build, example_input

NETWORKS: dict[str, Callable[[Wiring], nn.Module]] = {
    "UnitTransformer, width 512, depth 8": UnitTransformer,
    "UnitTransformer, width 128, depth 4": lambda w: UnitTransformer(w, 128, 4),
    "RelationalTransformer, width 32": lambda w: RelationalTransformer(w, 32),
    "RelationalTransformer, width 64": RelationalTransformer,
    "RelationalTransformer, width 64, recompute": lambda w: RelationalTransformer(w, recompute=True),
    "PNA, width 64": PNA,
    "PNA, width 64, recompute": lambda w: PNA(w, recompute=True),
}


def main(
    model: Annotated[str, typer.Option(help="Of the networks that are read.")] = "mlp:784-10-10",
    batch: Annotated[int, typer.Option(help="How many of them at once.", min=1)] = 64,
    steps: Annotated[int, typer.Option(help="Whose median counts.", min=1)] = 3,
    device: DeviceOption = "cpu",
) -> None:
    """Measure each network on graphs and print a table."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = build(model)
    sym = coset.symmetry(net, example_input(net))
    shapes = {name: x.shape for name, x in states.of(net).items() if x.is_floating_point()}
    population = {name: torch.randn(batch, *shape, device=device) for name, shape in shapes.items()}
    graph = neural_graph(population, sym)
    machine = "one CPU core" if device == "cpu" else torch.cuda.get_device_name()
    print(f"{model}, batch {batch}, {machine}, torch {torch.__version__}\n")
    print("| network | parameters | seconds a step | MB held |\n| --- | ---: | ---: | ---: |")
    for name, make in NETWORKS.items():
        reader = make(graph.wiring).to(device)
        size = sum(p.numel() for p in reader.parameters())
        megabytes = saved_bytes(reader, graph) / 1e6
        seconds = statistics.median(step(reader, graph) for _ in range(steps))
        print(f"| {name} | {size:,} | {seconds:.2f} | {megabytes:,.0f} |", flush=True)


def loss(net: nn.Module, graph: NeuralGraph) -> Tensor:
    """The mean square of the update of all weights."""
    out: NeuralGraph = net(graph, torch.linspace(0, 1, graph.batch, device=next(net.parameters()).device))
    parts = [x.square().sum() for x in (*out.nodes.values(), *out.edges.values())]
    return torch.stack(parts).sum() / graph.batch


def saved_bytes(net: nn.Module, graph: NeuralGraph) -> int:
    """Bytes that the forward pass saves."""
    own = {p.untyped_storage().data_ptr() for p in net.parameters()}
    sizes: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in own:
            sizes[storage.data_ptr()] = storage.nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        value = loss(net, graph)
    total = sum(sizes.values())
    torch.autograd.backward(value)
    return total


def step(net: nn.Module, graph: NeuralGraph) -> float:
    """Seconds of a forward and a backward pass."""
    # Of a core that others use too, only the time of this process counts.
    clock = time.process_time if graph.edges[next(iter(graph.edges))].device.type == "cpu" else time.perf_counter
    start = clock()
    value = loss(net, graph)
    torch.autograd.backward(value)
    value.item()
    return clock() - start
