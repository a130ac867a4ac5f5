"""Training mode, for factors: there batch norms read the statistics of the batch, and not those of the state."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from coset.core.errors import SymmetryError
from coset.core.state import State
from coset.symmetries.examples import Example, resizings
from coset.symmetries.trace import Guarded, mode

logger = logging.getLogger(__name__)

Trains = Callable[[nn.Module], bool]


class EvaluationOnlyError(SymmetryError):
    """Factors that hold in evaluation change the function in training mode."""

    def __init__(self, message: str, scalings: tuple[str, ...]) -> None:
        super().__init__(message)
        self.scalings = scalings


def is_running_norm(module: nn.Module) -> bool:
    """Whether a module keeps statistics, which are measured again by `coset.recompute_norms`."""
    return isinstance(module, _NormBase) and module.running_mean is not None


def ways_to_train(model: nn.Module) -> Sequence[Trains]:
    """Which modules are in training mode: those that keep statistics alone, and all."""
    alone = [is_running_norm] if any(map(is_running_norm, model.modules())) else []
    return [*alone, lambda module: True]


@contextlib.contextmanager
def training(model: nn.Module, trains: Trains) -> Iterator[None]:
    """The model as in evaluation, but for the modules that train."""
    with mode(model, False):
        for module in model.modules():
            module.training = trains(module)
        yield


def trainable_call(run: Callable[[State, Example], list[Tensor]], state: State, example: Example) -> Example | None:
    """The example, or one of another size, that the model takes in training: batch norms refuse a batch of one."""
    for call in (example, *(resizing.of(example) for resizing in resizings(example, thorough=False))):
        try:
            with Guarded():
                run(state, call)
        except Exception as error:  # whatever a model raises that wants targets, a GPU or another batch
            logger.debug("the model does not take the call in training mode: %s", error)
        else:
            return call
    return None
