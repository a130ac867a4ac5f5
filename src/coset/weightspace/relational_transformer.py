"""The relational transformer with edge updates (Diao and Loynd 2023) on dense layer blocks."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from coset.weightspace.graph import Wiring
from coset.weightspace.graph_layer import Blocks, Edges, Exchange, Nodes
from coset.weightspace.graph_network import GraphNetwork


class RelationalTransformer(GraphNetwork):
    """Attention whose queries, keys and values see the edge: the velocity network of `weightflow`.

    5 layers of width 32 or 64, one head, GELU, layer embeddings; time enters by FiLM. See `coset.GraphNetwork` for
    calls.

    Args:
        wiring: of the graphs that it takes.
        width: numbers of every node and edge.
        depth: how many layers.
        condition: numbers that the network is told about each graph besides its time.
        probes: inputs of the probes that graphs have.
        recompute: keep only what enters each layer and run it again for the gradient: less memory, a third more time.

    Example:
        >>> graph = coset.neural_graph(a, sym)
        >>> net = coset.RelationalTransformer(graph.wiring, width=8, depth=1)
        >>> net(graph, torch.zeros(1)).edges["layers.0.weight"].shape
        torch.Size([1, 64, 16, 1])
    """

    def __init__(
        self,
        wiring: Wiring,
        width: int = 64,
        depth: int = 5,
        condition: int = 0,
        probes: int = 0,
        recompute: bool = False,
    ) -> None:
        super().__init__(wiring, lambda: Attention(width), width, depth, condition, probes, recompute)


class Attention(Exchange):
    """r_i = W_O sum_j softmax_j(q_ij . k_ij / sqrt(width)) v_ij over all edges ij of a node (weightflow Eq. 5.6).

    q_ij = Q n_i + Q' e_ij, k_ij = K n_j + K' e_ij, v_ij = V n_j + V' e_ij: keys and values are of the neighbour j, as
    in Diao and Loynd; Eq. 5.6 prints n_i. One softmax goes over the edges into a node and out of it, which have
    matrices of their own.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inward, self.outward = Reading(width), Reading(width)
        self.out = nn.Linear(width, width)

    def forward(self, nodes: Nodes, edges: Edges, blocks: Blocks) -> dict[str, Tensor]:
        readings: dict[str, list[tuple[Reading, str, Tensor, int]]] = {}
        scores: dict[str, list[Tensor]] = {}
        for name, block in blocks.items():
            e, source, target = edges[name], nodes[block.source], nodes[block.target]
            readings.setdefault(block.target, []).append((self.inward, block.source, e, 1))
            scores.setdefault(block.target, []).append(self.inward.scores(target, source, e, 1))
            readings.setdefault(block.source, []).append((self.outward, block.target, e, 2))
            scores.setdefault(block.source, []).append(self.outward.scores(source, target, e, 2))
        messages: dict[str, Tensor] = {}
        for name, each in readings.items():
            sizes = [s.shape[-1] for s in scores[name]]
            weights = torch.cat(scores[name], -1).softmax(-1).split_with_sizes(sizes, -1)
            values = [
                reading.values(w, nodes[other], e, over)
                for w, (reading, other, e, over) in zip(weights, each, strict=True)
            ]
            messages[name] = self.out(torch.stack(values).sum(0))
        return messages


class Reading(nn.Module):
    """The part of the attention over the edges of one block, in one direction, without q, k or v of any edge.

    q_ij . k_ij = Q n_i . K n_j + e_ij . (K'^T Q n_i + Q'^T K n_j + M e_ij) with M = Q'^T K', and
    sum_j a_ij v_ij = sum_j a_ij V n_j + V' sum_j a_ij e_ij: one map of the edges, where q, k and v would take three.

    own, other: [batch, n, width]; e: [batch, from, to, width]; over: its dimension of the neighbours j.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.query_edge = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.key, self.key_edge = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.value, self.value_edge = nn.Linear(width, width), nn.Linear(width, width, bias=False)

    def scores(self, own: Tensor, other: Tensor, e: Tensor, over: int) -> Tensor:
        """[batch, i, j], divided by sqrt(width)."""
        q, k = self.query(own), self.key(other)
        mixed = nn.functional.linear(e, self.query_edge.weight.T @ self.key_edge.weight)
        mixed = mixed + (q @ self.key_edge.weight).unsqueeze(over) + (k @ self.query_edge.weight).unsqueeze(3 - over)
        edge = (e * mixed).sum(-1)
        scores: Tensor = q @ k.mT + (edge.mT if over == 1 else edge)
        return scores / math.sqrt(e.shape[-1])

    def values(self, weights: Tensor, other: Tensor, e: Tensor, over: int) -> Tensor:
        """[batch, i, width]; weights: [batch, i, j]."""
        spread = weights.mT if over == 1 else weights
        out: Tensor = weights @ self.value(other) + self.value_edge((spread[..., None] * e).sum(over))
        return out
