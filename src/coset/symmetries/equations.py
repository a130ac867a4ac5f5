"""Homogeneous linear equations, solved by substitution.

Coefficients are powers such as 1, -1, 2 and 1/2, which floating point holds exactly.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

TINY = 1e-9
Unknown = TypeVar("Unknown", bound=Hashable)
Expression = dict[Unknown, float]


class Equations(Generic[Unknown]):
    """Expressions over unknowns that must vanish; modulo 2 for signs.

    Every equation eliminates one unknown. :meth:`reduce` rewrites an expression in the unknowns still free.
    """

    def __init__(self, modulo_two: bool = False) -> None:
        self.modulo_two = modulo_two
        self.solved: dict[Unknown, Expression[Unknown]] = {}

    def combine(self, *terms: tuple[float, Mapping[Unknown, float]]) -> Expression[Unknown]:
        out: Expression[Unknown] = {}
        for factor, expression in terms:
            for unknown, coefficient in expression.items():
                out[unknown] = out.get(unknown, 0.0) + factor * coefficient
        if self.modulo_two:
            return {unknown: 1.0 for unknown, coefficient in out.items() if round(coefficient) % 2}
        return {unknown: coefficient for unknown, coefficient in out.items() if abs(coefficient) > TINY}

    def reduce(self, expression: Mapping[Unknown, float]) -> Expression[Unknown]:
        out = self.combine((1, expression))
        while known := [unknown for unknown in out if unknown in self.solved]:
            for unknown in known:
                coefficient = out.pop(unknown, None)
                if coefficient is not None:
                    row = self.reduce(self.solved[unknown])
                    self.solved[unknown] = row
                    out = self.combine((1, out), (coefficient, row))
        return out

    def vanish(self, expression: Mapping[Unknown, float]) -> None:
        """Add the equation ``expression = 0``; the youngest unknown is eliminated."""
        rest = self.reduce(expression)
        if rest:
            pivot = next(reversed(rest))
            coefficient = rest.pop(pivot)
            self.solved[pivot] = self.combine((-1 / coefficient, rest))

    def equal(self, a: Mapping[Unknown, float], b: Mapping[Unknown, float]) -> None:
        self.vanish(self.combine((1, a), (-1, b)))
