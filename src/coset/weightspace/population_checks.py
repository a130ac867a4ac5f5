"""Whether tensors are those of one network or of a population, and whether they can be made canonical."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from coset.core.errors import StateError
from coset.core.state import State, refuse_names, refuse_untied


def leading_shape(state: State, shapes: Mapping[str, tuple[int, ...]], who: str) -> tuple[int, ...]:
    """() of a state, (n,) of a population, whose tensors have these shapes; StateError says what `who` expects."""
    refuse_names([name for name in shapes if name not in state], [], "the state")
    leads: dict[tuple[int, ...], str] = {}
    for name, shape in shapes.items():
        actual = tuple(state[name].shape)
        extra = len(actual) - len(shape)
        if extra not in (0, 1) or actual[extra:] != shape:
            raise StateError(f"Tensor '{name}' has shape {actual}, {who} expects {shape}.")
        leads.setdefault(actual[:extra], name)
    if len(leads) > 1 and () in leads:
        other = next(name for lead, name in leads.items() if lead)
        raise StateError(f"Tensor '{other}' has a leading dimension, that of a population, which '{leads[()]}' lacks.")
    if len(leads) > 1:
        listed = ", ".join(f"{lead[0]} in '{name}'" for lead, name in leads.items())
        raise StateError(f"A population has one size in all tensors, but here it is: {listed}.")
    return next(iter(leads), ())


def refuse_unreal(name: str, x: Tensor) -> None:
    """Refuse what has no norm to be divided by."""
    if x.is_complex():
        raise StateError(f"Tensor '{name}' is {x.dtype}, and canonical forms are those of real weights.")
    if not x.is_floating_point():
        raise StateError(f"Tensor '{name}' holds whole numbers, which have no norm to be divided by: give weights.")


def refuse_unequal_ties(state: State, tied: Mapping[str, str]) -> None:
    """Refuse a state in which two names of one tensor, second -> first, hold different values: one would be lost."""
    firsts: dict[str, str] = {}
    for name in state:
        first = firsts.setdefault(tied.get(name, name), name)
        if first != name:
            refuse_untied(first, name, state[first], state[name], "the state")
