"""A transformer whose tokens are the hidden units of a network."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from coset.core.errors import ModelError
from coset.weightspace.graph import EdgeBlock, NeuralGraph, Wiring
from coset.weightspace.graph_embedding import Conditioning, ShownModule, linear, refuse_inputs, refuse_probes, zeroed
from coset.weightspace.graph_layer import EdgeUpdate


@dataclass(frozen=True)
class UnitTokens:
    """units: layer -> [batch, n, numbers]; rest: [batch, numbers], what belongs to no unit, as the last bias.

    inner: block -> [batch, from, to, features], the weights between units that can both move.
    """

    units: Mapping[str, Tensor]
    rest: Tensor
    inner: Mapping[str, Tensor]


@dataclass(frozen=True)
class TokenLayout:
    """Which features of a graph stand in which token: those of the node, then of its edges, block by block."""

    wiring: Wiring

    @cached_property
    def layers(self) -> list[str]:
        """The layers whose nodes are tokens."""
        return [name for name, layer in self.wiring.layers.items() if layer.movable]

    @cached_property
    def inner(self) -> dict[str, EdgeBlock]:
        return {name: b for name, b in self.wiring.blocks.items() if self._moves(b.source) and self._moves(b.target)}

    def _moves(self, layer: str) -> bool:
        return self.wiring.layers[layer].movable

    def _own(self, layer: str) -> list[EdgeBlock]:
        """The blocks between a layer and places that cannot move."""
        return [b for b in self.wiring.blocks.values() if layer in (b.source, b.target) and b.name not in self.inner]

    @cached_property
    def _fixed(self) -> tuple[list[str], list[str]]:
        """Layers and blocks in which nothing moves."""
        blocks = self.wiring.blocks.values()
        return (
            [name for name in self.wiring.layers if not self._moves(name)],
            [b.name for b in blocks if not self._moves(b.source) and not self._moves(b.target)],
        )

    def size(self, layer: str) -> int:
        """The numbers of a token of this layer."""
        return sum(self._split(layer))

    @cached_property
    def rest(self) -> int:
        """The numbers that belong to no unit."""
        return sum(math.prod(shape) for shape in self._rest_shapes())

    def _split(self, layer: str) -> list[int]:
        others = [b.source if b.target == layer else b.target for b in self._own(layer)]
        sizes = [self.wiring.layers[other].size * b.features for other, b in zip(others, self._own(layer), strict=True)]
        return [self.wiring.layers[layer].features, *sizes]

    def _rest_shapes(self) -> list[tuple[int, ...]]:
        layers, blocks = self.wiring.layers, self.wiring.blocks
        nodes = [(layers[name].size, layers[name].features) for name in self._fixed[0]]
        edges = [
            (layers[b.source].size, layers[b.target].size, b.features) for b in map(blocks.get, self._fixed[1]) if b
        ]
        return [*nodes, *edges]

    def read(self, graph: NeuralGraph) -> UnitTokens:
        """The tokens of a graph with this layout, for any number of units."""
        units: dict[str, Tensor] = {}
        for layer in self.layers:
            parts = [graph.nodes[layer]]
            for b in self._own(layer):
                e = graph.edges[b.name]
                parts.append((e if b.source == layer else e.transpose(1, 2)).flatten(2))
            units[layer] = torch.cat(parts, -1)
        nodes, edges = self._fixed
        still = [graph.nodes[name].flatten(1) for name in nodes] + [graph.edges[name].flatten(1) for name in edges]
        some = next(iter(units.values()), torch.empty(graph.batch, 0))
        rest = torch.cat(still, 1) if still else some.new_empty(graph.batch, 0)
        return UnitTokens(units, rest, {name: graph.edges[name] for name in self.inner})

    def write(self, graph: NeuralGraph, tokens: UnitTokens) -> NeuralGraph:
        """The graph, of the shapes of `graph`, whose tokens are these: the inverse of `read`."""
        nodes: dict[str, Tensor] = {}
        edges: dict[str, Tensor] = dict(tokens.inner)
        for layer in self.layers:
            own, *parts = tokens.units[layer].split_with_sizes(self._split(layer), -1)
            nodes[layer] = own
            for b, x in zip(self._own(layer), parts, strict=True):
                x = torch.unflatten(x, 2, (-1, b.features))
                edges[b.name] = x if b.source == layer else x.transpose(1, 2)
        shapes = self._rest_shapes()
        still = [
            torch.unflatten(x, 1, shape)
            for x, shape in zip(tokens.rest.split_with_sizes([math.prod(s) for s in shapes], 1), shapes, strict=True)
        ]
        nodes.update(zip(self._fixed[0], still, strict=False))
        edges.update(zip(self._fixed[1], still[len(self._fixed[0]) :], strict=True))
        return graph.with_values(
            {name: nodes[name] for name in graph.wiring.layers}, {name: edges[name] for name in graph.wiring.blocks}
        )


class UnitTransformer(ShownModule):
    """An equivariant map from graphs at times t to an update of every weight, at the cost of one token a unit.

    A token holds what belongs to its unit alone: bias, norm parameters, weights from inputs and to outputs, 784 + 1 +
    10 numbers for 784-10-10. One more token holds what belongs to no unit, and sees all the others. UnitTokens have no
    positions, so the order of units is unknown to them. Weights between hidden units are edges of `edge_width` that
    both their tokens read and write (`InnerEdges`); a network with one hidden layer has none.

    Args:
        wiring: of the graphs that it takes.
        width: of the tokens, a multiple of `heads`.
        depth: blocks of the transformer, with time by adaptive layer norm (Peebles and Xie 2023).
        heads: of the attention.
        edge_width: numbers of every weight between hidden units.
        condition: numbers that the network is told about each graph besides its time.
        probes: inputs of the probes that graphs have.

    Raises:
        ModelError: `heads` does not divide `width`; or a call gets a graph of another architecture, or times,
            conditions or probes that do not fit.

    Example:
        >>> graph = coset.neural_graph(a, sym)
        >>> net = coset.UnitTransformer(graph.wiring, width=16, depth=1, heads=2)
        >>> net(graph, torch.zeros(1)).edges["layers.0.weight"].shape
        torch.Size([1, 64, 16, 1])
    """

    def __init__(
        self,
        wiring: Wiring,
        width: int = 512,
        depth: int = 8,
        heads: int = 8,
        edge_width: int = 32,
        condition: int = 0,
        probes: int = 0,
    ) -> None:
        super().__init__()
        if heads < 1 or width % heads:
            raise ModelError(f"A width of {width} cannot be shared by {heads} heads: give a multiple of their number.")
        self.wiring, self.layout = wiring, TokenLayout(wiring)
        inner = self.layout.inner
        self.conditioning = Conditioning(width, condition)
        self.units = nn.ModuleList(linear(self.layout.size(layer), width, False) for layer in self.layout.layers)
        self.rest = linear(self.layout.rest, width, bias=False)
        self.kinds = nn.Parameter(torch.randn(len(self.layout.layers) + 1, width))
        self.probes = linear(probes, width, bias=False)
        self.edges = nn.ModuleList(nn.Linear(block.features, edge_width) for block in inner.values())
        self.mixing = nn.ModuleList(InnerEdges(width, edge_width) for _ in range(depth if inner else 0))
        self.blocks = nn.ModuleList(TransformerBlock(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.units_out = nn.ModuleList(linear(width, self.layout.size(layer)) for layer in self.layout.layers)
        self.rest_out = linear(width, self.layout.rest)
        self.edges_out = nn.ModuleList(EdgeReadout(width, edge_width, block.features) for block in inner.values())

    def forward(self, graph: NeuralGraph, time: Tensor, condition: Tensor | None = None) -> NeuralGraph:
        """An update of every weight.

        Args:
            graph: networks of this architecture, of any number of units.
            time: [batch].
            condition: [batch, size], for a network that is built with `condition=size`.

        Returns:
            A graph of the same shapes.
        """
        x, edges = self._encode(graph, time, condition)
        *units, rest = x.split_with_sizes(self._counts(graph), 1)
        tokens = dict(zip(self.layout.layers, units, strict=True))
        inner = {
            name: out(edges[name], tokens[block.source], tokens[block.target])
            for (name, block), out in zip(self.layout.inner.items(), self.edges_out, strict=True)
        }
        updates = {name: out(tokens[name]) for name, out in zip(self.layout.layers, self.units_out, strict=True)}
        return self.layout.write(graph, UnitTokens(updates, self.rest_out(rest[:, 0]), inner))

    def features(self, graph: NeuralGraph, time: Tensor, condition: Tensor | None = None) -> Tensor:
        """What is the same for all permutations of a network: the token that belongs to no unit.

        Args:
            graph: networks of this architecture, of any number of units.
            time: [batch].
            condition: [batch, size], for a network that is built with `condition=size`.

        Returns:
            [batch, width].
        """
        return self._encode(graph, time, condition)[0][:, -1]

    def _counts(self, graph: NeuralGraph) -> list[int]:
        return [*(graph.wiring.layers[name].size for name in self.layout.layers), 1]

    def _encode(self, graph: NeuralGraph, time: Tensor, condition: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        """[batch, units + 1, width] tokens, and the inner edges."""
        self.wiring.refuse(graph.wiring)
        refuse_inputs(graph, time, self.conditioning.frequencies.dtype)
        c: Tensor = self.conditioning(time, condition)
        features = self.layout.read(graph)
        layers = zip(self.layout.layers, self.units, self.kinds[:-1], strict=True)
        tokens = {name: into(features.units[name]) + kind for name, into, kind in layers}
        refuse_probes(graph, self.probes.in_features, self.layout.layers)
        for name, probes in graph.probes.items():
            tokens[name] = tokens[name] + self.probes(probes)
        x = torch.cat([*tokens.values(), (self.rest(features.rest) + self.kinds[-1])[:, None]], 1)
        edges = {name: into(features.inner[name]) for name, into in zip(self.layout.inner, self.edges, strict=True)}
        counts = self._counts(graph)
        for block, mix in itertools.zip_longest(self.blocks, self.mixing):
            if mix is not None:
                messages, edges = mix(
                    dict(zip(self.layout.layers, x.split_with_sizes(counts, 1), strict=False)), edges, self.layout.inner
                )
                x = x + torch.cat([*messages.values(), torch.zeros_like(x[:, -1:])], 1)
            x = block(x, c)
        return self.norm(x), edges


class TransformerBlock(nn.Module):
    """x <- x + g_1 attention(FiLM(x)), x <- x + g_2 MLP(FiLM(x)); scales, shifts and g are linear in c, zero at first.

    x: [batch, tokens, width], c: [batch, width].
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.modulation = zeroed(nn.Linear(width, 6 * width))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        scale, shift, gate, mlp_scale, mlp_shift, mlp_gate = self.modulation(c)[:, None].chunk(6, -1)
        h = self.norm(x) * (1 + scale) + shift
        q, k, v = self.qkv(h).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        values = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + gate * self.out(values)
        out: Tensor = x + mlp_gate * self.mlp(self.norm(x) * (1 + mlp_scale) + mlp_shift)
        return out


