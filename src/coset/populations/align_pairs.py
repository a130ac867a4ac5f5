"""Align the networks of two populations pair by pair, in batched steps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from coset import state as states
from coset.alignment import Pair, Problem, maximise
from coset.alignment.driver import LARGEST_SWEEPS, ROUNDING
from coset.alignment.nodes import PlainNode, nodes
from coset.assignment import solve_many
from coset.checks import State
from coset.symmetries import Element, Symmetry
from coset.symmetries.views import blocks


def align_pairs(a: State, b: State, sym: Symmetry) -> Element:
    """A batch of permutations g_k that make <a_k, g_k b_k> large, for every pair of members k of two populations.

    As `coset.align` does it: one group of units after the other takes its best permutation while the others stay,
    from a greedy first match. With one group, or groups that share no tensor, that is the maximum.
    """
    template = Problem(sym, [Pair(*({name: x[0] for name, x in one.items()} for one in (a, b)))])
    made = nodes(template)
    plain = [node for node in made if isinstance(node, PlainNode)]
    if len(plain) == len(made):
        found = _Climb(a, b, sym, plain).permutations
    else:
        matches = [maximise(Problem(sym, [Pair(*pair)])) for pair in zip(*map(states.unstack, (a, b)), strict=True)]
        found = {group.name: torch.stack([one.element[group.name] for one in matches]) for group in sym.groups}
    return sym.element(found)


class _Climb:
    """permutations: group -> [n, units], where no change of one group gains any more."""

    def __init__(self, a: State, b: State, sym: Symmetry, made: Sequence[PlainNode]) -> None:
        self.a, self.b, self.sym = a, b, sym
        n, device = states.size(a), next(iter(a.values())).device
        self.permutations = {
            node.name: torch.arange(node.known.size, device=device).expand(n, -1).contiguous() for node in made
        }
        trusted: set[str] = set()
        for node in made:  # forward: those before are matched already
            if any(node.trusts(row, trusted) for row in node.rows):
                self._step(node, trusted, None)
                trusted.add(node.name)
        value = torch.zeros(n, dtype=torch.float64)
        for _ in range(LARGEST_SWEEPS if len(made) > 1 else 0):
            gain = torch.stack([self._step(node, None, value) for node in made]).sum(0)
            value += gain
            if not bool((gain > 0).any()):
                break

    def _step(self, node: PlainNode, trusted: set[str] | None, value: Tensor | None) -> Tensor:
        """Give each pair its best permutation of one group, if it gains on `value` or that is None; the gains [n]."""
        scores = self._scores(node, trusted)
        found = solve_many(scores)
        gain = found.value - scores.diagonal(dim1=1, dim2=2).double().sum(1).cpu()
        better = torch.ones_like(gain, dtype=torch.bool) if value is None else gain > ROUNDING * value.abs()
        p = self.permutations[node.name]
        self.permutations[node.name] = torch.where(better.to(p.device)[:, None], p.gather(1, found.permutation), p)
        return torch.where(better, gain, 0.0)

    def _scores(self, node: PlainNode, trusted: set[str] | None) -> Tensor:
        """[n, units, units]: <a_ki, b_kj> with b as it is moved now, over blocks with trusted other units only."""
        element = self.sym.element(self.permutations)
        found: list[Tensor] = []
        for name in node.tensors:
            axes = self.sym.axes[name]
            moved = self.sym.act(element, {name: self.b[name]})[name]
            for x, y in zip(blocks(self.a[name], axes, lead=1), blocks(moved, axes, lead=1), strict=True):
                if (at := x.where(node.name)) and node.trusts(x.labels, trusted):
                    left, right = (one.values.movedim(at[0] + 1, 1).unsqueeze(-1).flatten(2) for one in (x, y))
                    found.append(left @ right.mT)
        return torch.stack(found).sum(0)
