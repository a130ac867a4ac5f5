"""Solutions from files, and from whatever a caller has."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch

from coset.checkpoint import load_state, open_state
from coset.checks import State, check
from coset.errors import StateError
from coset.solutions.dirac import Dirac
from coset.solutions.kinds import KINDS
from coset.solutions.solution import METADATA, Solution
from coset.solutions.symmetrized import Symmetrized

CURVE = "coset.curve"  # under this name a file says which curve it holds, in place of a solution


def load(path: str | Path, device: str | torch.device = "cpu") -> Solution:
    """The solution that `Solution.save` wrote to `path`; any other checkpoint is a Dirac.

    Reads whatever `coset.checkpoint.load_state` reads.
    """
    path = Path(path)
    refuse_curve(path)
    text = open_state(path).metadata.get(METADATA) if path.suffix == ".safetensors" else None
    tensors = load_state(path, device)
    if text is None:
        return Dirac(check(tensors, where=str(path)))
    try:
        description = json.loads(text)
        kind = KINDS[description["kind"]]
        return kind.unpack(description, {name: tensors[owner] for name, owner in description["owners"].items()})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StateError(
            f"{path} holds a solution that cannot be read ({error!r}): it was written by another version, or changed."
        ) from error


def refuse_curve(path: Path) -> None:
    """Refuse a curve where one network is wanted: its control points would pass for one with strange names."""
    if path.suffix == ".safetensors" and path.is_file() and CURVE in open_state(path).metadata:
        raise StateError(
            f"{path} holds a curve and not one network: measure it with `coset barrier {path}`, or take a point of "
            "coset.load_curve."
        )


def as_solution(given: State | Solution) -> Solution:
    """A solution as it is, and a state as a Dirac."""
    if isinstance(given, Solution):
        return given
    if isinstance(given, Mapping):
        return Dirac(given)
    raise StateError(f"A solution or a state (a dict of tensors) is expected, not a {type(given).__name__}.")


def with_order(given: State | Solution) -> Solution:
    """`as_solution`, of one whose units have an order: the mean of a symmetrized one has all of them alike."""
    solution = as_solution(given)
    if isinstance(solution, Symmetrized):
        raise StateError("A Symmetrized holds its units in every order, so it has no place of its own: give its q.")
    return solution
