"""The positive factors of B's units that bring it nearest to A, once its units are in A's order."""

from __future__ import annotations

import torch
from torch import Tensor

from coset.alignment.balance import Part, as_element, scaled_parts
from coset.checks import State
from coset.symmetries import Element, Symmetry

ROUNDS = 20
SETTLED = 1e-4  # of the logarithm of a factor
# Logarithms of factors tried at once; zero is among them, so that no step leads away.
TRIED = torch.linspace(-1.5, 1.5, 61, dtype=torch.float64)
NEWTON_STEPS = 4


def nearest_factors(a: State, b: State, sym: Symmetry) -> Element:
    """Minimise |a - r b|^2 over the trained tensors by coordinate descent over scalings, all units of one at once.

    For one unit, with members m of powers p, the distance is sum_m A - 2 c^p X + c^2p B, with A = |a_m|^2,
    X = <a_m, b_m> and B = |b_m|^2: a function of one number, which never rises here.
    """
    theirs, ours = scaled_parts(b, sym), scaled_parts(a, sym)
    trained = {s.name: [m.tensor not in sym.buffers for m in s.members] for s in sym.scalings}
    logs: dict[str, Tensor] = {}
    for _ in range(ROUNDS if theirs else 0):
        largest = 0.0
        for name, members in theirs.items():
            pairs = [
                p for p, counts in zip(zip(ours[name], members, strict=True), trained[name], strict=True) if counts
            ]
            if not pairs:
                continue
            step = _best_step(pairs)
            for member in members:
                member.multiply(step.exp())
            logs[name] = logs[name] + step if name in logs else step
            largest = max(largest, float(step.abs().max()))
        if largest < SETTLED:
            break
    return as_element(logs, sym)


def _best_step(pairs: list[tuple[Part, Part]]) -> Tensor:
    """(*copies, n): log c of least distance: the best of a row of trials, refined where that helps."""
    terms = [(theirs.power, ours.products(theirs), theirs.squares()) for ours, theirs in pairs]

    def distance(t: Tensor) -> Tensor:
        return torch.stack([(2 * p * t).exp() * b - 2 * (p * t).exp() * x for p, x, b in terms]).sum(0)

    shape = terms[0][1].shape
    tried = TRIED.to(terms[0][1].device).reshape(-1, *[1] * len(shape)).expand(-1, *shape)
    best = tried.gather(0, distance(tried).argmin(0, keepdim=True))[0]
    for _ in range(NEWTON_STEPS):
        slopes = [2 * p * ((2 * p * best).exp() * b - (p * best).exp() * x) for p, x, b in terms]
        bends = [2 * p**2 * (2 * (2 * p * best).exp() * b - (p * best).exp() * x) for p, x, b in terms]
        slope, bend = torch.stack(slopes).sum(0), torch.stack(bends).sum(0)
        step = torch.where(bend > 0, -slope / bend, 0.0).clamp(-0.1, 0.1)
        best = torch.where(distance(best + step) < distance(best), best + step, best)
    return torch.where(distance(best) < distance(torch.zeros_like(best)), best, 0.0)
