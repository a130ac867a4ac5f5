"""A first match of all units by what no order of the others changes: their weights, sorted.

Groups that meet only one another, such as the bonds of a tensor train, say nothing about each other while none of them
is matched: scores at the identity are noise. The entries of a unit towards such units can be compared sorted, as
<sort(a_i), sort(b_j)> >= <a_i, P b_j> for every order P, with equality where b is a moved a. So generic weights that
differ by an element of the group alone are matched exactly in one pass.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import torch
from torch import Tensor

from coset.alignment.objective import Objective, gram, moved_scores
from coset.assignment import solve_many
from coset.symmetries.group import Block, Element, IndexSet, labels


def match_by_sorted_weights(objective: Objective) -> Element:
    """One assignment a set, units before those that lie over them, those first whose weights lead to what is matched.

    The entries of a unit towards fixed axes and matched units are compared as they stand, all others sorted.
    """
    sym = objective.sym
    pending = [group.name for group in sym.groups]
    element = sym.identity()
    while pending:
        units = _next(objective, pending)
        best = solve_many(_scores(objective, element, sym.sets[units], pending))
        p = best.permutation.cpu()
        element = sym.element({units: p if sym.sets[units].over else p[0]}) @ element
        pending.remove(units)
    return element


def _next(objective: Objective, pending: Collection[str]) -> str:
    """The set of which the largest share of entries leads to what is matched, and that lies over nothing unmatched."""
    sets = objective.sym.sets
    entries = {units: [0, 0] for units in pending if not set(sets[units].over) & set(pending)}
    for tensor in objective.tensors(set(entries)):
        for row in labels(objective.sym.axes[tensor]):
            size, block = math.prod(label.size for label in row), Block(torch.empty(0), row)
            for units, counts in entries.items():
                for d in block.where(units):
                    loose = [e for e in block.rest(d, sets[units]) if row[e].units in pending]
                    counts[0] += 0 if loose else size
                    counts[1] += size
    return max(entries, key=lambda units: entries[units][0] / max(1, entries[units][1]))


def _scores(objective: Objective, element: Element, index_set: IndexSet, pending: Collection[str]) -> Tensor:
    """[copies, n, n]: how alike units of A and of the moved B are."""
    name, n = index_set.name, index_set.size
    scores = torch.zeros(objective.sym.copies(name), n, n, device=objective.device)
    for tensor in objective.tensors({name}):
        for a, b in objective.blocks(tensor, element):
            for d in a.where(name):
                ours, theirs = (_keys(block, d, index_set, pending) for block in (a, b))
                # What all units share decides nothing, and would cost digits.
                shared = ours.mean(1, keepdim=True)
                scores = scores + gram(ours - shared, theirs - shared, [0], [1])
    if name in objective.linear:
        scores = scores + moved_scores(element, name, objective.linear[name].to(scores))
    return scores


def _keys(block: Block, d: int, index_set: IndexSet, pending: Collection[str]) -> Tensor:
    """[copies, n, entries] of the units at label d, sorted where no order is known."""
    rest = block.rest(d, index_set)
    loose = [e for e in rest if block.labels[e].units in pending]
    own, firm = [*block.bases(d, index_set), d], [e for e in rest if e not in loose]
    values = block.values.permute([*own, *firm, *loose])
    sizes = [[block.labels[e].size for e in dims] for dims in (own[:-1], own[-1:], firm, loose)]
    values = values.reshape([math.prod(row) for row in sizes])
    values = values.to(torch.float64 if values.dtype == torch.float64 else torch.float32)
    return (values.sort(-1).values if loose else values).flatten(2)
