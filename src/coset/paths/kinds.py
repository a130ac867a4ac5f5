"""Every kind of curve, by the name that settings and files have for it."""

from __future__ import annotations

from pathlib import Path

import torch

from coset.errors import StateError
from coset.paths.bezier import Bezier
from coset.paths.chain import Chain
from coset.paths.curve import Curve, read
from coset.solutions.kinds import KINDS

CURVES: dict[str, type[Curve]] = {kind.kind: kind for kind in (Bezier, Chain)}


def load_curve(path: str | Path, device: str | torch.device = "cpu") -> Curve:
    """The curve that `Curve.save` or `coset curve` wrote to `path`."""
    kind, parts = read(path, device)
    try:
        points = [KINDS[own["kind"]].unpack(own, tensors) for own, tensors in parts]
        return CURVES[kind](*points)
    except (KeyError, TypeError) as error:
        raise StateError(
            f"{path} holds a curve that cannot be read ({error!r}): it was written by another version, or changed."
        ) from error
