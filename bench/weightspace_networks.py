"""Networks on neural graphs: parameters, seconds a training step, and memory held for the gradient.

python bench/weightspace_networks.py [--model mlp:784-10-10] [--batch 64] [--steps 3] [--device cuda]

A step is forward, a squared loss over every weight, backward; on a CPU its seconds are those of one core. Held is what
the forward pass saves for the gradient, each storage counted once, without parameters.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import coset
from coset.core import state as states
from coset.weightspace.graph import NeuralGraph, Wiring, neural_graph
from coset.weightspace.pna import PNA
from coset.weightspace.relational import RelationalTransformer
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


def main() -> None:
    """Measure each network and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mlp:784-10-10")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = build(options.model)
    sym = coset.symmetry(model, example_input(model))
    shapes = {name: x.shape for name, x in states.of(model).items() if x.is_floating_point()}
    population = {name: torch.randn(options.batch, *shape, device=options.device) for name, shape in shapes.items()}
    graph = neural_graph(population, sym)
    device = "one CPU core" if options.device == "cpu" else torch.cuda.get_device_name()
    print(f"{options.model}, batch {options.batch}, {device}, torch {torch.__version__}\n")
    print("| network | parameters | seconds a step | MB held |\n| --- | ---: | ---: | ---: |")
    for name, make in NETWORKS.items():
        net = make(graph.wiring).to(options.device)
        size = sum(p.numel() for p in net.parameters())
        megabytes = held(net, graph) / 1e6
        seconds = statistics.median(step(net, graph) for _ in range(options.steps))
        print(f"| {name} | {size:,} | {seconds:.2f} | {megabytes:,.0f} |", flush=True)


def loss(net: nn.Module, graph: NeuralGraph) -> Tensor:
    """The mean square of the update of all weights."""
    out: NeuralGraph = net(graph, torch.linspace(0, 1, graph.batch, device=next(net.parameters()).device))
    parts = [x.square().sum() for x in (*out.nodes.values(), *out.edges.values())]
    return torch.stack(parts).sum() / graph.batch


def held(net: nn.Module, graph: NeuralGraph) -> int:
    """Bytes that the forward pass saves."""
    own = {p.untyped_storage().data_ptr() for p in net.parameters()}
    found: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        value = loss(net, graph)
    total = sum(found.values())
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


if __name__ == "__main__":
    main()
