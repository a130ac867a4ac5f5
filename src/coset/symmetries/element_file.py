"""Elements in files: the permutations and factors, with the symmetry they belong to, to be replayed without a model."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from coset.core.checkpoint import open_state, save_state
from coset.core.errors import StateError
from coset.symmetries.group import Element, Scaling
from coset.symmetries.symmetry import Symmetry

METADATA = "coset.symmetry"
PERMUTATION, SCALE = "permutation/", "scale/"


def save_element(path: str | Path, sym: Symmetry, element: Element) -> None:
    """Write a `.safetensors` file with the permutations, the factors, and the symmetry as metadata, atomically."""
    tensors = {PERMUTATION + name: p for name, p in element.permutations.items()}
    tensors |= {SCALE + name: c for name, c in element.scales.items()}
    save_state(tensors, path, {METADATA: sym.to_json()})


def load_element(path: str | Path) -> tuple[Symmetry, Element]:
    """Read what `save_element` wrote; permutations that are none are refused."""
    stored = open_state(path)
    if METADATA not in stored.metadata:
        raise StateError(f"{path} holds no element of a symmetry; `coset align` writes one beside its result.")
    sym = Symmetry.from_json(stored.metadata[METADATA])
    permutations: dict[str, Tensor] = {}
    scales: dict[str, Tensor] = {}
    factors = {scaling.name: scaling for scaling in sym.scalings}
    for key in stored:
        kind, _, name = key.partition("/")
        x = stored[key]
        if kind == "permutation" and name in sym.sets:
            known = sym.sets[name]
            shape = (sym.copies(name), known.size) if known.over else (known.size,)
            if x.shape != shape or not bool((x.sort(-1).values == x.new_tensor(range(known.size))).all()):
                raise StateError(f"'{key}' in {path} is not a permutation of {known.size} units.")
            permutations[name] = x.long()
        elif kind == "scale" and name in factors:
            scales[name] = _factors(key, x, factors[name], path)
        else:
            raise StateError(f"'{key}' in {path} belongs to no group or scaling of its symmetry.")
    return sym, sym.element(permutations, scales)


def _factors(key: str, x: Tensor, scaling: Scaling, path: str | Path) -> Tensor:
    shape = (scaling.copies, scaling.size) if scaling.over else (scaling.size,)
    if x.shape != shape:
        raise StateError(f"'{key}' in {path} has shape {tuple(x.shape)} where {shape} is expected.")
    good = x.abs() == 1 if scaling.kind == "sign" else x.isfinite() & (x > 0)
    if not bool(good.all()):
        wanted = "1 or -1" if scaling.kind == "sign" else "positive and finite"
        raise StateError(f"'{key}' in {path} has factors that are not {wanted}.")
    return x
