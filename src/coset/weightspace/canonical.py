"""One representative of all networks that a symmetry makes equal."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from coset.alignment.align import align, align_many, as_method
from coset.alignment.method import AlignMethod
from coset.core.errors import StateError
from coset.core.names import plural
from coset.core.show import Shown, Table
from coset.core.state import State, StateLike, check, leading_shape, refuse_names, refuse_unequal_ties
from coset.data import Data
from coset.symmetries.group import Element, Fixed
from coset.symmetries.symmetry import Symmetry
from coset.weightspace.canonical_scales import refuse_whole_numbers, signs, unit_norms
from coset.weightspace.sort_units import sort_units


@dataclass(frozen=True, repr=False)
class Canonical(Shown):
    """A canonical network and how it came about.

    Args:
        state: the representative, `sym.act(element, original)`.
        element: `element.inverse()` leads back.

    Example:
        >>> c = coset.canonicalize(a, sym)
        >>> coset.state.allclose(sym.act(c.element.inverse(), c.state), a.state, atol=1e-5)
        True
    """

    state: dict[str, Tensor]
    element: Element

    def _shown(self) -> Table:
        batch = self.element.batch
        title = f"Canonical form of {plural(batch[0], 'network') if batch else 'one network'}"
        coordinates = sum(x.numel() for x in self.state.values()) // (batch[0] if batch else 1)
        rows = [("state", f"{len(self.state)} tensors, {coordinates:,} numbers each"), *self.element._shown().rows]
        return Table(title, rows)


def canonicalize(
    state: StateLike,
    sym: Symmetry,
    reference: StateLike | None = None,
    method: str | AlignMethod = "auto",
    *,
    model: nn.Module | None = None,
    data: Data | None = None,
) -> Canonical:
    """The network that stands for all that a symmetry makes equal: the same function, to rounding.

    First the positive factors, so that the weights into each unit have norm one (see
    `coset.weightspace.canonical_scales`: the weights out of the last units keep what the others give up, so that the
    function is the same); then signs (see `signs`); then the order of units (see `sort_units`). Scalings that hold
    only approximately, or with running statistics as they are, are left alone.

    Args:
        state: a state, a module or a Dirac; or the tensors of a population with one leading dimension, whose element
            is a batch.
        sym: the symmetry of the network.
        reference: units are brought in its order by `coset.align` with `method`, once both have canonical factors and
            signs; a population by `coset.align_many`, by weights only. How unique the result is, depends on the
            method.
        method: of alignment to the reference.
        model: what the methods "activations", "learned" and "sinkhorn" need.
        data: what the methods "activations", "learned" and "sinkhorn" need.

    Returns:
        The representative, and the element that leads to it.

    Raises:
        StateError: names or shapes are not those of the symmetry, or weights are whole numbers.

    Example:
        >>> image = sym.act(sym.random(scalings=True), a)
        >>> first, second = (coset.canonicalize(q, sym).state for q in (a, image))
        >>> coset.state.allclose(first, second, atol=1e-4)
        True
    """
    as_method(method)
    tensors = check(state)
    many = _population(tensors, sym)
    scaled = canonical_units(tensors, sym)
    if reference is None:
        order = sort_units(*in_real_numbers(scaled.state, sym))
    else:
        like = check(reference, where="the reference")
        if _population(like, sym):
            raise StateError("The reference of a canonical form is one state and not a population.")
        target = canonical_units(like, sym).state
        if many:
            order = align_many(scaled.state, sym, target, method).element
        else:
            order = align(target, scaled.state, sym, method, model, data).element
        order = order.to(next(iter(scaled.state.values())).device)
    return Canonical(sym.act(order, scaled.state), order @ scaled.element)


def canonical_units(state: State, sym: Symmetry) -> Canonical:
    """Canonical factors and signs, with units in the order that they have."""
    factors = unit_norms(*in_real_numbers(state, sym))
    positive = sym.act(factors, state)
    flips = signs(*in_real_numbers(positive, sym))
    return Canonical(sym.act(flips, positive), flips @ factors)


def in_real_numbers(state: State, sym: Symmetry) -> tuple[dict[str, Tensor], Symmetry]:
    """Complex weights as pairs of real ones, on a last axis of fixed order: factors and signs are real."""
    pairs = {name for name in sym.axes if name in state and state[name].is_complex()}
    axes = {name: (*row, Fixed(2)) if name in pairs else row for name, row in sym.axes.items()}
    tensors = {name: torch.view_as_real(x.resolve_conj()) if name in pairs else x for name, x in state.items()}
    return tensors, replace(sym, axes=axes)


def _population(state: State, sym: Symmetry) -> bool:
    """Whether there is a leading dimension; StateError where the tensors do not fit the symmetry."""
    refuse_names(sym.missing(state), [], "the state")
    shapes = {name: tuple(axis.size for axis in axes) for name, axes in sym.axes.items() if name in state}
    lead = leading_shape(state, shapes, "the symmetry")
    if lead == (0,):
        raise StateError("A canonical form is that of some networks, and this population is empty.")
    for name in shapes:
        if name not in sym.buffers:
            refuse_whole_numbers(name, state[name])
    refuse_unequal_ties(state, sym.tied)
    return bool(lead)
