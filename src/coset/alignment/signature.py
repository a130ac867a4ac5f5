"""How well two networks match unit by unit, as they stand."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from coset.alignment.activations import Activations
from coset.alignment.method import AlignmentTask
from coset.core.functional import resolve
from coset.core.state import StateLike, check, refuse_names
from coset.data import Data
from coset.solutions.as_solution import with_order
from coset.symmetries.symmetry import Symmetry


def signature(
    a: StateLike,
    b: StateLike,
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

    Args:
        a: A solution, a state or a module.
        b: Another, of the same names and shapes.
        sym: The symmetry of their model.
        model: The network.
        data: What it runs on.
        kind: Whether units are compared after ("post") or before ("pre") their activation function.
        batch_size: Examples that run through the model at once.
        device: Where to compute; by default where a lies.

    Returns:
        The mean correlation of each set of units, by the name of the set.

    Raises:
        CosetError: If the two, the symmetry, the model and the data do not fit together.

    Example:
        >>> aligned = sym.act(coset.align(a, b, sym).element, b)
        >>> before, after = (coset.signature(a, q, sym, model, digits.train) for q in (b, aligned))
        >>> before["layers.0"] < after["layers.0"]
        True
    """
    first, second = with_order(a), with_order(b)
    check(second.mean, like=first.mean, where="the second solution")
    refuse_names(sym.missing(first.mean), [], "the first solution")
    task = AlignmentTask(first, second, sym.without_matrices(), model, data, resolve(device, first.mean))
    scores = Activations(kind, batch_size=batch_size).scores(task)
    return {name: _own(scores[name]) for name in sym.sets if name in scores}


def _own(scores: Tensor) -> float:
    """The mean score of units with themselves: [n, n], or [copies, copies, n, n]."""
    units = scores.diagonal(dim1=-2, dim2=-1)
    return float((units.diagonal() if units.dim() > 1 else units).mean())
