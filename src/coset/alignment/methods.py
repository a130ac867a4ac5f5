"""The ways to align that have a name: the one list, which arguments, messages and the command line's help are made of.

Nothing here imports torch, so that help is quick.
"""

from __future__ import annotations

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
    "sinkhorn": NamedMethod("sinkhorn:Sinkhorn", needs="data"),
}


def needs_data(method: str) -> bool:
    """Whether a method of this name runs the model on data."""
    return method in METHODS and METHODS[method].needs == "data"


def choices(*, gaussians: bool = False) -> str:
    """The names in words, for help: those that align two states, or also those that compare two Gaussians."""
    *names, last = [name for name, method in METHODS.items() if gaussians or method.needs != "Gaussians"]
    return f"{', '.join(names)} or {last}"
