"""Densities on canonical coordinates beside densities on weights: the volume that rescaling takes."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from coset.core.errors import CosetError
from coset.symmetries.group import Element
from coset.weightspace.manifold import Manifold


def log_volume(manifold: Manifold, x: Tensor, log_scales: Mapping[str, Tensor]) -> Tensor:
    """The change of variables p(x, log r) = p(state) |d state / d (x, log r)| for state = act(r, canonical one at x).

    A factor r that takes the powers p_e in the entries e of a unit multiplies volumes by r^{sum p_e}; a condition
    |u| = 1 on weights that take the power p adds |p|, since only the part p u of d(r^p u) / d log r leaves the sphere,
    and the conditions are met one after another. For a ReLU unit with d incoming weights, a bias and m outgoing ones:
    (d + 1 - m) log r. With `polar`, weights of norm exp(l) in k dimensions add k l.

    Args:
        manifold: of `coset.manifold`.
        x: points [..., D]; volumes on spheres are areas.
        log_scales: scaling -> log r [..., n], or [..., copies, n]; those left out are zero. See `coset.log_scales`.

    Returns:
        log |d state / d (x, log r)|, [...].

    Raises:
        CosetError: a scaling is none of the manifold's, or its factors are not as many.

    Example:
        >>> M, c = coset.manifold(sym), coset.canonicalize(a, sym)
        >>> x, logs = M.coordinates(c.state), coset.log_scales(M, c.element)
        >>> coset.log_volume(M, x, logs).shape
        torch.Size([])
    """
    unknown = [name for name in log_scales if name not in manifold.exponents]
    if unknown:
        raise CosetError(f"Scaling '{unknown[0]}' is none of this manifold's, which are positive and exact.")
    manifold.check(x)
    lead = x.shape[:-1]
    total = torch.full(lead, manifold.log_powers, dtype=x.dtype, device=x.device)
    for name, logs in log_scales.items():
        count = manifold.factors[name]
        if logs.shape[: len(lead)] != lead or math.prod(logs.shape[len(lead) :]) != count or logs.dim() == len(lead):
            raise CosetError(
                f"Scaling '{name}' has {count} factors at each point, so their logarithms have shape "
                f"{(*lead, count)}, not shape {tuple(logs.shape)}."
            )
        total = total + manifold.exponents[name] * logs.flatten(len(lead)).sum(-1)
    for k, block in enumerate(manifold.chart.polar):
        total = total + block.size * x[..., x.shape[-1] - len(manifold.chart.polar) + k]
    return total


def log_scales(manifold: Manifold, element: Element) -> dict[str, Tensor]:
    """log r of the state that an element made canonical, in the order of the canonical units: minus its log factors.

    Args:
        manifold: of `coset.manifold`.
        element: of `coset.canonicalize`.

    Returns:
        Scaling -> [..., n], as `coset.log_volume` takes it.

    Example:
        >>> M = coset.manifold(sym)
        >>> {name: x.shape for name, x in coset.log_scales(M, coset.canonicalize(a, sym).element).items()}
        {'layers.0.scaling.0': torch.Size([16])}
    """
    return {name: -element.scales[name].log() for name in manifold.exponents if name in element.scales}
