"""Call a model with other tensors in place of its own; on which device, in which mode and precision."""

from __future__ import annotations

import contextlib
import copy
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from coset.core.errors import CosetError, ModelError


def functional_call(
    model: nn.Module, tensors: Mapping[str, Tensor], args: Any, kwargs: dict[str, Any] | None = None
) -> Any:
    """`torch.func.functional_call`, also of models in which one module has several names.

    That one takes a tensor away once for each name of its module, and from the second name on puts back the one of
    `tensors`, so that the model would lose its own.
    """
    if torch.compiler.is_compiling():  # where `refuse_shared_modules` has been
        return torch.func.functional_call(model, dict(tensors), args, kwargs)
    holders: list[dict[str, Any]] = []
    for module in shared_modules(model):
        holders += [module._parameters, module._buffers]
    own = [dict(holder) for holder in holders]
    try:
        return torch.func.functional_call(model, dict(tensors), args, kwargs)
    finally:
        for holder, before in zip(holders, own, strict=True):
            holder.update(before)


def shared_modules(model: nn.Module) -> Iterator[nn.Module]:
    """The modules that have several names."""
    names = Counter(module for _, module in model.named_modules(remove_duplicate=False))
    return (module for module, count in names.items() if count > 1)


def refuse_shared_modules(model: nn.Module) -> None:
    """Compiled calls cannot give such modules their tensors back."""
    for module in shared_modules(model):
        names = [repr(name) for name, each in model.named_modules(remove_duplicate=False) if each is module]
        raise ModelError(f"{' and '.join(names)} are one module, which cannot be compiled: train without `compile`.")


@contextlib.contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Evaluate without dropout, batch statistics, gradients or fused attention kernels; all restored after."""
    training = [module for module in model.modules() if module.training]
    fast = torch.backends.mha.get_fastpath_enabled()
    try:
        model.eval()
        torch.backends.mha.set_fastpath_enabled(False)
        with torch.no_grad():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for module in training:
            module.training = True


def named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every parameter and buffer under every name it has."""
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def tied_names(model: nn.Module) -> dict[str, str]:
    """State name -> first name of the same tensor."""
    state = set(model.state_dict())
    first: dict[int, str] = {}
    return {name: first.setdefault(id(tensor), name) for name, tensor in named_tensors(model) if name in state}


@contextlib.contextmanager
def evaluating(model: nn.Module, device: torch.device) -> Iterator[nn.Module]:
    """The model in evaluation mode on `device`; a copy of it if it is elsewhere."""
    if any(x.device != device for x in [*model.parameters(), *model.buffers()]):
        model = copy.deepcopy(model).to(device)
    with evaluation_mode(model):
        yield model


def resolve(device: str | torch.device | None, state: Mapping[str, Tensor]) -> torch.device:
    """`device` with its index (`cuda` is `cuda:0`), or where `state` is if none is given."""
    if device is None:
        return next((x.device for x in state.values()), torch.device("cpu"))
    try:
        probe: Tensor = torch.empty(0, device=device)
    # A build without CUDA says so with an AssertionError.
    except (RuntimeError, AssertionError) as error:
        raise CosetError(f"The device {str(device)!r} cannot be used: {str(error).splitlines()[0]}") from error
    return probe.device


@contextlib.contextmanager
def matmul_precision(name: str) -> Iterator[None]:
    """Let matrix products on CUDA round their factors if that is asked for."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if name in ("tf32", "bfloat16") else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
