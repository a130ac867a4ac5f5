"""Networks that training begins at, in place of fresh ones."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coset import state as states
from coset.checks import State, check
from coset.errors import StateError


@dataclass(frozen=True, eq=False)
class Starts:
    """A state of `model` for each of the networks that are trained: population, each tensor (n, *shape)."""

    model: nn.Module
    population: dict[str, Tensor]

    @classmethod
    def of(cls, model: nn.Module, population: State, count: int) -> Starts:
        """Checked to be `count` states of the model."""
        found = states.size(population)
        if found != count:
            raise StateError(f"There are {found} starts for {count} networks: give as many.")
        wide: dict[int, Tensor] = {}  # one object for tied names, which `check` goes by
        like = {name: wide.setdefault(id(x), x.expand(count, *x.shape)) for name, x in states.of(model).items()}
        return cls(model, check(population, like, "the starts"))

    @property
    def differ_in_trained_only(self) -> bool:
        """Whether buffers and frozen parameters, of which networks trained together have one copy, are all alike."""
        trained = {name for name, p in self.model.named_parameters(remove_duplicate=False) if p.requires_grad}
        others = (x for name, x in self.population.items() if name not in trained)
        return all(bool((x == x[:1]).all()) for x in others)

    @torch.no_grad()
    def begun(self, index: int) -> nn.Module:
        """A copy of the model on the CPU with the state of a network."""
        made = copy.deepcopy(self.model).cpu()
        own = made.state_dict(keep_vars=True)
        for name, x in self.population.items():
            own[name].copy_(x[index])
        return made
