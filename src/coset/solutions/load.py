"""Solutions from files, and from whatever a caller has."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from coset.core.checkpoint import load_state, open_state
from coset.core.errors import StateError
from coset.core.state import StateLike, as_state, check
from coset.solutions.dirac import Dirac
from coset.solutions.ensemble import Ensemble
from coset.solutions.full import FullGaussian
from coset.solutions.gaussian import Gaussian
from coset.solutions.kronecker import KroneckerGaussian
from coset.solutions.mixture import Mixture
from coset.solutions.solution import METADATA, Solution
from coset.solutions.symmetrized import Symmetrized

KINDS: dict[str, type[Solution]] = {
    kind.kind: kind for kind in (Dirac, Gaussian, FullGaussian, KroneckerGaussian, Ensemble, Mixture, Symmetrized)
}


# Under these names files say that they hold something else than a solution.
CURVE, POPULATION, FLOW = "coset.curve", "coset.population", "coset.flow"
OTHERS = {
    CURVE: "a curve and not one network: measure it with `coset barrier {path}`, or take a point of coset.load_curve.",
    POPULATION: "a population and not one network: open it with coset.Population.load.",
    FLOW: "a flow and not one network: draw some with `coset flow sample {path}`, or open it with coset.Flow.load.",
}


def load(path: str | Path, device: str | torch.device = "cpu") -> Solution:
    """The solution that `Solution.save` wrote to `path`; any other checkpoint is a Dirac.

    Reads whatever `coset.core.checkpoint.load_state` reads.
    """
    path = Path(path)
    refuse_other(path)
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


def refuse_other(path: Path) -> None:
    """Refuse a file of something else where one network is wanted: it would pass for one with strange names."""
    if path.suffix != ".safetensors" or not path.is_file():
        return
    metadata = open_state(path).metadata
    for key, advice in OTHERS.items():
        if key in metadata:
            raise StateError(f"{path} holds {advice.format(path=path)}")


def as_solution(x: StateLike) -> Solution:
    """A solution as it is; a state, or that of a module, as a Dirac."""
    if isinstance(x, Solution):
        return x
    if isinstance(x, Mapping | nn.Module):
        return Dirac(as_state(x))
    raise StateError(f"A solution, a state (a dict of tensors) or a module is expected, not a {type(x).__name__}.")


def with_order(x: StateLike) -> Solution:
    """`as_solution`, of one whose units have an order: the mean of a symmetrized one has all of them alike."""
    solution = as_solution(x)
    if isinstance(solution, Symmetrized):
        raise StateError("A Symmetrized holds its units in every order, so it has no place of its own: give its q.")
    return solution
