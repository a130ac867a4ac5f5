"""The device that a computation runs on."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from coset.core.errors import CosetError
from coset.core.state import State


def resolve(device: str | torch.device | None, state: State) -> torch.device:
    """`device` with its index (`cuda` is `cuda:0`), or where `state` is if none is given."""
    if device is None:
        return next((x.device for x in state.values()), torch.device("cpu"))
    try:
        probe: Tensor = torch.empty(0, device=device)
    # A build without CUDA says so with an AssertionError.
    except (RuntimeError, AssertionError) as error:
        raise CosetError(f"The device {str(device)!r} cannot be used: {str(error).splitlines()[0]}") from error
    return probe.device


@contextmanager
def matmul_precision(name: str) -> Iterator[None]:
    """Let matrix products on CUDA round their factors if that is asked for."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if name in ("tf32", "bfloat16") else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
