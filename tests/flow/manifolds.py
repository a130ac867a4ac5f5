"""Manifolds without a network."""

from __future__ import annotations

import json

import coset
from coset import Manifold


def product(spheres: tuple[int, ...], flat: int) -> Manifold:
    """S^{d-1} for each d, times R^flat."""
    units = [f"h{k}" for k in range(len(spheres))]
    tensors: dict[str, list[str | int]] = {f"w{u}": [u, d] for u, d in zip(units, spheres, strict=True)}
    if flat:
        tensors["b"] = [flat]
    scalings = {f"s{u}": {"units": u, "members": [[f"w{u}", 0, 1.0]]} for u in units}
    spec = {"groups": dict.fromkeys(units, 1), "tensors": tensors, "scalings": scalings}
    return coset.manifold(coset.Symmetry.from_json(json.dumps(spec)))
