"""What all methods that follow a gradient to an optimum share: optimizers, schedules, a learned noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from coset.errors import CosetError
from coset.inference.method import Problem
from coset.inference.optimizers import SGD, Adam, Optimizer
from coset.inference.schedule import SCHEDULES
from coset.inference.stepping import Stepping, Stepwise, check_choices, check_positive
from coset.solutions.likelihood import Classification

INITIAL_NOISE = 0.5  # where a learned noise starts, for targets of unit variance


@dataclass(frozen=True)
class Descent(Stepwise):
    """Settings of what follows a gradient.

    rate: the largest learning rate, the method's own for the optimizer when None. momentum: of sgd.
    schedule: of the learning rate, to zero (cosine), after a warm-up (onecycle), or constant.
    noise: standard deviation of the targets of a regression, learned when None. The others are those of `Stepwise`.
    """

    RATES: ClassVar[dict[str, float]]

    optimizer: Literal["adam", "sgd"] = "adam"
    rate: float | None = None
    momentum: float = 0.9
    epochs: int = 50
    batch_size: int = 128
    schedule: Literal["cosine", "constant", "onecycle"] = "cosine"
    augment: bool = False
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    noise: float | None = None
    compile: bool = False

    @property
    def largest_rate(self) -> float:
        """The rate, or the method's own."""
        return self.RATES[self.optimizer] if self.rate is None else self.rate

    def __post_init__(self) -> None:
        check_choices(self)
        check_positive(self, "rate", "epochs", "batch_size", "noise")
        if not 0 <= self.momentum < 1:
            raise CosetError(f"{type(self).__name__}: momentum must be in [0, 1), not {self.momentum!r}.")


def check_decay(settings: Descent, decay: float) -> None:
    """Refuse a weight decay that is none."""
    if not 0 <= decay < math.inf:
        raise CosetError(f"{type(settings).__name__}: weight_decay must be finite and not negative, not {decay!r}.")


class Descending(Stepping):
    """A run that minimises an objective by minibatches."""

    def __init__(
        self, settings: Descent, problem: Problem, parameters: list[Tensor], learns_noise: bool = True
    ) -> None:
        """`parameters` have one row for each network; a noise that is not set is added to them if it is learned."""
        self._descent = settings
        noise = INITIAL_NOISE if settings.noise is None else settings.noise
        log_noise = problem.start.new_full((problem.rows,), math.log(noise))
        learned = learns_noise and settings.noise is None and not isinstance(problem.likelihood, Classification)
        moved = [*parameters, log_noise] if learned else parameters
        optimizer: Optimizer = Adam(moved) if settings.optimizer == "adam" else SGD(moved, settings.momentum)
        super().__init__(settings, problem, moved, log_noise, optimizer)

    def rate(self, step: int, total: int) -> float:
        return self._descent.largest_rate * SCHEDULES[self._descent.schedule](step / total)
