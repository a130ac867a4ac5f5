"""A symmetry as one JSON object: everything that was found, what was fixed, and how it was verified."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

from coset.symmetries.group import names
from coset.symmetries.symmetry import Symmetry


def summary(sym: Symmetry) -> dict[str, Any]:
    """The record that `coset inspect --json` prints; `symmetry` in it is what `Symmetry.from_json` reads."""
    verification = None
    if sym.verification is not None:
        verification = {"note": sym.verification.note} | dataclasses.asdict(sym.verification)
    record = {
        "log10_order": sym.log_order / math.log(10),
        "tensors": {"all": len(sym.axes), "moved": len(moved_tensors(sym)), "scalars": len(scalar_tensors(sym))},
        "groups": [dataclasses.asdict(group) for group in sym.groups],
        "scalings": [dataclasses.asdict(scaling) for scaling in sym.scalings],
        "fixed": [dataclasses.asdict(fixed) for fixed in sym.fixed],
        "verification": verification,
        "seconds": dict(sym.seconds),
    }
    return {**_strict(record), "symmetry": json.loads(sym.to_json())}


def moved_tensors(sym: Symmetry) -> list[str]:
    """The tensors that some group moves."""
    return [
        tensor
        for tensor, axes in sym.axes.items()
        if any(sym.sets[name].movable for axis in axes for name in names(axis))
    ]


def scalar_tensors(sym: Symmetry) -> list[str]:
    """The tensors of at most one entry, which have nothing to move."""
    return [tensor for tensor, axes in sym.axes.items() if all(axis.size <= 1 for axis in axes)]


def _strict(value: Any) -> Any:
    """JSON has no infinity: a deviation that could not be measured is null."""
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
