"""From inferred terms to a `Symmetry`: names, members, fixed axes."""

from __future__ import annotations

from collections.abc import Mapping

from coset.symmetries.axes import COMPOSITES, Axis, Fixed, Units
from coset.symmetries.fibres import Bases, fibres
from coset.symmetries.group import IndexSet
from coset.symmetries.infer import Inference
from coset.symmetries.model_group import FixedAxis, Symmetry, simplify
from coset.symmetries.scaling import Factor, find_scalings, independent
from coset.symmetries.terms import Term, find, leaves, parts


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
