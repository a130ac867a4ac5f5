"""Call a model with other tensors in place of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from coset.errors import ModelError


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
