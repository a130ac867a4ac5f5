"""Axis terms: whatever is unified, cut and split, the permutations left are those that all demands allow.

After each random step every axis is read as positions and moved by a random permutation of each free unit set.
Earlier demands (two axes are one, an axis is the product of others, ...) must hold for the movement, and a step may
only take freedom away.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from reference import decode, encode, replace_units, size_of, units_in

from coset.symmetries.terms import (
    Cause,
    Term,
    Unifier,
    concat,
    edges,
    find,
    fixed,
    freeze,
    interleave,
    is_frozen,
    leaves,
    parts,
    product,
    section,
    units,
)

CAUSE = Cause("test", "because")


def shape(term: Term) -> Any:
    """The term as an axis of the JSON form, its free units named by their identity."""
    term = find(term)
    if term.kind == "units":
        return term.size if term.frozen or term.size == 1 else f"{id(term)}:{term.size}"
    inner = [shape(child) for child in parts(term)]
    return inner if term.kind == "product" else {term.kind: inner}


def table(axes: Sequence[Any]) -> dict[str, int]:
    """Sizes of the unit sets on some axes."""

    def walk(axis: Any) -> list[str]:
        if isinstance(axis, str):
            return [axis]
        if isinstance(axis, int):
            return []
        inner = axis if isinstance(axis, list) else next(iter(axis.values()))
        return [name for part in inner for name in walk(part)]

    return {name: int(name.partition(":")[2]) for axis in axes for name in walk(axis)}


def movement(axis: Any, permutations: dict[str, list[int]]) -> list[int]:
    """Where each position goes when the units are permuted."""
    sizes = {name: len(p) for name, p in permutations.items()}
    out = []
    for position in range(size_of(axis, sizes)):
        code = decode(axis, position, sizes)
        image = replace_units(axis, code, lambda name, unit: permutations[name][unit])
        out.append(encode(axis, image, sizes))
    return out


class World:
    """Axes, a unifier, and the demands made so far."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.unifier = Unifier(CAUSE)
        self.axes: list[Term] = [units(n) for n in sizes]
        self.demands: list[tuple[str, int, list[int]]] = []
        self.random = random.Random(0)

    def draw(self) -> tuple[list[Any], list[list[int]]]:
        shapes = [shape(axis) for axis in self.axes]
        permutations = {name: self.random.sample(range(n), n) for name, n in table(shapes).items()}
        return shapes, [movement(axis, permutations) for axis in shapes]

    def check(self, before: list[Any]) -> None:
        shapes, moves = self.draw()
        for term, axis, move in zip(self.axes, shapes, moves, strict=True):
            assert find(term).size == size_of(axis, table([axis])) == len(move)
            assert sorted(move) == list(range(len(move)))
            if is_frozen(term):
                assert move == list(range(len(move)))
        for kind, whole, pieces in self.demands:
            assert moves[whole] == joined(kind, [moves[k] for k in pieces]), (kind, shapes[whole])
        renamed: dict[str, dict[int, int]] = {}
        for axis, move in zip(before, moves, strict=False):
            self.allowed(axis, move, renamed)
        for mapping in renamed.values():
            assert sorted(mapping) == sorted(mapping.values())

    @staticmethod
    def allowed(axis: Any, move: list[int], renamed: dict[str, dict[int, int]]) -> None:
        """The movement permutes the units that were there before, and nothing else."""
        sizes = table([axis])
        for position, target in enumerate(move):
            here, there = decode(axis, position, sizes), decode(axis, target, sizes)
            same = replace_units(axis, here, lambda name, unit: 0)
            assert same == replace_units(axis, there, lambda name, unit: 0)
            for (name, unit), (_, new) in zip(units_in(axis, here), units_in(axis, there), strict=True):
                assert renamed.setdefault(name, {}).setdefault(unit, new) == new


