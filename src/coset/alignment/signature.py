"""How well two networks match unit by unit, as they stand."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from coset.alignment.align import Activations
from coset.alignment.rescaling import as_in
from coset.core.device import resolve
from coset.core.state import State, check, refuse_names
from coset.data import Data
from coset.solutions.load import with_order
from coset.solutions.solution import Solution
from coset.symmetries.symmetry import Symmetry


def signature(
    a: Solution | State,
    b: Solution | State,
    sym: Symmetry,
    model: nn.Module,
    data: Data,
    kind: Literal["pre", "post"] = "post",
    batch_size: int = 500,
    device: str | torch.device | None = None,
) -> dict[str, float]:
    """The correlation signature, set of units -> mean_i correlation(a_i, b_i) over its units (tatro2020 Fig. 1).

    Correlations are over all examples and positions, after or before activation functions, and averaged where units
    are seen in several places: see `cross_statistics`, of which this is the diagonal. In a set that lies over others,
    each copy is compared with itself. A unit that is constant in one of the networks counts as 0, so that a network has
    the share of its live units as signature with itself. Sets are in the order of the network; those that are nowhere
    seen apart from others, such as heads, are absent.
    """
    first, second = with_order(a), with_order(b)
    check(second.mean, like=first.mean, where="the second solution")
    refuse_names(sym.missing(first.mean), [], "the first solution")
    where = resolve(device, first.mean)
    scores = Activations(kind, batch_size=batch_size).scores(
        as_in(model, first).mean, as_in(model, second).mean, sym, model, data, where, lambda text: None
    )
    return {name: _own(scores[name]) for name in sym.sets if name in scores}


def _own(scores: Tensor) -> float:
    """The mean score of units with themselves: [n, n], or [copies, copies, n, n]."""
    units = scores.diagonal(dim1=-2, dim2=-1)
    return float((units.diagonal() if units.dim() > 1 else units).mean())
