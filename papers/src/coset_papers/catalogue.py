"""Figures and tables by name, `paper/figure`."""

from __future__ import annotations

import importlib

from coset.core.errors import CosetError
from coset_papers.outcome import Exhibit

PAPERS = {
    "rossi2023": "Rossi, Singh, Hannagan: On permutation symmetries in Bayesian neural network posteriors",
    "gelberg2024": "Gelberg, van der Ouderaa, van der Wilk, Gal: Variational inference failures under model symmetries",
    "tatro2020": "Tatro, Chen, Das, Melnyk, Sattigeri, Lai: Optimizing mode connectivity via neuron alignment",
    "weightflow": "Flow matching over the weights of neural networks modulo their symmetries (a master's thesis)",
}


def exhibits() -> dict[str, Exhibit]:
    """All there are, by name."""
    return {
        f"{paper}/{name}": exhibit
        for paper in PAPERS
        for name, exhibit in importlib.import_module(f"coset_papers.{paper}").EXHIBITS.items()
    }


def find(name: str) -> Exhibit:
    """The exhibit of a name such as `gelberg2024/fig3`."""
    known = exhibits()
    if name not in known:
        raise CosetError(f"There is no figure {name!r} to reproduce, only {', '.join(known)}.")
    return known[name]
