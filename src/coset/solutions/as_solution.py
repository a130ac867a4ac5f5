"""Whatever stands for a network as a solution: a state and a module are Diracs."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from coset.core.errors import StateError
from coset.core.state import StateLike, as_state
from coset.solutions.dirac import Dirac
from coset.solutions.solution import Solution


def as_solution(x: StateLike, where: str = "the solution") -> Solution:
    """A solution as it is; a state or a module as a Dirac.

    Args:
        x: A mapping of tensors, a module, or a solution.
        where: Whose it is, for messages: "the first solution".

    Raises:
        StateError: If `x` is none of these, or a state with NaN or infinite values.
    """
    if isinstance(x, Solution):
        return x
    if isinstance(x, Mapping | nn.Module):
        return Dirac(as_state(x, where))
    raise StateError(
        f"A solution, a state (a dict of tensors) or a module is expected as {where}, not a {type(x).__name__}."
    )


def with_order(x: StateLike, where: str = "the solution") -> Solution:
    """`as_solution`, of one whose units have an order: the mean of a symmetrized one has all of them alike."""
    solution = as_solution(x, where)
    if not solution.has_order:
        raise StateError(
            f"A {type(solution).__name__} holds its units in every order, so it has no place of its own: give its q."
        )
    return solution
