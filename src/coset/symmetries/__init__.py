"""The symmetry group of a model: inferred from its graph, verified by running it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from coset import state as states
from coset.errors import SymmetryError
from coset.symmetries.arguments import Args, positional
from coset.symmetries.axes import Concat, Fixed, Interleave, Product, Units
from coset.symmetries.blame import guilty_ops
from coset.symmetries.build import build
from coset.symmetries.group import Element, Group, IndexSet, ScaledAxis, Scaling
from coset.symmetries.infer import infer
from coset.symmetries.model_group import FixedAxis, Symmetry
from coset.symmetries.trace import trace
from coset.symmetries.verify import Verification, check, generic

__all__ = [
    "Concat",
    "Element",
    "Fixed",
    "FixedAxis",
    "Group",
    "IndexSet",
    "Interleave",
    "Product",
    "ScaledAxis",
    "Scaling",
    "Symmetry",
    "Units",
    "Verification",
    "symmetry",
]


def symmetry(
    model: nn.Module,
    args: Args,
    kwargs: Mapping[str, Any] | None = None,
    *,
    strict: bool = False,
    verify: bool = True,
) -> Symmetry:
    """Infer the symmetry group of ``model`` in evaluation mode and verify it by running the model.

    args, kwargs: what the model is called with, such as example inputs: a tuple, or a tensor if there is one argument.
    An op without a rule fixes what it touches, listed in ``Symmetry.fixed``; ``strict`` raises instead.
    A model on the meta device has no weights to run with and is not verified.
    """
    start = time.perf_counter()
    args = positional(args)
    traced = trace(model, args, kwargs)
    exported = time.perf_counter()
    inference = infer(traced, strict)
    buffers = {name for name, _ in model.named_buffers(remove_duplicate=False)}
    found = replace(
        build(inference, traced.aliases),
        buffers=frozenset(buffers & traced.aliases.keys()),
        tied={name: first for name, first in traced.aliases.items() if name != first},
    )
    inferred = time.perf_counter()
    seconds = {"export": exported - start, "inference": inferred - exported, "verification": 0.0}
    real = not any(tensor.is_meta for tensor in model.state_dict().values())
    if not verify or not real:
        return replace(found, seconds=seconds)
    try:
        verification = check(found, model, args, kwargs)
    except SymmetryError as error:
        # At random weights, so that ties in the given ones blame no rule.
        weights = generic(states.of(model), torch.Generator().manual_seed(0))
        ops = guilty_ops(traced, inference, weights, args, kwargs or {})
        blame = f"; the rule of {', '.join(ops)} is wrong" if ops else ""
        raise SymmetryError(f"{error}{blame}") from error
    seconds["verification"] = time.perf_counter() - inferred
    return replace(found, verification=verification, seconds=seconds)
