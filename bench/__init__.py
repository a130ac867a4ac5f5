"""Measurements of coset beside other tools, by name.

Each is a module with a function `run(seed, say)` that returns a `Result`; other tools are optional imports.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

from bench.result import Result
from coset.core.errors import CosetError

__all__ = ["BENCHES", "Result", "run"]

BENCHES = {
    "fit": "how fast is variational training? coset, a plain loop and bayesian-torch on an MLP and a ResNet",
    "curve": "how fast is learning a curve? coset beside ordinary training and beside curve layers in eager torch",
    "flow": "how fast are flows over networks? learning and sampling by coset and by a plain loop in torch",
    "align": "matching the weights of trained networks: coset, rebasin and plain scipy",
    "symmetry": "is the function preserved? coset and rebasin on an MLP, a ResNet and two ViTs",
    "lap": "how fast is exact assignment? coset and scipy, cold and warm, on matrices up to 8192 x 8192",
}


def run(name: str, seed: int = 0, say: Callable[[str], None] = lambda text: None) -> Result:
    """Run one of BENCHES; `say` hears what is being measured."""
    if name not in BENCHES:
        raise CosetError(f"There is no bench {name!r}, only {', '.join(BENCHES)}.")
    found: Result = importlib.import_module(f"bench.{name}").run(seed, say)
    return found
