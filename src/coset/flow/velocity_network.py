"""The velocity of networks: a network on graphs, read in coordinates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from coset.core.errors import CosetError
from coset.flow.coordinates import Space
from coset.training.optimizers import check_choices, check_positive
from coset.weightspace.graph import NeuralGraph, Wiring, neural_graph
from coset.weightspace.pna import PNA
from coset.weightspace.relational_transformer import RelationalTransformer
from coset.weightspace.unit_transformer import UnitTransformer


@dataclass(frozen=True)
class Architecture:
    """The network that computes the velocities of a flow.

    Args:
        kind: "units" has one token a hidden unit, "relational" and "pna" a node for every unit, inputs too.
        width: Features of a token or node.
        depth: Layers.
        heads: Of attention, for "units"; the width is a multiple of them.
        recompute: Whether to take a third more time for less memory, for the other two.

    Raises:
        CosetError: If a number is not positive, or the width no multiple of the heads.

    Example:
        >>> flow = coset.Flow(sym, architecture=coset.Architecture(width=64, depth=3, heads=4))
        >>> flow.plan.architecture.depth
        3
    """

    kind: Literal["units", "relational", "pna"] = "units"
    width: int = 256
    depth: int = 6
    heads: int = 8
    recompute: bool = False

    def __post_init__(self) -> None:
        check_choices(self)
        check_positive(self, "width", "depth", "heads")
        if self.kind == "units" and self.width % self.heads:
            raise CosetError(f"Architecture: width must be a multiple of heads, unlike {self.width} of {self.heads}.")

    def build(self, wiring: Wiring, condition: int) -> nn.Module:
        """A network from torch's global generator.

        Args:
            wiring: Of the networks that flow.
            condition: How many numbers a condition has.
        """
        if self.kind == "units":
            return UnitTransformer(wiring, self.width, self.depth, self.heads, condition=condition)
        network = RelationalTransformer if self.kind == "relational" else PNA
        return network(wiring, self.width, self.depth, condition=condition, recompute=self.recompute)


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
        values = wide if around is None else (wide - around).square()
        sums.append(values.sum(alike, keepdim=True)[0])
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


Prediction = Literal["velocity", "endpoint"]
LATEST = 0.97  # the time after which an end point says little about the velocity, and its error would be large


class VelocityNetwork(nn.Module):
    """(x [n, D], t [n], condition [n, k]) -> v [n, D], tangent to the manifold of the space.

    Of a network F on standardised graphs: v = S F(x, t), or, where it predicts the end point, x_1 = x + S F(x, t) and
    v = log_x(x_1) / (1 - t). S has the deviations of the weights. Both begin near zero, and permute as x does.
    """

    def __init__(self, space: Space, network: nn.Module, standardize: Standardize, predict: Prediction) -> None:
        super().__init__()
        self.space, self.predict = space, predict
        self.network, self.standardize = network, standardize
        self._wiring = Wiring.of(space.sym, space.template)
        standardize.wiring.refuse(self._wiring)

    def forward(self, x: Tensor, time: Tensor, condition: Tensor | None = None) -> Tensor:
        manifold = self.space.manifold
        if self.predict == "velocity":
            return manifold.tangent(x, self._change(x, time, condition))
        left = (1 - time.clamp(max=LATEST)).unsqueeze(-1)
        return manifold.log(x, self.endpoint(x, time, condition)) / left

    def endpoint(self, x: Tensor, time: Tensor, condition: Tensor | None = None) -> Tensor:
        """[n, D] where the path is predicted to end."""
        manifold = self.space.manifold
        if self.predict == "velocity":
            return manifold.exp(x, (1 - time).unsqueeze(-1) * self(x, time, condition))
        return manifold.project(x + self._change(x, time, condition))

    def on(self, space: Space) -> VelocityNetwork:
        """The same field for networks of another width."""
        return VelocityNetwork(space, self.network, self.standardize, self.predict)

    def _change(self, x: Tensor, time: Tensor, condition: Tensor | None) -> Tensor:
        chart = self.space.manifold.chart
        population = chart.state(x, self.space.single)
        graph = self.standardize(neural_graph(population, self._wiring))
        change = self.standardize.spread(self.network(graph, time, condition))
        return chart.velocity({name: v.to(x.dtype) for name, v in change.state(population).items()})


def units(space: Space, standardize: Standardize) -> Tensor:
    """[D] the deviation of each coordinate: what errors of the velocity are measured in."""
    wiring = Wiring.of(space.sym, space.template)
    ones = {name: torch.ones_like(x)[None] if x.is_floating_point() else x for name, x in space.single.items()}
    spread = standardize.spread(neural_graph(ones, wiring)).state(ones)
    return space.manifold.chart.velocity(spread)[0].float()
