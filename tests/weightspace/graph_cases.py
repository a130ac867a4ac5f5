"""Networks, their symmetries and populations for the tests of neural graphs and of networks on them."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import torch
from torch import Tensor, nn

import coset
from coset import Element, Symmetry
from coset.core import state as states
from coset.weightspace.graph import NeuralGraph, neural_graph
from coset.zoo import build, example_input


class Conv(nn.Module):
    """Two convolutions of different kernels, batch norm, positions flattened into the last layer."""

    def __init__(self, width: int = 5) -> None:
        super().__init__()
        self.a, self.norm = nn.Conv2d(2, width, 3), nn.BatchNorm2d(width)
        self.b, self.head = nn.Conv2d(width, 4, 2), nn.Linear(4 * 16, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.relu(self.b(torch.relu(self.norm(self.a(x))))).flatten(1))
        return out


class Residual(nn.Module):
    """A stream with two branches, the inputs beside it in the head, and a learned temperature."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.stem = nn.Linear(3, width)
        self.up = nn.ModuleList(nn.Linear(width, 5, bias=False) for _ in range(2))
        self.down = nn.ModuleList(nn.Linear(5, width) for _ in range(2))
        self.head, self.temperature = nn.Linear(width + 3, 2), nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        for up, down in zip(self.up, self.down, strict=True):
            h = h + down(torch.tanh(up(h)))
        out: Tensor = self.head(torch.cat([h, x], 1)) * self.temperature
        return out


NETS = ("mlp:5-6-3", "mlp:5-6-4-3", "mlp:5-6-4-4-3", "conv", "residual")


def make(name: str, width: int | None = None) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A network by name, maybe with another number of units in its first layer, and inputs for it."""
    if name == "conv":
        return Conv(*[width] if width else []), (torch.randn(3, 2, 7, 7),)
    if name == "residual":
        return Residual(*[width] if width else []), (torch.randn(3, 3),)
    model = build(name.replace("-6-", f"-{width}-") if width else name)
    return model, tuple(example_input(model))


@functools.cache
def symmetry(name: str, width: int | None = None) -> Symmetry:
    return coset.symmetry(*make(name, width), verify=False)


def population(name: str, batch: int = 2, width: int | None = None, seed: int = 0) -> dict[str, Tensor]:
    """Normal numbers for all coordinates; the counters of a fresh network."""
    generator = torch.Generator().manual_seed(seed)
    return {
        key: torch.randn(batch, *x.shape, generator=generator) if x.is_floating_point() else x.expand(batch, *x.shape)
        for key, x in states.of(make(name, width)[0]).items()
    }


def graph(name: str, batch: int = 2, width: int | None = None, seed: int = 0) -> NeuralGraph:
    return neural_graph(population(name, batch, width, seed), symmetry(name, width))


def permuted(original: NeuralGraph, element: Element) -> NeuralGraph:
    """The graph with nodes and edges moved as a batch of elements says, by plain indexing."""

    def rows(x: Tensor, layer: str) -> Tensor:
        if layer not in element.permutations:
            return x
        return torch.stack([one[p] for one, p in zip(x, element[layer], strict=True)])

    def edge(name: str) -> Tensor:
        block = original.wiring.blocks[name]
        return rows(rows(original.edges[name], block.source).transpose(1, 2), block.target).transpose(1, 2)

    return original.with_values(
        {layer: rows(x, layer) for layer, x in original.nodes.items()}, {name: edge(name) for name in original.edges}
    ).with_probes({layer: rows(x, layer) for layer, x in original.probes.items()})


def distance(a: NeuralGraph, b: NeuralGraph) -> float:
    """The largest difference of any feature, relative to the largest of its tensor."""
    pairs: list[tuple[Tensor, Tensor]] = []
    parts: tuple[tuple[Mapping[str, Tensor], Mapping[str, Tensor]], ...] = ((a.nodes, b.nodes), (a.edges, b.edges))
    for mine, theirs in parts:
        assert list(mine) == list(theirs)
        pairs += [(mine[name].detach(), theirs[name].detach()) for name in mine if mine[name].numel()]
    return max(float((x - y).abs().max() / y.abs().max()) for x, y in pairs)


def shaken(net: nn.Module, seed: int = 0) -> nn.Module:
    """The network with random weights everywhere, since some are zero at first and hide what depends on them."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * max(1, p.shape[-1]) ** -0.5)
    return net
