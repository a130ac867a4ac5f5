"""Weights in units of their own spread: one mean and deviation for all that a symmetry makes alike."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from coset.weightspace.graph import NeuralGraph
from coset.weightspace.wiring import Wiring

NUMBERS = 2**22  # of networks that are looked at at a time
LEAST = 0.02  # a deviation beside those of its layer or block, so that a constant is not divided by nothing


class Standardize(nn.Module):
    """x -> (x - mean) / std on the features of a graph.

    Units that can move share their numbers, [1, features] for nodes and 1 in place of `from` or `to` for edges; so the
    map is equivariant and knows any number of units.
    """

    def __init__(self, wiring: Wiring) -> None:
        """With means of zero and deviations of one, which a `state_dict` or `measure` replaces."""
        super().__init__()
        self.wiring = wiring
        self.means, self.stds = nn.ParameterList(), nn.ParameterList()
        for shape in _shapes(wiring).values():
            self.means.append(nn.Parameter(torch.zeros(shape), requires_grad=False))
            self.stds.append(nn.Parameter(torch.ones(shape), requires_grad=False))

    @torch.no_grad()
    def measure(self, graph: NeuralGraph) -> None:
        """Take mean and deviation from the networks of a graph."""
        shapes = _shapes(self.wiring)
        for mean, std, (name, x) in zip(self.means, self.stds, _values(graph).items(), strict=True):
            alike = [0, *(d + 1 for d, size in enumerate(shapes[name][:-1]) if size == 1)]
            if not x.numel():
                continue
            mean.copy_(_mean(x, alike))
            variance = _mean(x, alike, around=mean)
            typical = variance.mean()
            variance = variance.clamp(min=LEAST**2 * typical) if typical > 0 else torch.ones_like(variance)
            std.copy_(variance.sqrt())

    def forward(self, graph: NeuralGraph) -> NeuralGraph:
        """The graph in these units."""
        scaled = [(x - mean) / std for x, mean, std in zip(_values(graph).values(), self.means, self.stds, strict=True)]
        return _with(graph, scaled)

    def spread(self, graph: NeuralGraph) -> NeuralGraph:
        """A change in these units as one of weights: x std."""
        return _with(graph, [x * std for x, std in zip(_values(graph).values(), self.stds, strict=True)])


def _mean(x: Tensor, alike: list[int], around: Tensor | None = None) -> Tensor:
    """Of all networks [n, ...] and of what is `alike` in each; or of squared distances to `around`.

    Some networks at a time, as in float64 they are large.
    """
    sums = []
    for part in torch.split(x, max(NUMBERS // x[0].numel(), 1)):
        wide = part.double()
        counted = wide if around is None else (wide - around).square()
        sums.append(counted.sum(alike, keepdim=True)[0])
    return torch.stack(sums).sum(0) / math.prod(x.shape[d] for d in alike)


def _shapes(wiring: Wiring) -> dict[str, tuple[int, ...]]:
    """Of the statistics of every layer and block."""
    ends = {name: 1 if layer.movable else layer.size for name, layer in wiring.layers.items()}
    nodes: dict[str, tuple[int, ...]] = {
        f"node {name}": (ends[name], layer.features) for name, layer in wiring.layers.items()
    }
    edges = {f"edge {name}": (ends[b.source], ends[b.target], b.features) for name, b in wiring.blocks.items()}
    return {**nodes, **edges}


def _values(graph: NeuralGraph) -> Mapping[str, Tensor]:
    """Features of nodes and edges, in the order of `_shapes`."""
    nodes = {f"node {name}": graph.nodes[name] for name in graph.wiring.layers}
    return {**nodes, **{f"edge {name}": graph.edges[name] for name in graph.wiring.blocks}}


def _with(graph: NeuralGraph, values: list[Tensor]) -> NeuralGraph:
    layers, blocks = list(graph.wiring.layers), list(graph.wiring.blocks)
    nodes = dict(zip(layers, values[: len(layers)], strict=True))
    return graph.with_values(nodes, dict(zip(blocks, values[len(layers) :], strict=True)))
