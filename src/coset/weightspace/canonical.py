"""One representative of all networks that a symmetry makes equal."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from coset.alignment.api import Method, align, align_many
from coset.alignment.population import PopulationMatch
from coset.checks import State, check, refuse_names
from coset.data import Data
from coset.errors import StateError
from coset.symmetries import Element, Symmetry
from coset.weightspace.factors import signs, unit_norms
from coset.weightspace.order import ordered


@dataclass(frozen=True)
class Canonical:
    """state: the representative, ``sym.act(element, given)``; ``element.inverse()`` leads back."""

    state: dict[str, Tensor]
    element: Element


def canonicalize(
    state: State,
    sym: Symmetry,
    reference: State | None = None,
    method: Method = "auto",
    *,
    model: nn.Module | None = None,
    data: Data | None = None,
) -> Canonical:
    """The network that stands for all that ``sym`` makes equal to `state`: the same function, to rounding.

    First the positive factors, so that the weights into each unit have norm one (see `coset.weightspace.gauge`: the
    weights out of the last units keep what the others give up, so that the function is the same); then signs (see
    `signs`); then the order of units (see `ordered`). Scalings that hold only approximately are left alone.

    state
        a State, or a population with one leading dimension: then `element` is a batch
    reference
        units are brought in its order by `coset.align` with `method`, once both have canonical factors and signs;
        a population by `coset.align_many`. How unique the result is, depends on the method.
    model, data
        what the methods "activations" and "sinkhorn" need
    """
    many = _population(check(state), sym)
    scaled = _scaled(state, sym)
    if reference is None:
        order = ordered(scaled.state, sym)
    else:
        if _population(check(reference, where="the reference"), sym):
            raise StateError("The reference of a canonical form is one state and not a population.")
        target = _scaled(reference, sym).state
        if many:
            found = align_many(scaled.state, sym, target, method)
            assert isinstance(found, PopulationMatch)
            order = found.element
        else:
            order = align(target, scaled.state, sym, method, model, data).element
        order = order.to(next(iter(scaled.state.values())).device)
    return Canonical(sym.act(order, scaled.state), order @ scaled.element)


def _scaled(state: State, sym: Symmetry) -> Canonical:
    """Canonical factors and signs, with units as they are."""
    factors = unit_norms(state, sym)
    positive = sym.act(factors, state)
    flips = signs(positive, sym)
    return Canonical(sym.act(flips, positive), flips @ factors)


def _population(state: State, sym: Symmetry) -> bool:
    """Whether there is a leading dimension; StateError where the tensors do not fit the symmetry."""
    refuse_names(sym.missing(state), [], "the state")
    leads: dict[int, str] = {}
    for name, axes in sym.axes.items():
        if name not in state:
            continue
        shape, expected = tuple(state[name].shape), tuple(axis.size for axis in axes)
        lead = len(shape) - len(expected)
        if lead not in (0, 1) or shape[lead:] != expected:
            raise StateError(f"Tensor '{name}' has shape {shape}, the symmetry expects {expected}.")
        if not state[name].is_floating_point() and name not in sym.buffers:
            raise StateError(f"Tensor '{name}' holds whole numbers, which have no norm to be divided by: give weights.")
        if lead and not shape[0]:
            raise StateError("A canonical form is that of some networks, and this population is empty.")
        leads[lead] = name
    if len(leads) > 1:
        raise StateError(f"Tensor '{leads[1]}' has a leading dimension that '{leads[0]}' lacks.")
    return 1 in leads
