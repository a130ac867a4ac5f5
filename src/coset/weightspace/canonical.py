"""One representative of all networks that a symmetry makes equal."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from coset.alignment.align import align, align_many, as_method
from coset.alignment.method import AlignMethod
from coset.core.errors import StateError
from coset.core.state import State, check, refuse_names
from coset.data import Data
from coset.symmetries.group import Element
from coset.symmetries.symmetry import Symmetry
from coset.weightspace.chart import leading, refuse_torn, refuse_unreal
from coset.weightspace.gauge import signs, unit_norms
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
    method: str | AlignMethod = "auto",
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
        a population by `coset.align_many`, by weights only. How unique the result is, depends on the method.
    model, data
        what the methods "activations" and "sinkhorn" need
    """
    as_method(method)
    many = _population(check(state), sym)
    scaled = _scaled(state, sym)
    if reference is None:
        order = ordered(scaled.state, sym)
    else:
        if _population(check(reference, where="the reference"), sym):
            raise StateError("The reference of a canonical form is one state and not a population.")
        target = _scaled(reference, sym).state
        if many:
            order = align_many(scaled.state, sym, target, method).element
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
    shapes = {name: tuple(axis.size for axis in axes) for name, axes in sym.axes.items() if name in state}
    lead = leading(state, shapes, "the symmetry")
    if lead == (0,):
        raise StateError("A canonical form is that of some networks, and this population is empty.")
    for name in shapes:
        if name not in sym.buffers:
            refuse_unreal(name, state[name])
    refuse_torn(state, sym.tied)
    return bool(lead)
