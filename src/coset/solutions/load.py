"""Solutions from files."""

from pathlib import Path

import torch
from torch import Tensor

from coset.core.checkpoint import load_state, open_state, refuse_other
from coset.core.contents import description, once, reading, tensor
from coset.core.json_reader import JsonObject
from coset.core.state import check
from coset.solutions.dirac import Dirac
from coset.solutions.ensemble import Ensemble
from coset.solutions.full_gaussian import FullGaussian
from coset.solutions.gaussian import Gaussian
from coset.solutions.kronecker_gaussian import KroneckerGaussian
from coset.solutions.mixture import Mixture
from coset.solutions.solution import METADATA, Solution
from coset.solutions.symmetrized import Symmetrized

KINDS: dict[str, type[Solution]] = {
    kind.kind: kind for kind in (Dirac, Gaussian, FullGaussian, KroneckerGaussian, Ensemble, Mixture, Symmetrized)
}


def unpack(record: JsonObject, tensors: dict[str, Tensor]) -> Solution:
    """The solution of a description, by its kind."""
    return KINDS[record.text("kind", tuple(KINDS))].unpack(record, tensors)


def load(path: str | Path, device: str | torch.device = "cpu") -> Solution:
    """The solution in a file.

    Args:
        path: what `Solution.save` wrote; any other checkpoint that `coset.load_state` reads is a Dirac.
        device: of all its tensors.

    Raises:
        StateError: the file holds a curve, a population or a flow, or cannot be read as a solution.

    Example:
        >>> posterior.save("posterior.safetensors")
        >>> coset.load("posterior.safetensors")
        Gaussian(4 tensors, 1,210 coordinates)
    """
    path = Path(path)
    refuse_other(path)
    text = open_state(path).metadata.get(METADATA) if path.suffix == ".safetensors" else None
    tensors = load_state(path, device)
    if text is None:
        return Dirac(check(tensors, where=str(path)))
    with reading(path, "a solution"):
        record = description(text)
        return unpack(record, once(record.names("owners"), lambda name: tensor(tensors, name)))
