"""One op of the graph as its rule sees it, and the registry of rules."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any

from coset.symmetries.tape import Exploded, Letter, Segment, Tape, Value, operand, with_row
from coset.symmetries.terms import Cause, Origin, Term, concat, freeze, product

Result = Value | Exploded | list[Any]
Rule = Callable[["Call"], Result]

RULES: dict[str, Rule] = {}


class NoRuleError(Exception):
    """The op, or this use of it, has no rule; what it touches is fixed."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register the rule of one op family under the names of its ATen ops."""

    def register(function: Rule) -> Rule:
        for name in names:
            if name in RULES:
                raise ValueError(f"op {name!r} has two rules")
            RULES[name] = function
        return function

    return register


@dataclass
class Call:
    """The arguments of one op by their schema names, with tensors replaced by values.

    shapes: the shape of each tensor the op returns. floating: whether the first one is.
    explode: splits to make as separate blocks (see Exploded).
    """

    op: str
    node: str
    arguments: dict[str, Any]
    shapes: list[tuple[int, ...]]
    floating: bool
    tape: Tape
    explode: frozenset[Origin]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.shapes[0]

    def has(self, name: str) -> bool:
        return self.arguments.get(name) is not None

    def get(self, name: str, default: Any = None) -> Any:
        found = self.arguments.get(name)
        return default if found is None else found

    def raw(self, name: str) -> Value | Exploded:
        """A tensor argument as it is; for rules that know about index contents and exploded axes."""
        found = self.arguments[name]
        if not isinstance(found, Value | Exploded):
            raise NoRuleError(f"{name} is not a tensor")
        return found

    def whole(self, name: str) -> Value:
        """A tensor argument whose index content, if any, the rule handles itself."""
        return self.implode(self.raw(name))

    def tensor(self, name: str) -> Value:
        """A tensor argument used as numbers."""
        return self.number(self.raw(name))

    def maybe(self, name: str) -> Value | None:
        return self.tensor(name) if self.has(name) else None

    def tensors(self, name: str) -> list[Value]:
        return [self.number(item) for item in self.arguments[name]]

    def values(self) -> list[Value | Exploded]:
        """All tensor arguments, in the order of the schema."""
        found: list[Value | Exploded] = []
        for item in self.arguments.values():
            for entry in item if isinstance(item, list | tuple) else [item]:
                if isinstance(entry, Value | Exploded):
                    found.append(entry)
        return found

    def number(self, value: Value | Exploded) -> Value:
        whole = self.implode(value)
        if whole.content is not None:
            freeze(whole.content, Cause(self.op, "a unit's number is used as a value"))
        return whole

    def implode(self, value: Value | Exploded) -> Value:
        """Treat an exploded tensor as one: on the other axes all its blocks index the same units."""
        return value if isinstance(value, Value) else self.join(value.parts, value.axis)

    def join(self, values: Sequence[Value], axis: int) -> Value:
        """Blocks one after the other along ``axis``."""
        first = values[0]
        contents = [value.content for value in values if value.content is not None]
        for value in values[1:]:
            for d in range(len(first.axes)):
                if d != axis:
                    self.tape.unify(first.axes[d], value.axes[d])
        for content in contents[1:]:
            self.tape.unify(contents[0], content)
        joined = concat([value.axes[axis] for value in values])
        indices = contents[0] if len(contents) == len(values) else None
        result = Value((*first.axes[:axis], joined, *first.axes[axis + 1 :]), indices)
        letters: list[Letter] = list(range(len(first.axes)))
        ins = [operand(v, [*letters[:axis], ("block", k), *letters[axis + 1 :]]) for k, v in enumerate(values)]
        row = [Segment(axis, ("block", k), value.axes[axis]) for k, value in enumerate(values)]
        self.tape.move(ins, [with_row(result, axis, row)])
        return result

    def cuts(self, axis: int) -> list[int]:
        """Where axis ``axis`` of the result is wanted in separate blocks."""
        found = (origin for origin in self.explode if origin.node == self.node and origin.axis == axis)
        return sorted({point for origin in found for point in origin.points})

    def axis(self, name: str, rank: int, default: int | None = None) -> int:
        found = self.get(name, default)
        if not isinstance(found, int):
            raise NoRuleError(f"{name} is {found!r}")
        return found % max(rank, 1)

    def axes(self, name: str, rank: int, default: Sequence[int] | None = None) -> list[int]:
        """A ``dim`` argument as sorted non-negative axes; none given means the default, or all."""
        found = self.get(name, default)
        if found is None or found == []:
            return list(range(rank))
        return sorted({d % max(rank, 1) for d in ([found] if isinstance(found, int) else found)})

    def fresh(self, shape: Sequence[int], reason: str) -> Value:
        """A value whose order is fixed on every axis."""
        return Value(tuple(self.tape.fixed(size, reason) for size in shape))

    def regroup(
        self,
        value: Value,
        axes: Sequence[Sequence[Term]],
        content: Term | None = None,
        lost: tuple[Container[int], Container[int]] = ((), ()),
    ) -> Value:
        """A value with the same factors in the same order, grouped into other axes.

        ``lost``: axes before and after between which no correspondence is left.
        """
        result = Value(tuple(product(group) for group in axes), content)
        before = ["before" if d in lost[0] else "*" for d in range(len(value.axes))]
        after = ["after" if d in lost[1] else "*" for d in range(len(result.axes))]
        self.tape.move([operand(value, before)], [operand(result, after)])
        return result
