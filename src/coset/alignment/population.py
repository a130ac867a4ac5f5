"""Align a whole population of networks in batched steps, to one reference or each to its own: thousands in seconds."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coset.alignment.coordinate_ascent import LARGEST_SWEEPS, ROUNDING, maximise, turns
from coset.alignment.nodes import Node, PlainNode, nodes_of
from coset.alignment.objective import InnerProduct, Objective
from coset.assignment import solve_many
from coset.core import state as states
from coset.core.show import Shown, Table
from coset.core.state import State
from coset.symmetries.group import Element, blocks
from coset.symmetries.symmetry import Symmetry

# Scores computed at once.
ENTRIES = 2**24


@dataclass(frozen=True, repr=False)
class PopulationMatch(Shown):
    """The alignment of each member of a population, as `coset.align_many` returns it.

    Args:
        element: A batch of n elements, one a member; `sym.act(element, population)` is the aligned population.
        objective: [n] in float64: what each member gained is this without the next.
        identity_objective: [n], the same without moving anything.
        sweeps: Passes over the groups, of the member that took most.
        seconds: The time it took.

    Example:
        >>> match = coset.align_many(population, sym)
        >>> bool((match.objective >= match.identity_objective).all())
        True
    """

    element: Element
    objective: Tensor
    identity_objective: Tensor
    sweeps: int
    seconds: float

    def _shown(self) -> Table:
        before, after = (float(x.mean()) for x in (self.identity_objective, self.objective))
        rows = [
            ("mean objective before", before),
            ("mean objective after", after),
            ("members that move", f"{int((self.objective > self.identity_objective).sum())} of {len(self.objective)}"),
            ("sweeps", self.sweeps),
            ("seconds", round(self.seconds, 3)),
        ]
        return Table(f"Match of a population of {len(self.objective)}", rows)


def align_population(population: State, reference: State, sym: Symmetry) -> PopulationMatch:
    """Maximise <r_k, g_k s_k> for every member k of a population, from a greedy first match.

    `reference` is one state, which is every r_k, or a population of as many. Elements are on the CPU, and permute.
    """
    start = time.perf_counter()
    sym = sym.without_matrices()
    n = states.size(population)
    own = any(reference[name].dim() > len(axes) for name, axes in sym.axes.items() if name in reference)
    first = {name: x[0] for name, x in reference.items()} if own else reference
    template = Objective(sym, [InnerProduct(first, {name: x[0] for name, x in population.items()})])
    nodes = nodes_of(template)
    largest = max((node.group.size for node in nodes), default=1)
    if all(isinstance(node, PlainNode) for node in nodes) and all(turn.sure for turn in turns(nodes)):
        step = max(1, ENTRIES // largest**2)
        parts = [
            _Batch(_rows(population, k, step), _rows(reference, k, step) if own else reference, sym, nodes, own).climb()
            for k in range(0, n, step)
        ]
        permutations = {name: torch.cat([p[name] for p, _ in parts]) for name in parts[0][0]} if parts else {}
        sweeps = max((count for _, count in parts), default=0)
    else:
        references = states.unstack(reference) if own else [reference] * n
        pairs = zip(references, states.unstack(population), strict=True)
        matches = [maximise(Objective(sym, [InnerProduct(*pair)]), greedy=True) for pair in pairs]
        names = [group.name for group in sym.groups]
        permutations = {name: torch.stack([match.element[name] for match in matches]) for name in names}
        sweeps = max(match.sweeps for match in matches)
    parameters = [name for name in reference if name in sym.axes and name not in sym.buffers]
    before = _inner(reference, population, parameters)
    after = _inner(reference, sym.act(sym.element(permutations), population), parameters)
    worse = after < before  # where the first match led astray, and nothing led back
    for name, p in permutations.items():
        same = torch.arange(p.shape[-1]).expand(p.shape)
        permutations[name] = torch.where(worse.reshape(-1, *[1] * (p.dim() - 1)), same, p)
    return PopulationMatch(
        sym.element(permutations), torch.maximum(after, before), before, sweeps, time.perf_counter() - start
    )


def _rows(population: State, start: int, count: int) -> State:
    return {name: x[start : start + count] for name, x in population.items()}


def _inner(reference: State, population: State, names: list[str]) -> Tensor:
    """[n] <r_k, s_k>."""
    total = torch.zeros(states.size(population), dtype=torch.float64)
    for name in names:
        if reference[name].is_floating_point():
            total += (population[name].double() * reference[name].double()).reshape(len(total), -1).sum(1).cpu()
    return total


class _Batch:
    """Coordinate ascent of the members of a population, each with permutations of its own."""

    def __init__(self, population: State, reference: State, sym: Symmetry, nodes: Sequence[Node], own: bool) -> None:
        """`own`: whether each member has a reference of its own."""
        self.population, self.reference, self.sym = population, reference, sym
        self.lead = 1 if own else 0
        self.nodes = [node for node in nodes if isinstance(node, PlainNode)]
        self.size = states.size(population)
        self.permutations = {
            node.name: torch.arange(node.group.size).expand(self.size, -1).contiguous() for node in self.nodes
        }

    def climb(self) -> tuple[dict[str, Tensor], int]:
        trusted: set[str] = set()
        for node in self.nodes:  # forward: those before are matched already
            if any(node.trusts(row, trusted) for row in node.rows):
                self._step(node, trusted)
                trusted.add(node.name)
        value = torch.zeros(self.size, dtype=torch.float64)
        sweeps, rising = 0, bool(self.nodes)
        while rising and sweeps < LARGEST_SWEEPS:
            gain = torch.stack([self._step(node, None, value) for node in self.nodes]).sum(0)
            value, sweeps, rising = value + gain, sweeps + 1, bool((gain > 0).any())
        return self.permutations, sweeps

    def _step(self, node: PlainNode, trusted: set[str] | None, value: Tensor | None = None) -> Tensor:
        """Give each member its best permutation of one set, if it gains; what it gained, [size]."""
        scores = self._scores(node, trusted)
        best = solve_many(scores)
        gain = best.value - scores.diagonal(dim1=1, dim2=2).double().sum(1).cpu()
        floor = ROUNDING * value.abs() if value is not None else torch.full_like(gain, -torch.inf)
        better = gain > floor
        p = self.permutations[node.name]
        self.permutations[node.name] = torch.where(better[:, None], p.gather(1, best.permutation.cpu()), p)
        return torch.where(better, gain, 0.0)

    def _scores(self, node: PlainNode, trusted: set[str] | None) -> Tensor:
        """[size, n, n]: <a_i, b_kj> with the members as they are moved now."""
        element = self.sym.element(self.permutations)
        total: Tensor | None = None
        for name in node.tensors:
            axes = self.sym.axes[name]
            image = self.sym.act(element, {name: self.population[name]})[name]
            pairs = zip(blocks(self.reference[name], axes, self.lead), blocks(image, axes, lead=1), strict=True)
            for a, b in pairs:
                if (at := a.where(node.name)) and node.trusts(a.labels, trusted):
                    scores = (_units(b.values, at[0], 1) @ _units(a.values, at[0], self.lead).mT).mT
                    total = scores if total is None else total + scores
        assert total is not None
        return total


def _units(values: Tensor, d: int, lead: int) -> Tensor:
    """(*lead, units, entries) of a block whose units are dimension d after the leading ones."""
    return values.movedim(d + lead, lead).unsqueeze(-1).flatten(lead + 1)
