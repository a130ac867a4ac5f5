"""How many networks of a chunk take a step together."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from coset.checks import State
from coset.functional import functional_call

# Numbers that a group holds, its weights and the outputs of its layers: what a processor's caches have room for, and
# what keeps a GPU busy.
HELD = {"cpu": 2**22, "cuda": 2**30}


@torch.no_grad()
def group_size(model: nn.Module, state: State, inputs: Tensor) -> int:
    """How many networks like `state` to train at a time on a minibatch `inputs`: a power of two.

    Then most groups of a chunk are of one size, for which a step is compiled once.
    """
    outputs = 0

    def count(_: nn.Module, __: object, output: object) -> None:
        nonlocal outputs
        outputs += output.numel() if isinstance(output, Tensor) else 0

    layers = [module for module in model.modules() if not any(module.children())]
    handles = [layer.register_forward_hook(count) for layer in layers]
    try:
        functional_call(model, dict(state), (inputs,))
    finally:
        for handle in handles:
            handle.remove()
    held = outputs + sum(x.numel() for x in state.values())
    most = max(HELD.get(inputs.device.type, HELD["cuda"]) // held, 1)
    return 1 << (most.bit_length() - 1)
