"""Are hidden permutations found? Random nets of many kinds, their units shuffled, and brought back by one call each.

The nets are those of `bench.planted_nets`, with weights as PyTorch or the formula draws them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from bench.measurement import Measurement, machine
from bench.planted_nets import NETS
from coset import Element, Symmetry, align, align_many, symmetry
from coset.core import state as states
from coset.core.state import State

SEEDS = 10
COPIES = 4
EXACT = 1e-5  # of a distance, relative to the norm of the weights
EQUAL = 1e-6  # of two objectives, which are float32 products
NOTES = (
    f"Of {SEEDS} nets of each kind: a random element of the group moves the weights, and alignment must undo it.",
    "align: one copy, by default settings; one start: without the start by sorted weights.",
    f"joint, star: {COPIES} copies must come together, as for a merge.",
    "starts: of one call of align, the most; more than one where structure asks for it.",
    "Found: the distance is zero to rounding, so that symmetries of the weights themselves count as found.",
)


def run(seed: int, say: Callable[[str], None]) -> Measurement:
    """One row a kind of net."""
    rows: list[dict[str, Any]] = []
    for name in NETS:
        say(f"shuffling {name}")
        rows.append({"net": name} | row(name, seed))
    return Measurement("Planted permutations that are found", rows, NOTES, machine("torch"))


def row(name: str, seed: int = 0, seeds: int = SEEDS) -> dict[str, Any]:
    """How many of some random nets of a kind come back, how many starts that took, and the seconds of one align."""
    model, inputs = NETS[name]()
    sym = symmetry(model.eval(), inputs)
    counts = {"one start": 0, "align": 0, "joint": 0, "star": 0}
    starts, seconds = 1, 0.0
    for number in range(seed, seed + seeds):
        torch.manual_seed(number)
        a = states.of(NETS[name]()[0])
        generator = torch.Generator().manual_seed(number)
        copies = [a, *(sym.act(sym.random(generator), a) for _ in range(COPIES - 1))]
        begin = time.process_time()
        match = align(a, copies[1], sym)
        seconds += time.process_time() - begin
        starts = max(starts, len(match.objectives))
        back = together(copies[:2], [sym.identity(), match.element], sym)
        counts["align"] += back
        counts["one start"] += back and match.objectives[0] >= match.objective * (1 - EQUAL)
        counts["joint"] += together(copies, align_many(copies, sym).elements, sym)
        counts["star"] += together(copies, align_many(copies, sym, reference=0).elements, sym)
    return {"groups": len(sym.groups), **counts, "of": seeds, "starts": starts, "seconds": seconds / seeds}


def together(copies: Sequence[State], elements: Sequence[Element], sym: Symmetry) -> bool:
    """Whether the moved copies are the same, buffers aside."""
    first, *others = (
        {name: x for name, x in sym.act(g, one).items() if name not in sym.buffers and x.is_floating_point()}
        for g, one in zip(elements, copies, strict=True)
    )
    norm = float(states.norm(first))
    return all(float(states.norm(states.sub(one, first))) <= EXACT * norm for one in others)
