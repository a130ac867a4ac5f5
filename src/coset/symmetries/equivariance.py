"""Which ops break an inferred symmetry: run the graph op by op and see which do not commute with permutations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx import Interpreter, Node
from torch.utils import _pytree as pytree

from coset.symmetries.group import COMPOSITES, Axis, Fixed, Units, layout
from coset.symmetries.tape import NodeValue, Slices, Value
from coset.symmetries.terms import Term, find, leaves, parts
from coset.symmetries.trace import PREFIX, Trace, op_name

TOLERANCE = 1e-3


def inequivariant_ops(
    trace: Trace,
    values: Mapping[Node, NodeValue],
    state: Mapping[str, Tensor],
    most: int = 3,
) -> list[str]:
    """Ops f with f(g x) != g f(x) for a random permutation g of all units, by their rules' own account."""
    inputs = trace.inputs(state)
    checker = _Checker(trace, values, most)
    with torch.no_grad():
        checker.run(*inputs)
    return checker.ops


def as_axis(term: Term) -> Axis:
    """A term with every free unit set named by its identity."""
    term = find(term)
    if term.kind == "units":
        return Fixed(term.size) if term.frozen or term.size == 1 else Units(str(id(term)), term.size)
    inner = tuple(as_axis(child) for child in parts(term))
    return COMPOSITES[term.kind](inner)


class _Checker(Interpreter):
    def __init__(self, trace: Trace, values: Mapping[Node, NodeValue], most: int) -> None:
        super().__init__(trace.module)
        self.values = values
        self.most = most
        self.ops: list[str] = []
        self.generator = torch.Generator().manual_seed(0)
        self.permutations: dict[str, Tensor] = {}

    def run_node(self, node: Node) -> Any:
        result = super().run_node(node)
        if node.op == "call_function" and len(self.ops) < self.most and hasattr(node.target, "_schema"):
            expected = self._move(self.values.get(node), result)
            args, kwargs = pytree.tree_map(
                lambda x: self._move(self.values.get(x), self.env[x]) if isinstance(x, Node) else x,
                (node.args, node.kwargs),
            )
            actual = node.target(*args, **kwargs)  # type: ignore[operator]
            if not _same(expected, actual):
                stack = [str(path) for path, _ in node.meta.get("nn_module_stack", {}).values() if path]
                path = stack[-1].removeprefix(PREFIX.rstrip(".")).removeprefix(".") if stack else ""
                self.ops.append(f"{op_name(node)} in {path or 'the model'}")
        return result

    def _move(self, value: NodeValue, x: Any) -> Any:
        """The image of what a node computed, by its axes."""
        if isinstance(value, list) and isinstance(x, list | tuple):
            return type(x)(self._move(part, item) for part, item in zip(value, x, strict=False))
        if isinstance(value, Slices) and isinstance(x, Tensor):
            pieces = torch.split(x, value.widths, value.axis)
            images = [self._move(part, piece) for part, piece in zip(value.parts, pieces, strict=True)]
            return torch.cat(images, value.axis)
        if not isinstance(value, Value) or not isinstance(x, Tensor):
            return x
        for d, term in enumerate(value.axes):
            x = x.index_select(d, self._index(term))
        if value.content is not None and leaves(value.content) and x.dtype == torch.int64:
            # Entries are positions: unit p[i] of the argument is unit i of the image.
            x = self._index(value.content).argsort()[x]
        return x

    def _index(self, term: Term) -> Tensor:
        flat = layout(as_axis(term))
        total = flat.offset
        for entry in flat.entries:
            if entry.name not in self.permutations:
                size = int(entry.coordinate.max()) + 1
                self.permutations[entry.name] = torch.randperm(size, generator=self.generator)
            source = self.permutations[entry.name][entry.coordinate.clamp(min=0)]
            total = total + torch.where(entry.coordinate >= 0, source, 0) * entry.stride
        return total


def _same(a: Any, b: Any) -> bool:
    for x, y in zip(pytree.tree_leaves(a), pytree.tree_leaves(b), strict=False):
        if isinstance(x, Tensor) and isinstance(y, Tensor):
            if x.shape != y.shape:
                return False
            scale = float(x.abs().max()) if x.numel() and x.is_floating_point() else 1.0
            difference = (x.double() - y.double()).nan_to_num().abs()
            if x.numel() and float(difference.max()) > TOLERANCE * max(scale, 1e-30):
                return False
    return True