class InnerEdges(nn.Module):
    """Units hear from units over the weights between them, and the weights from both.

    to n_t: W_t mean_f(e_ft * A n_f); to n_f: W_f mean_t(e_ft * B n_t); e <- e + phi_E(e, n_f, n_t) + C n_f * D n_t.
    Like the scores of a head of attention, each number of an edge weighs its own width / edge_width numbers of A n_f,
    or one: a unit then hears as much as its token can hold. The last product is how a gradient depends on both ends of
    a weight. With one number each, and without the product, flows of deep networks learn far more slowly.
    """

    def __init__(self, width: int, edge_width: int) -> None:
        super().__init__()
        self.norm, self.edge_norm = nn.LayerNorm(width), nn.LayerNorm(edge_width)
        self.heads = edge_width
        size = edge_width * max(width // edge_width, 1)
        self.forth, self.back = nn.Linear(width, size), nn.Linear(width, size)
        self.forth_out, self.back_out = nn.Linear(size, width), nn.Linear(size, width)
        self.update = EdgeUpdate(width, edge_width)
        self.source, self.target = nn.Linear(width, edge_width, bias=False), nn.Linear(width, edge_width, bias=False)

    def forward(
        self, tokens: Mapping[str, Tensor], edges: Mapping[str, Tensor], blocks: Mapping[str, EdgeBlock]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """What each layer hears [batch, n, width], and the edges updated."""
        plain = {name: self.norm(x) for name, x in tokens.items()}
        messages = {name: torch.zeros_like(x) for name, x in tokens.items()}
        updated: dict[str, Tensor] = {}
        for name, block in blocks.items():
            e, source, target = self.edge_norm(edges[name]), plain[block.source], plain[block.target]
            said = self.forth(source).unflatten(-1, (self.heads, -1))
            answered = self.back(target).unflatten(-1, (self.heads, -1))
            to_target = torch.einsum("bfth,bfhk->bthk", e, said).flatten(2) / e.shape[1]
            to_source = torch.einsum("bfth,bthk->bfhk", e, answered).flatten(2) / e.shape[2]
            messages[block.target] = messages[block.target] + self.forth_out(to_target)
            messages[block.source] = messages[block.source] + self.back_out(to_source)
            product = self.source(source)[:, :, None] * self.target(target)[:, None]
            updated[name] = edges[name] + self.update(e, source, target) + product
        return messages, updated


class EdgeReadout(nn.Module):
    """[batch, from, to, features]: W LN(e_ft) + n_f^T C n_t, with a C of rank `edge_width` for each feature."""

    def __init__(self, width: int, edge_width: int, features: int) -> None:
        super().__init__()
        self.rank = edge_width
        self.norm, self.edge = nn.LayerNorm(edge_width), nn.Linear(edge_width, features)
        self.source = nn.Linear(width, edge_width, bias=False)
        self.target = nn.Linear(width, edge_width * features, bias=False)

    def forward(self, edges: Tensor, source: Tensor, target: Tensor) -> Tensor:
        right = self.target(target).unflatten(-1, (self.rank, -1))
        pair = torch.einsum("bfr,btrd->bftd", self.source(source), right) / math.sqrt(self.rank)
        out: Tensor = self.edge(self.norm(edges)) + pair
        return out
