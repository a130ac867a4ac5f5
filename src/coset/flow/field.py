"""The velocity of networks: a network on graphs, read in coordinates."""

from __future__ import annotations

from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from coset.flow.space import Space
from coset.flow.standardize import Standardize
from coset.weightspace.graph import NeuralGraph, neural_graph
from coset.weightspace.wiring import Wiring

Prediction = Literal["velocity", "endpoint"]
LATEST = 0.97  # the time after which an end point says little about the velocity, and its error would be large


class GraphMap(Protocol):
    """What `coset.weightspace` calls a network on graphs."""

    def __call__(self, graph: NeuralGraph, time: Tensor, condition: Tensor | None = None) -> NeuralGraph: ...


class Field(nn.Module):
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

    def on(self, space: Space) -> Field:
        """The same field for networks of another width."""
        return Field(space, self.network, self.standardize, self.predict)

    def _change(self, x: Tensor, time: Tensor, condition: Tensor | None) -> Tensor:
        chart = self.space.manifold.chart
        population = chart.state(x, self.space.single)
        graph = self.standardize(neural_graph(population, self._wiring))
        moved = self.standardize.spread(self.network(graph, time, condition))
        return chart.velocity({name: v.to(x.dtype) for name, v in moved.state(population).items()})


def units(space: Space, standardize: Standardize) -> Tensor:
    """[D] the deviation of each coordinate: what errors of the velocity are measured in."""
    wiring = Wiring.of(space.sym, space.template)
    ones = {name: torch.ones_like(x)[None] if x.is_floating_point() else x for name, x in space.single.items()}
    spread = standardize.spread(neural_graph(ones, wiring)).state(ones)
    return space.manifold.chart.velocity(spread)[0].float()
