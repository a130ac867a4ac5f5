"""Tied tensors: names that hold one tensor object are one tensor, drawn and counted once."""

from collections.abc import Mapping

from torch import Tensor

from coset.checks import State


def owners(state: State) -> dict[str, str]:
    """For each name the first name that holds the same tensor object."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(x), name) for name, x in state.items()}


def distinct(state: State) -> list[str]:
    """The names that hold a tensor object first."""
    return [name for name, owner in owners(state).items() if name == owner]


def tie(state: State, owner: Mapping[str, str]) -> dict[str, Tensor]:
    """`state` with the tensor of its owner under each name; arithmetic makes a new object of each name."""
    return {name: state[owner.get(name, name)] for name in state}
