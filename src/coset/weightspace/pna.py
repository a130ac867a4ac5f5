"""Principal neighbourhood aggregation (Corso et al. 2020) with edge updates and FiLM on dense layer blocks."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from coset.weightspace.graph import Wiring
from coset.weightspace.graph_layer import Blocks, Edges, Exchange, Nodes
from coset.weightspace.graph_network import GraphNetwork

EPSILON = 1e-5  # under the root of the variance, whose slope is infinite at zero


class PNA(GraphNetwork):
    """Mean, spread and extremes of messages that the edges modulate (Corso et al. 2020, Kofinas et al. 2024).

    See `coset.GraphNetwork` for calls.

    Args:
        wiring: of the graphs that it takes.
        width: numbers of every node and edge.
        depth: how many layers.
        condition: numbers that the network is told about each graph besides its time.
        probes: inputs of the probes that graphs have.
        recompute: keep only what enters each layer and run it again for the gradient: less memory, a third more time.

    Example:
        >>> graph = coset.neural_graph(a, sym)
        >>> net = coset.PNA(graph.wiring, width=8, depth=1)
        >>> net(graph, torch.zeros(1)).edges["layers.0.weight"].shape
        torch.Size([1, 64, 16, 1])
    """

    def __init__(
        self,
        wiring: Wiring,
        width: int = 64,
        depth: int = 4,
        condition: int = 0,
        probes: int = 0,
        recompute: bool = False,
    ) -> None:
        delta = mean_log_degree(wiring)
        super().__init__(wiring, lambda: Aggregation(width, delta), width, depth, condition, probes, recompute)


def mean_log_degree(wiring: Wiring) -> float:
    """delta: the mean over nodes of log(degree + 1), by which degrees are measured."""
    degrees = dict.fromkeys(wiring.layers, 0)
    for block in wiring.blocks.values():
        degrees[block.target] += wiring.layers[block.source].size
        degrees[block.source] += wiring.layers[block.target].size
    total = sum(layer.size * math.log(degrees[name] + 1) for name, layer in wiring.layers.items())
    return total / sum(layer.size for layer in wiring.layers.values()) or 1.0


class Aggregation(Exchange):
    """r_i = W [1, S(d, 1), S(d, -1)] x [mean, std, max, min] of the messages to i (weightflow Eq. 5.3).

    S(d, a) = (log(d + 1) / delta)^a with d the number of edges of node i, and delta that of the graph the network was
    built with. The message m_ij = gamma(e_ij) * A n_j + beta(e_ij) is modulated by its edge (Brockschmidt 2020); edges
    into a node and out of it have matrices of their own.
    """

    def __init__(self, width: int, delta: float) -> None:
        super().__init__()
        self.delta = delta
        self.inward, self.outward = Message(width), Message(width)
        self.out = nn.Linear(12 * width, width)

    def forward(self, nodes: Nodes, edges: Edges, blocks: Blocks) -> dict[str, Tensor]:
        statistics: dict[str, list[Tensor]] = {}
        counts: dict[str, list[int]] = {}
        for name, block in blocks.items():
            e = edges[name]
            statistics.setdefault(block.target, []).append(moments(self.inward(nodes[block.source], e, 1), 1))
            counts.setdefault(block.target, []).append(e.shape[1])
            statistics.setdefault(block.source, []).append(moments(self.outward(nodes[block.target], e, 2), 2))
            counts.setdefault(block.source, []).append(e.shape[2])
        messages: dict[str, Tensor] = {}
        for name, parts in statistics.items():
            all_of_them = joint(torch.stack(parts), counts[name])
            scale = math.log(sum(counts[name]) + 1) / self.delta
            messages[name] = self.out(torch.cat([all_of_them, all_of_them * scale, all_of_them / scale], -1))
        return messages


class Message(nn.Module):
    """gamma(e_ij) * A n_j + beta(e_ij) of the neighbours j that stand on dimension `over` of the edges."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.node = nn.Linear(width, width)
        self.film = nn.Linear(width, 2 * width)

    def forward(self, other: Tensor, e: Tensor, over: int) -> Tensor:
        gamma, beta = self.film(e).chunk(2, -1)
        return torch.addcmul(beta, gamma, self.node(other).unsqueeze(3 - over))


def moments(messages: Tensor, over: int) -> Tensor:
    """[4, batch, n, width]: mean, variance, largest and least over one dimension of [batch, from, to, width]."""
    variance, mean = torch.var_mean(messages, over, correction=0)
    return torch.stack([mean, variance, messages.amax(over), messages.amin(over)])


def joint(parts: Tensor, counts: list[int]) -> Tensor:
    """[batch, n, 4 width]: mean, std, max, min of all messages, from the moments of each block of them.

    The variance of all is the mean of E_b[m^2] - mean^2 written without cancellation: var_b + (mean_b - mean)^2.
    """
    share = parts.new_tensor(counts).div(sum(counts)).reshape(-1, 1, 1, 1)
    means, variances, largest, least = parts.unbind(1)
    mean = (share * means).sum(0)
    variance = (share * (variances + (means - mean).square())).sum(0)
    return torch.cat([mean, (variance + EPSILON).sqrt(), largest.amax(0), least.amin(0)], -1)
