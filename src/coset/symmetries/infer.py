"""From inferred terms to a `Symmetry`: names, members, fixed axes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from coset.core import state as states
from coset.core.errors import SymmetryError
from coset.symmetries.blame import guilty_ops
from coset.symmetries.fibres import Bases, fibres
from coset.symmetries.group import COMPOSITES, Axis, Fixed, FixedAxis, IndexSet, Units
from coset.symmetries.scaling import Factor, find_scalings, independent
from coset.symmetries.symmetry import Symmetry, simplify
from coset.symmetries.terms import Term, find, leaves, parts
from coset.symmetries.trace import Args, positional, trace
from coset.symmetries.unify import Inference, infer
from coset.symmetries.verify import check, generic


def build(inference: Inference, aliases: Mapping[str, str]) -> Symmetry:
    found = find_scalings(inference.parameters, inference.tape)
    bases = fibres(inference.parameters, inference.tape, {factor.leaf for factor in found if factor.leaf})
    factors = independent(found, inference.parameters, bases)
    named = _names(inference, bases, factors)
    values = {name: inference.parameters[first] for name, first in aliases.items() if first in inference.parameters}
    axes = {name: tuple(simplify(_axis(term, named)) for term in value.axes) for name, value in values.items()}
    sets = {
        name: IndexSet(name, leaf.size, tuple(named[base] for base in bases.get(leaf, ())), not leaf.frozen)
        for leaf, name in named.items()
    }
    tied: dict[str, list[str]] = {}
    for name, first in aliases.items():
        tied.setdefault(first, []).append(name)
    scalings = tuple(factor.named(k, named, sets, tied) for k, factor in enumerate(factors))
    fixed = [
        FixedAxis(name, d, leaf.size, leaf.cause.op, leaf.cause.reason)
        for name, value in values.items()
        for d, term in enumerate(value.axes)
        for leaf in leaves(term)
        if leaf.cause is not None
    ]
    return Symmetry(sets, axes, scalings, tuple(dict.fromkeys(fixed)))


def _names(inference: Inference, bases: Bases, factors: list[Factor]) -> dict[Term, str]:
    """Name every unit set after the first module that produces it."""
    fixed_but_used = {base for found in bases.values() for base in found} | {factor.leaf for factor in factors}
    producers: dict[Term, str] = {}
    for name, value in inference.parameters.items():
        for term in value.axes:
            for leaf in leaves(term):
                if not leaf.frozen or leaf in fixed_but_used:
                    producers.setdefault(leaf, name)
    # A leaf first met on an input axis is named after its producer, if some tensor has it on axis 0.
    for name, value in inference.parameters.items():
        for leaf in leaves(value.axes[0]) if value.axes and name.endswith("weight") else []:
            if leaf in producers and not _on_first_axis(inference, producers[leaf], leaf):
                producers[leaf] = name
    taken: dict[str, list[Term]] = {}
    for leaf, tensor in producers.items():
        taken.setdefault(tensor.rpartition(".")[0] or tensor, []).append(leaf)
    named: dict[Term, str] = {}
    for module, found in taken.items():
        for k, leaf in enumerate(found):
            named[leaf] = module if len(found) == 1 else f"{module}[{k}]"
    return {leaf: named[leaf] for leaf in producers}


def _on_first_axis(inference: Inference, tensor: str, leaf: Term) -> bool:
    axes = inference.parameters[tensor].axes
    return bool(axes) and leaf in leaves(axes[0])


def _axis(term: Term, named: Mapping[Term, str]) -> Axis:
    term = find(term)
    if term.kind == "units":
        return Units(named[term], term.size) if term in named else Fixed(term.size)
    inner = tuple(_axis(child, named) for child in parts(term) if term.kind != "product" or find(child).size != 1)
    if len(inner) == 1:
        return inner[0]
    return COMPOSITES[term.kind](inner)


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
