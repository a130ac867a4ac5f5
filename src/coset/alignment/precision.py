"""Solutions in another precision: that of a model, or one that does not round."""

from __future__ import annotations

from torch import Tensor, nn

from coset.core.state import State
from coset.solutions.dirac import Dirac
from coset.solutions.gaussian import Gaussian
from coset.solutions.solution import Solution


def as_in(model: nn.Module, solution: Solution) -> Dirac:
    """The mean of a solution in the precision in which the model takes it."""
    own = {name: x.dtype for name, x in model.state_dict().items()}
    return Dirac({name: x.to(own[name]) if name in own else x for name, x in solution.mean.items()}, solution.noise)


def wide(solution: Solution) -> Solution:
    """Floating tensors of 16 bits in 32, so that sums and factors neither round nor overflow."""

    def widened(state: State) -> dict[str, Tensor]:
        return {name: x.float() if x.is_floating_point() and x.element_size() < 4 else x for name, x in state.items()}

    if isinstance(solution, Gaussian):
        return Gaussian(widened(solution.mean), widened(solution.std), solution.noise)
    return Dirac(widened(solution.mean), solution.noise) if isinstance(solution, Dirac) else solution
