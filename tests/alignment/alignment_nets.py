"""Small networks with their symmetry, shared by the tests of this room."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

import coset
from coset import Symmetry, zoo
from coset.core import state as states
from coset.symmetries.comparison import generic

SPECS = {
    "mlp": "mlp:6-8-7-4",
    "resnet": "resnet20:width=0.25",
    "vit": "vit:dim=16,depth=1,heads=2,patch=16",
    "gpt": "gpt:dim=16,depth=2,heads=2",
    "llama": "gpt:dim=16,depth=2,heads=4,kv_heads=2,rope=true,swiglu=true,norm=rms",
}
State = dict[str, Tensor]


@functools.cache
def network(name: str) -> tuple[torch.nn.Module, Symmetry]:
    """With permutations and factors; matrices have tests of their own."""
    torch.manual_seed(0)
    model = zoo.build(SPECS[name]).eval()
    return model, coset.symmetry(model, zoo.example_input(model)).without_matrices()


def random_state(model: torch.nn.Module, seed: int) -> State:
    """Weights of ordinary size, with norm statistics that are not trivial."""
    return generic(states.of(model), torch.Generator().manual_seed(seed))
