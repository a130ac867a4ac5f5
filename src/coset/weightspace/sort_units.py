"""A deterministic order of the units of a network, the same for all its permutations."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import torch
from torch import Tensor

from coset.core.state import State
from coset.symmetries.group import Block, Element, blocks, labels
from coset.symmetries.symmetry import Symmetry
from coset.weightspace.canonical_scales import own_tensors

# Keys this many units in the last place of the largest apart are equal, as those of equal units are after rounding; of
# float32 at the least, since in fewer bits that would be most of them.
EQUAL = 64


def sort_units(state: State, sym: Symmetry) -> Element:
    """The permutation that sorts the units of every set by their weights, lexicographically; of a population, each.

    Sets are sorted one after another, first those whose weights lead to what has an order already: inputs, outputs,
    sorted units. A unit's keys are its weights to such, vectors (biases) first, then its other weights, each row of
    them sorted. Units inside others (of a head) are sorted within each, before those others. Units with the same keys
    keep their order: if they are equal in all weights, the result is the same either way.
    """
    names = own_tensors(sym, [name for name, x in state.items() if x.is_floating_point()])
    pending = [group.name for group in sym.groups if group.size > 1]
    element = sym.identity()
    while pending:
        units = _next(sym, names, pending)
        here = [name for name in names if any(label.units == units for row in labels(sym.axes[name]) for label in row)]
        image = sym.act(element, {name: state[name] for name in here})
        p = _sorted(_keys(image, sym, units, pending))
        p = p if sym.sets[units].over else p.squeeze(-2)
        element = sym.element({units: p}) @ element
        pending.remove(units)
    return element


def _next(sym: Symmetry, names: Iterable[str], pending: Collection[str]) -> str:
    """The set to sort next: none inside it waits, and the surest weights lead to it."""
    best = dict.fromkeys((units for units in pending if not _inside(sym, units, pending)), 2)
    for name in names:
        for row in labels(sym.axes[name]):
            block = Block(torch.empty(0), row)
            for units in best:
                for at in block.where(units):
                    rest = block.rest(at, sym.sets[units])
                    if all(row[d].units not in pending for d in rest):
                        is_weight = any(row[d].size > 1 for d in rest) and name not in sym.buffers
                        best[units] = min(best[units], 0 if is_weight else 1)
    return min(best, key=best.__getitem__)


def _inside(sym: Symmetry, units: str, pending: Iterable[str]) -> bool:
    return any(units in sym.sets[other].over for other in pending)


def _keys(state: State, sym: Symmetry, units: str, pending: Collection[str]) -> Iterator[Tensor]:
    """(*lead, copies, n, k) keys of the units, the surest first."""
    sources: list[tuple[int, Block, int, int]] = []
    for name, tensor in state.items():
        lead = tensor.dim() - len(sym.axes[name])
        for block in blocks(tensor, sym.axes[name], lead):
            for at in block.where(units):
                rest = block.rest(at, sym.sets[units])
                rank = 2 if any(block.labels[d].units in pending for d in rest) else 1 if rest else 0
                sources.append((rank + 3 * (name in sym.buffers), block, at, lead))
    for _, block, at, lead in sorted(sources, key=lambda entry: entry[0]):
        rest = block.rest(at, sym.sets[units])
        loose = [d for d in rest if block.labels[d].units in pending]
        settled = [d for d in rest if d not in loose]
        own = [*block.bases(at, sym.sets[units]), at]
        values = block.values.permute([*range(lead), *(lead + d for d in (*own, *settled, *loose))])
        values = values.reshape(*values.shape[:lead], -1, *values.shape[lead + len(own) - 1 :])
        values = values.reshape(*values.shape[: lead + 2 + len(settled)], -1)
        yield (values.sort(-1).values if loose else values).flatten(lead + 2)


def _sorted(keys: Iterable[Tensor]) -> Tensor:
    """(*lead, copies, n) the units by rank; a key is asked only where those before it are equal."""
    ranks: Tensor | None = None
    for key in keys:
        for column in key.unbind(-1):
            ranks = _refined(torch.zeros_like(column, dtype=torch.long) if ranks is None else ranks, column)
            if bool((ranks.amax(-1) == ranks.shape[-1] - 1).all()):
                return ranks.argsort(-1)
    assert ranks is not None
    return ranks.argsort(dim=-1, stable=True)


def _refined(ranks: Tensor, column: Tensor) -> Tensor:
    """Ranks (the number of distinct smaller ones) by (rank, column)."""
    order = column.argsort(dim=-1, stable=True)
    order = order.gather(-1, ranks.gather(-1, order).argsort(dim=-1, stable=True))
    before, values = ranks.gather(-1, order), column.gather(-1, order)
    tolerance = (
        EQUAL * torch.finfo(torch.promote_types(column.dtype, torch.float32)).eps * column.abs().amax(-1, keepdim=True)
    )
    apart = (before.diff(dim=-1) > 0) | (values.diff(dim=-1) > tolerance)
    places = torch.nn.functional.pad(apart.long().cumsum(-1), (1, 0))
    return torch.empty_like(places).scatter_(-1, order, places)