def joined(kind: str, moves: list[list[int]]) -> list[int]:
    if kind == "same":
        return moves[0]
    if kind == "concat":
        out: list[int] = []
        for move in moves:
            out += [len(out) + p for p in move]
        return out
    if kind == "interleave":
        n = len(moves)
        return [moves[p % n][p // n] * n + p % n for p in range(n * len(moves[0]))]
    total = math.prod(map(len, moves))
    out = []
    for position in range(total):
        rest, place, stride = position, 0, 1
        for move in reversed(moves):
            place += move[rest % len(move)] * stride
            stride *= len(move)
            rest //= len(move)
        out.append(place)
    return out


def step(world: World, action: str, choice: random.Random) -> None:
    """One random demand, of those that make sense."""
    axes, unifier = world.axes, world.unifier
    k = choice.randrange(len(axes))
    if action == "unify":
        same = [j for j, axis in enumerate(axes) if find(axis).size == find(axes[k]).size]
        j = choice.choice(same)
        unifier.unify(axes[k], axes[j])
        world.demands.append(("same", k, [j]))
    elif action == "freeze":
        freeze(axes[k], CAUSE)
    elif action == "cut":
        n = find(axes[k]).size
        points = sorted({0, n, *(choice.randrange(1, n) for _ in range(2) if n > 1)})
        if unifier.cut(axes[k], points):
            assert set(points) <= set(edges(axes[k]))
            pieces = [section(axes[k], a, b) for a, b in itertools.pairwise(points)]
            keep(world, "concat", k, pieces)
    elif action == "split":
        n = find(axes[k]).size
        heads = [d for d in range(1, n + 1) if n % d == 0]
        sizes = [choice.choice(heads)]
        sizes.append(n // sizes[0])
        pieces = unifier.split([axes[k]], sizes)
        if pieces is not None:
            assert [find(piece).size for piece in pieces] == sizes
            keep(world, "product", k, pieces)
    elif action in ("concat", "product", "interleave"):
        some = choice.sample(range(len(axes)), min(2, len(axes)))
        if action == "interleave":
            some = [j for j in some if find(axes[j]).size == find(axes[some[0]]).size]
        if len(some) < 2 or math.prod(find(axes[j]).size for j in some) > 64:
            return
        result = {"concat": concat, "product": product, "interleave": interleave}[action]([axes[j] for j in some])
        axes.append(result)
        world.demands.append((action, len(axes) - 1, some))


def keep(world: World, kind: str, whole: int, pieces: Sequence[Term]) -> None:
    start = len(world.axes)
    world.axes += pieces
    world.demands.append((kind, whole, list(range(start, start + len(pieces)))))


ACTIONS = ("unify", "unify", "unify", "cut", "split", "concat", "product", "interleave", "freeze")


@settings(max_examples=150)
@given(
    st.lists(st.sampled_from([2, 3, 4, 6, 8, 12]), min_size=2, max_size=4),
    st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=9),
    st.integers(0, 10**6),
)
def test_random_demands(sizes: list[int], actions: list[str], seed: int) -> None:
    world, choice = World(sizes), random.Random(seed)
    for action in actions:
        if len(world.axes) > 14:
            break
        before = [shape(axis) for axis in world.axes]
        step(world, action, choice)
        world.check(before)


def test_unify_refines_all_sharers() -> None:
    u, a, b = Unifier(CAUSE), units(6), units(6)
    u.unify(a, b)
    pieces = u.split([a], [2, 3])
    assert pieces is not None
    assert [find(t) for t in leaves(b)] == [find(t) for t in pieces]


def test_frozen_pieces_stay_frozen() -> None:
    u, a = Unifier(CAUSE), fixed(6, CAUSE)
    assert u.cut(a, [2])
    assert is_frozen(a)
    assert [leaf.size for leaf in leaves(a)] == [2, 4]
    b = units(6)
    u.unify(a, b)
    assert is_frozen(b)


def test_freeze_reaches_both_sides() -> None:
    u, a, b = Unifier(CAUSE), units(4), units(4)
    u.unify(a, b)
    freeze(a, CAUSE)
    assert is_frozen(b)
    assert leaves(b)[0].cause == CAUSE


def test_sizes_must_agree() -> None:
    with pytest.raises(ValueError, match="3 and 4"):
        Unifier(CAUSE).unify(units(3), units(4))


def test_products_with_common_factors() -> None:
    """(2 x 6) met by (4 x 3): 2 x 2 x 3 on both."""
    u = Unifier(CAUSE)
    a, b = product([units(2), units(6)]), product([units(4), units(3)])
    u.unify(a, b)
    assert [leaf.size for leaf in leaves(a)] == [2, 2, 3]
    assert list(map(find, leaves(a))) == list(map(find, leaves(b)))


def test_products_without_common_factors_are_fixed() -> None:
    u = Unifier(CAUSE)
    a, b = product([units(2), units(3)]), product([units(3), units(2)])
    u.unify(a, b)
    assert is_frozen(a)
    assert is_frozen(b)


def test_concats_are_cut_to_common_blocks() -> None:
    u = Unifier(CAUSE)
    a, b = concat([units(2), units(4)]), concat([units(3), units(3)])
    u.unify(a, b)
    assert edges(a) == edges(b) == [0, 2, 3, 6]


def test_concats_of_the_same_units_in_another_order() -> None:
    """(a, b) met by (b, a) with blocks of 2 and 4: a is both halves of b."""
    u = Unifier(CAUSE)
    x, y = units(2), units(4)
    u.unify(concat([x, y]), concat([y, x]))
    assert len({find(leaf) for leaf in [*leaves(x), *leaves(y)]}) == 1


def test_concats_of_the_same_units_with_no_common_measure() -> None:
    """(a, b) met by (b, a) with blocks of 4 and 3: single positions remain, and no crash."""
    u = Unifier(CAUSE)
    x, y = units(4), units(3)
    u.unify(concat([x, y]), concat([y, x]))
    assert all(leaf.frozen or leaf.size == 1 for leaf in [*leaves(x), *leaves(y)])


def test_interleave_meets_product() -> None:
    u = Unifier(CAUSE)
    lanes = [units(3), units(3)]
    a, b = interleave(lanes), product([units(3), units(2)])
    u.unify(a, b)
    assert find(lanes[0]) is find(lanes[1])
    assert [leaf.frozen for leaf in leaves(b)] == [False, True]
