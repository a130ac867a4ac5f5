"""Some members of a population."""

from __future__ import annotations

from torch import Tensor

from coset.checks import State


def members(population: State, which: slice | Tensor) -> dict[str, Tensor]:
    """Those that a slice or numbers [m] choose, as a population; numbers may be on any device."""
    return {name: x[which.to(x.device) if isinstance(which, Tensor) else which] for name, x in population.items()}
