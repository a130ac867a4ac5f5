"""Algorithm 1 of rossi2023 as it is printed, with scipy's assignments: what `coset.align` is timed against."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from scipy.optimize import linear_sum_assignment

from coset import Element, Gaussian, Group, Solution, State, Symmetry
from coset.symmetries.group import blocks

ROUNDING = 1e-6  # of a gain, relative to the mean score of a row
StatePair = tuple[State, State]


def textbook_align(a: Solution, b: Solution, sym: Symmetry, generator: torch.Generator) -> Element:
    """By the scores of Eq. 19: of the means, and of the standard deviations where both solutions have them."""
    pairs: list[StatePair] = [(a.mean, b.mean)]
    if isinstance(a, Gaussian) and isinstance(b, Gaussian):
        pairs.append((a.std, b.std))
    return textbook_matching(pairs, sym, generator)


def textbook_matching(pairs: Sequence[StatePair], sym: Symmetry, generator: torch.Generator) -> Element:
    """Groups in random order, each takes its best permutation, until none changes; every matrix is made anew."""
    element, changed = sym.identity(), True
    while changed:
        changed = False
        images = [(p, sym.act(element, q)) for p, q in pairs]
        for k in torch.randperm(len(sym.groups), generator=generator).tolist():
            group = sym.groups[k]
            scores = _scores(images, sym, group)
            order = torch.from_numpy(linear_sum_assignment(scores.numpy(), maximize=True)[1])
            gain = float(scores[torch.arange(group.size), order].sum() - scores.trace())
            if gain > ROUNDING * float(scores.abs().sum()) / group.size:
                step = sym.element({group.name: order})
                element, changed = step @ element, True
                images = [(p, sym.act(step, q)) for p, q in images]
    return element


def _scores(pairs: Sequence[StatePair], sym: Symmetry, group: Group) -> torch.Tensor:
    scores = torch.zeros(group.size, group.size)
    for a, b in pairs:
        for name in {tensor for tensor, _ in group.members} - sym.buffers:
            axes = sym.axes[name]
            for x, y in zip(blocks(a[name], axes), blocks(b[name], axes), strict=True):
                for d in x.where(group.name):
                    rows, columns = (z.values.movedim(d, 0).reshape(group.size, -1) for z in (x, y))
                    scores += (rows @ columns.T).cpu()
    return scores
