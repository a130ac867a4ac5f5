"""The ways to align that have a name: the one list, which arguments, messages and the command line's help are made of.

Nothing here imports torch, so that help is quick.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple


class NamedMethod(NamedTuple):
    """The class of a method, as `file:Class` of this folder, and what it needs beside two states."""

    place: str
    needs: Literal["", "data", "Gaussians"] = ""


METHODS = {
    "auto": NamedMethod("weights:Auto"),
    "weights": NamedMethod("weights:Weights"),
    "wasserstein": NamedMethod("wasserstein:Wasserstein", needs="Gaussians"),
    "kl": NamedMethod("kl:KL", needs="Gaussians"),
    "activations": NamedMethod("activations:Activations", needs="data"),
    "learned": NamedMethod("learned:Learned", needs="data"),
    "sinkhorn": NamedMethod("sinkhorn:Sinkhorn", needs="data"),
}

NEED_DATA = frozenset(name for name, method in METHODS.items() if method.needs == "data")
"""Those that run the model."""


def _in_words(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} or {last}"


OF_GAUSSIANS = _in_words(METHODS)
"""For help: those that align two Gaussians, which are all."""
OF_STATES = _in_words(name for name, method in METHODS.items() if method.needs != "Gaussians")
"""For help: those that align two states."""
