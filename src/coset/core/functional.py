"""Call a model with other tensors in place of its own; on which device, in which mode and precision."""

from __future__ import annotations

import contextlib
import copy
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn

from coset.core.errors import CosetError, ModelError

# Numbers up to which it is looked up whether two tensors really meet; larger ones whose ranges do are taken to.
LARGEST_EXACT = 1_000_000


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


def pairs_in_one_memory(tensors: Mapping[str, Tensor]) -> list[tuple[str, str]]:
    """Pairs of names of tensors that have entries in common, the larger tensor first.

    Args:
        tensors: The tensors of a state, one name for each.
    """
    by_memory: dict[int, list[str]] = {}
    for name, x in tensors.items():
        if x.layout == torch.strided and x.numel() and not x.is_quantized:
            by_memory.setdefault(x.untyped_storage()._cdata, []).append(name)
    return [
        (a, b) if tensors[a].numel() >= tensors[b].numel() else (b, a)
        for names in by_memory.values()
        for a, b in combinations(names, 2)
        if _meet(tensors[a], tensors[b])
    ]


def _meet(x: Tensor, y: Tensor) -> bool:
    first, last = max(int(x.storage_offset()), int(y.storage_offset())), min(_last(x), _last(y))
    if first > last or max(_last(x), _last(y)) > LARGEST_EXACT:
        return first <= last
    places = torch.arange(max(_last(x), _last(y)) + 1)
    a, b = (places.as_strided(z.shape, z.stride(), z.storage_offset()).flatten() for z in (x, y))
    return bool(torch.isin(a, b).any())


def _last(x: Tensor) -> int:
    """The last place in memory that a tensor has."""
    return int(x.storage_offset()) + sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))


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
