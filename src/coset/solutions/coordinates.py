"""The coordinates of some tensors of a state as one vector, and where a group element sends them."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from coset.core.errors import StateError
from coset.core.state import State, distinct, is_coordinate, owners
from coset.symmetries.group import Element
from coset.symmetries.symmetry import Symmetry


def own_names(mean: State, names: Sequence[str], where: str) -> tuple[str, ...]:
    """`names` with the first name of each tied tensor; refused unless they are distinct floating tensors of `mean`."""
    tied = owners(mean)
    for name in names:
        if name not in mean:
            raise StateError(f"Unknown '{name}' in {where}.")
        if not mean[name].is_floating_point():
            raise StateError(f"Tensor '{name}' in {where} is {mean[name].dtype}, and only floating tensors are random.")
    owner_names = tuple(tied[name] for name in names)
    for k, name in enumerate(owner_names):
        if name in owner_names[:k]:
            raise StateError(f"Tensor '{names[k]}' is in {where} twice, by this name or by one it is tied to.")
    return owner_names


def count(state: State, names: Sequence[str]) -> int:
    """How many coordinates the named tensors have."""
    return sum(state[name].numel() for name in names)


def slices(state: State, names: Sequence[str]) -> dict[str, slice]:
    """Where each named tensor lies in the vector of `flatten`."""
    ends = list(itertools.accumulate((state[name].numel() for name in names), initial=0))
    return {name: slice(ends[k], ends[k + 1]) for k, name in enumerate(names)}


def home(state: State, names: Sequence[str]) -> torch.device:
    """Where the vector of the named tensors lies: beside the first."""
    return state[names[0]].device if names else torch.device("cpu")


def flatten(state: State, names: Sequence[str]) -> Tensor:
    """The named tensors flattened and joined in that order: (coordinates,) float64."""
    device = home(state, names)
    parts = [state[name].flatten().to(device, torch.float64) for name in names]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)


def unflatten(vectors: Tensor, like: State, names: Sequence[str]) -> dict[str, Tensor]:
    """The inverse of `flatten`, (..., coordinates) to tensors (..., *shape) with the dtypes and devices of `like`."""
    return {
        name: vectors[..., part].reshape((*vectors.shape[:-1], *like[name].shape)).to(like[name])
        for name, part in slices(like, names).items()
    }


def agree_elsewhere(state: State, mean: State, names: Sequence[str]) -> bool:
    """Whether `state` equals `mean` in all coordinates but those of the named tensors."""
    rest = (name for name in distinct(mean) if name not in names and is_coordinate(mean[name]))
    return all(bool((mean[name] == state[name].to(mean[name].device)).all()) for name in rest)


def rows(population: Tensor) -> Tensor:
    """(n, *shape) -> (n, coordinates) float64; a complex number is two coordinates."""
    real = torch.view_as_real(population.resolve_conj()) if population.is_complex() else population
    return real.double().reshape(len(real), math.prod(real.shape[1:]))


def coordinate_sources(
    sym: Symmetry, g: Element, state: State, names: Sequence[str]
) -> dict[str, tuple[Tensor, Tensor]]:
    """(index, factor) of each named tensor, both of its shape: g sends coordinate index[i], times factor[i], to i."""
    places = {name: torch.arange(state[name].numel(), device=state[name].device) for name in names}
    shaped = {name: place.reshape(state[name].shape) for name, place in places.items()}
    index = sym.act(dataclasses.replace(g, scales={}), shaped)
    factor = linear(sym).act(g, {name: torch.ones_like(x, dtype=torch.float64) for name, x in shaped.items()})
    return {name: (index[name], factor[name]) for name in names}


def linear(sym: Symmetry) -> Symmetry:
    """The linear part of the action: t -> c t where a scaling does t -> (t + offset) c - offset."""
    scalings = (
        dataclasses.replace(scaling, members=tuple(dataclasses.replace(m, offset=0.0) for m in scaling.members))
        for scaling in sym.scalings
    )
    return dataclasses.replace(sym, scalings=tuple(scalings))
