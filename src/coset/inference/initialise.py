"""Fresh parameters for a model that has some."""

import copy

from torch import nn

from coset.errors import ModelError


def fresh(model: nn.Module) -> nn.Module:
    """A copy on the CPU, initialised anew from torch's global generator, the same whatever the device.

    Each module that has it gets its `reset_parameters()` called, inner modules first, so that an outer one decides.
    A parameter that lies in no such module must be constant, like the ones and zeros of a norm, and stays:
    otherwise nobody knows how to draw it.
    """
    made = copy.deepcopy(model).cpu()
    drawn: set[int] = set()
    for module in reversed(list(made.modules())):
        # MultiheadAttention and Transformer have it under a private name.
        reset = getattr(module, "reset_parameters", getattr(module, "_reset_parameters", None))
        if callable(reset):
            reset()
            drawn.update(id(p) for p in module.parameters())
    for name, p in made.named_parameters():
        if id(p) not in drawn and p.numel() > 1 and bool((p != p.flatten()[0]).any()):
            owner = type(made.get_submodule(name.rpartition(".")[0])).__name__
            raise ModelError(
                f"Parameter '{name}' cannot be drawn anew: give {owner} a method reset_parameters() that does it."
            )
    return made
