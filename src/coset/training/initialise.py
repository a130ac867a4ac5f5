"""Networks that training begins at, in place of fresh ones."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from coset.core import state as states
from coset.core.errors import ModelError, StateError
from coset.core.state import State, check


def fresh(model: nn.Module) -> nn.Module:
    """A copy on the CPU, initialised anew from torch's global generator, the same whatever the device.

    Each module that has it gets its `reset_parameters()` called, inner modules first, so that an outer one decides.
    A parameter that lies in no such module must be constant, like the ones and zeros of a norm, and stays:
    otherwise nobody knows how to draw it. Frozen parameters stay what they are, and so do the statistics of a module
    all of whose parameters are frozen.
    """
    try:
        new = copy.deepcopy(model).cpu()
    except RuntimeError as error:  # the old weight norm keeps a tensor that is part of a graph
        raise ModelError(f"{type(model).__name__} cannot be copied: {str(error).splitlines()[0]}") from error
    frozen = [(p, p.detach().clone()) for p in new.parameters() if not p.requires_grad]
    initialised = {id(p) for p, _ in frozen}
    for module in reversed(list(new.modules())):
        own = list(module.parameters())
        if own and not any(p.requires_grad for p in own):
            continue
        # MultiheadAttention and Transformer have it under a private name.
        reset = getattr(module, "reset_parameters", getattr(module, "_reset_parameters", None))
        if callable(reset):
            _reset(module, reset)
            initialised.update(id(p) for p in own)
    with torch.no_grad():
        for p, value in frozen:
            p.copy_(value)
    for name, p in new.named_parameters():
        if id(p) not in initialised and p.numel() > 1 and bool((p != p.flatten()[0]).any()):
            owner = type(new.get_submodule(name.rpartition(".")[0])).__name__
            raise ModelError(
                f"Parameter '{name}' cannot be drawn anew: give {owner} a method reset_parameters() that does it."
            )
    return new


def _reset(module: nn.Module, reset: Callable[[], object]) -> None:
    """Draw a module's parameters; those of a parametrized weight from the weight that was drawn."""
    if not parametrize.is_parametrized(module):
        reset()
        return
    assert isinstance(module.parametrizations, nn.ModuleDict)
    names = list(module.parametrizations)
    # The weight is computed at each look, so what is written into it is lost, but for inside this block.
    with torch.no_grad(), parametrize.cached():
        for name in names:
            getattr(module, name)
        reset()
        weights = {name: getattr(module, name).clone() for name in names}
    try:
        for name, weight in weights.items():
            setattr(module, name, weight)
    except (NotImplementedError, RuntimeError) as error:
        raise ModelError(f"The parametrized {type(module).__name__} cannot be drawn anew: {error}") from error


@dataclass(frozen=True, eq=False)
class InitialStates:
    """A state of `model` for each of the networks that are trained: population, each tensor (n, *shape)."""

    model: nn.Module
    population: dict[str, Tensor]

    @classmethod
    def of(cls, model: nn.Module, population: State, count: int) -> InitialStates:
        """Checked to be `count` states of the model."""
        size = states.size(population)
        if size != count:
            raise StateError(f"There are {size} starts for {count} networks: give as many.")
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
    def model_of(self, index: int) -> nn.Module:
        """A copy of the model on the CPU with the state of a network."""
        model = copy.deepcopy(self.model).cpu()
        own = model.state_dict(keep_vars=True)
        for name, x in self.population.items():
            own[name].copy_(x[index])
        return model
