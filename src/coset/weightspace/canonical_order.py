"""A network brought into the order of the units of a point, for what its units have beside coordinates."""

from __future__ import annotations

import torch
from torch import Tensor

from coset.alignment.align import align
from coset.core.state import State, leading_shape, norm, stack, sub, unstack
from coset.symmetries.symmetry import Symmetry
from coset.weightspace.canonical import canonical_units
from coset.weightspace.canonical_chart import Chart
from coset.weightspace.sort_units import sort_units


def in_the_order_of(x: Tensor, like: State, chart: Chart, sym: Symmetry) -> dict[str, Tensor]:
    """The state, or for points [n, D] the population, with canonical factors, signs and the order of units of x.

    Of the orders that `like` has, that its weights give, and that alignment finds from these, the nearest to x counts:
    at a point of its own orbit one of them has distance zero.
    """
    lead = leading_shape(like, chart.shapes, "the manifold")
    if x.dim() == 1:
        return _nearest(x, like, chart, sym)
    members = unstack(like) if lead else [like] * len(x)
    return stack([_nearest(point, one, chart, sym) for point, one in zip(x, members, strict=True)])


def _nearest(x: Tensor, like: State, chart: Chart, sym: Symmetry) -> dict[str, Tensor]:
    own = canonical_units(like, sym).state
    # Signs that are no coordinates are not known of x, so they count for no order.
    target = chart.state(x.detach(), {name: torch.zeros_like(t) for name, t in own.items()})
    element = sort_units(own, sym)
    orders = [own, sym.act(element, own)]
    orders += [sym.act(align(target, one, sym).element, one) for one in orders]
    return min(orders, key=lambda one: float(norm(sub(_some(target, chart), _some(one, chart)))))


def _some(state: State, chart: Chart) -> dict[str, Tensor]:
    return {name: state[name] for name in chart.shapes}
