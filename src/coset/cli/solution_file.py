"""Gaussian posteriors that commands read."""

from __future__ import annotations

from pathlib import Path

from coset.core.errors import CosetError
from coset.solutions.gaussian import Gaussian
from coset.solutions.load import load


def load_gaussian(path: Path, purpose: str, device: str = "cpu") -> Gaussian:
    """Refuses a solution that has no density with independent coordinates, which the purpose needs."""
    q = load(path, device)
    if not isinstance(q, Gaussian):
        raise CosetError(
            f"{path} holds a {type(q).__name__}, and {purpose} is known for Gaussians with independent coordinates, "
            "such as `coset fit --method vi` finds."
        )
    return q
