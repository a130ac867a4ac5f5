"""What states must be before they become canonical, coordinates or graphs: of known shapes, real, one population."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from coset.checks import State, refuse_names, refuse_untied
from coset.errors import StateError


def leading(state: State, shapes: Mapping[str, tuple[int, ...]], who: str) -> tuple[int, ...]:
    """() of a state, (n,) of a population, whose tensors have these shapes; StateError says what `who` expects."""
    refuse_names([name for name in shapes if name not in state], [], "the state")
    leads: dict[tuple[int, ...], str] = {}
    for name, shape in shapes.items():
        found = tuple(state[name].shape)
        extra = len(found) - len(shape)
        if extra not in (0, 1) or found[extra:] != shape:
            raise StateError(f"Tensor '{name}' has shape {found}, {who} expects {shape}.")
        leads.setdefault(found[:extra], name)
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


def refuse_torn(state: State, tied: Mapping[str, str]) -> None:
    """Refuse a state in which two names of one tensor, second -> first, hold different values: one would be lost."""
    kept: dict[str, str] = {}
    for name in state:
        first = kept.setdefault(tied.get(name, name), name)
        if first != name:
            refuse_untied(first, name, state[first], state[name], "the state")
