"""One layer of message passing with edge updates on dense blocks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from torch import Tensor, nn

from coset.weightspace.graph import EdgeBlock
from coset.weightspace.graph_embedding import Film

Nodes = Mapping[str, Tensor]
Edges = Mapping[str, Tensor]
Blocks = Mapping[str, EdgeBlock]


class Exchange(nn.Module, ABC):
    """How nodes hear from their neighbours, over edges in both directions."""

    @abstractmethod
    def forward(self, nodes: Nodes, edges: Edges, blocks: Blocks) -> dict[str, Tensor]:
        """layer -> [batch, n, width], for the layers that have edges."""


class EdgeUpdate(nn.Module):
    """phi_E(e, n_from, n_to) = W_2 gelu(W_1 e + W_f n_from + W_t n_to).

    edges: [batch, from, to, edge_width]; source, target: [batch, n, width]. The nodes are mapped before they are
    spread over the edges.
    """

    def __init__(self, width: int, edge_width: int) -> None:
        super().__init__()
        self.edge = nn.Linear(edge_width, edge_width)
        self.source = nn.Linear(width, edge_width, bias=False)
        self.target = nn.Linear(width, edge_width, bias=False)
        self.out = nn.Sequential(nn.GELU(), nn.Linear(edge_width, edge_width))

    def forward(self, edges: Tensor, source: Tensor, target: Tensor) -> Tensor:
        ends = self.source(source)[:, :, None] + self.target(target)[:, None]
        out: Tensor = self.out(self.edge(edges) + ends)
        return out


class GraphLayer(nn.Module):
    """n <- n + exchange, n <- n + MLP(n), then e <- e + phi_E(e, n_from, n_to); norms come before, FiLM with them.

    Weights are shared by all nodes and by all edges.
    """

    def __init__(self, width: int, exchange: Exchange) -> None:
        super().__init__()
        self.exchange = exchange
        self.before, self.between, self.after = Film(width), Film(width), Film(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.edge_norm = nn.LayerNorm(width)
        self.edge_update = EdgeUpdate(width, width)

    def forward(
        self, nodes: Nodes, edges: Edges, blocks: Blocks, c: Tensor
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        plain: dict[str, Tensor] = {name: self.edge_norm(e) for name, e in edges.items()}
        messages = self.exchange({name: self.before(n, c) for name, n in nodes.items()}, plain, blocks)
        nodes = {name: n + messages[name] if name in messages else n for name, n in nodes.items()}
        nodes = {name: n + self.mlp(self.between(n, c)) for name, n in nodes.items()}
        ends = {name: self.after(n, c) for name, n in nodes.items()}
        updated = {
            name: e + self.edge_update(plain[name], ends[blocks[name].source], ends[blocks[name].target])
            for name, e in edges.items()
        }
        return nodes, updated
