"""Blocks of one axis put one after the other along another axis: what was split and put together is a transposition.

Heads of attention are folded into the batch so, `torch.cat(q.split(dim, 2), 0)`, and taken out of it again. As slices
they would be units apart, each bound to those that it is put beside.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch.fx import Graph, Node

from coset.symmetries.rules.reshape import reshape_to, transposed
from coset.symmetries.tape import Call, Result
from coset.symmetries.trace import op_name, shape_of

SPLITS = ("split", "split_with_sizes", "chunk")
CATS = ("cat", "concat", "concatenate")


def cats_of_splits(graph: Graph) -> dict[Node, Node]:
    """Each op that puts together all equal blocks of a split, in order and along another axis -> the split."""
    pairs = ((node, _split_of(node)) for node in graph.nodes if node.op == "call_function" and op_name(node) in CATS)
    return {node: split for node, split in pairs if split is not None}


def _split_of(cat: Node) -> Node | None:
    blocks: Any = cat.args[0]
    if not isinstance(blocks, list | tuple) or not all(_is_block(block) for block in blocks):
        return None
    split: Node = blocks[0].args[0]
    in_order = [block.args for block in blocks] == [(split, k) for k in range(len(blocks))]
    alone = all(list(block.users) == [cat] for block in blocks) and set(split.users) == set(blocks)
    sizes = {shape_of(value) for value in split.meta["val"]}
    whole = len(split.meta["val"]) == len(blocks) and len(sizes) == 1 and None not in sizes
    return split if in_order and alone and whole and _axis(split, "dim", 2) != _axis(cat, "dim", 1) else None


def _is_block(node: object) -> bool:
    if not isinstance(node, Node) or node.target is not operator.getitem:
        return False
    split = node.args[0]
    return isinstance(split, Node) and split.op == "call_function" and op_name(split) in SPLITS


def _axis(node: Node, name: str, place: int) -> int:
    axis: Any = node.args[place] if len(node.args) > place else node.kwargs.get(name, 0)
    values = node.meta["val"]
    rank = (values[0] if isinstance(values, list | tuple) else values).dim()
    return int(axis % rank)


def transposition(call: Call, cat: Node, split: Node) -> Result:
    """(.., n s, .., m, ..) -> (.., s, .., n m, ..)."""
    value = call.raw("self")
    count, a, b = len(split.users), _axis(split, "dim", 2), _axis(cat, "dim", 1)
    shape = list(value.shape)
    # Two views of one op: each is split further at places of its own.
    first = replace(call, node=f"{call.node}.apart")
    apart = reshape_to(first, value, [*shape[:a], count, shape[a] // count, *shape[a + 1 :]])
    rest = [d for d in range(len(shape) + 1) if d != a]
    return reshape_to(call, transposed(call, apart, [*rest[:b], a, *rest[b:]]), call.shape)


def inner_nodes(pairs: Mapping[Node, Node]) -> set[Node]:
    """The splits, and their blocks."""
    return {node for split in pairs.values() for node in (split, *split.users)}
