"""The device that a computation runs on."""

import torch
from torch import Tensor

from coset.checks import State
from coset.errors import CosetError


def resolve(device: str | torch.device | None, state: State) -> torch.device:
    """`device` with its index (`cuda` is `cuda:0`), or where `state` is if none is given."""
    if device is None:
        return next((x.device for x in state.values()), torch.device("cpu"))
    try:
        found: Tensor = torch.empty(0, device=device)
    # A build without CUDA says so with an AssertionError.
    except (RuntimeError, AssertionError) as error:
        raise CosetError(f"The device {str(device)!r} cannot be used: {str(error).splitlines()[0]}") from error
    return found.device
