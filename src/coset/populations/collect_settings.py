"""How the networks of a population are trained, and which of them are kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from coset.errors import CosetError
from coset.inference.optimizers import SGD, Adam, Optimizer
from coset.inference.schedule import SCHEDULES
from coset.inference.stepping import check_choices, check_positive


@dataclass(frozen=True)
class Collect:
    """Each network minimises mean_i -log p(y_i | x_i, w) + weight_decay / 2 ||w||^2.

    rate: the largest learning rate, when None 0.1 for sgd and 2e-3 for adam. momentum: of sgd.
    batch_size: an epoch leaves out the examples that do not fill a batch, other ones each time.
    schedule: of the learning rate, to zero (cosine), after a warm-up (onecycle), or constant.
    precision: bfloat16 runs the model, not the parameters, in 16 bits; tf32 rounds the factors of matrix products on
    CUDA. compile: let torch compile the model, which pays in long runs of convolutional networks on CUDA.
    noise: standard deviation of the targets of a regression; 1 is half the squared error and a constant.
    chunk: networks that are trained together, on the same minibatches.
    every, skip: 0 keeps the networks at the end; k > 0 keeps every k-th iteration of every run after `skip` epochs.
    """

    RATES: ClassVar[dict[str, float]] = {"adam": 2e-3, "sgd": 0.1}

    optimizer: Literal["adam", "sgd"] = "sgd"
    rate: float | None = None
    momentum: float = 0.9
    weight_decay: float = 5e-4
    epochs: int = 25
    batch_size: int = 128
    schedule: Literal["cosine", "constant", "onecycle"] = "cosine"
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    compile: bool = False
    noise: float = 1.0
    chunk: int = 4096
    every: int = 0
    skip: int = 0

    def __post_init__(self) -> None:
        check_choices(self)
        check_positive(self, "rate", "epochs", "batch_size", "noise", "chunk")
        if not 0 <= self.momentum < 1:
            raise CosetError(f"Collect: momentum must be in [0, 1), not {self.momentum!r}.")
        if not 0 <= self.weight_decay < float("inf"):
            raise CosetError(f"Collect: weight_decay must be finite and not negative, not {self.weight_decay!r}.")
        if self.every < 0 or not 0 <= self.skip < self.epochs:
            raise CosetError(
                f"Collect: every must not be negative and skip be from 0 to epochs - 1, not {self.every!r} and "
                f"{self.skip!r} of {self.epochs!r}."
            )
        if self.skip and not self.every:
            raise CosetError("Collect: skip is for iterations that are kept: give every, too.")

    def rates(self, total: int) -> list[float]:
        """The rate of each of `total` steps."""
        largest = self.RATES[self.optimizer] if self.rate is None else self.rate
        return [largest * SCHEDULES[self.schedule](step / total) for step in range(total)]

    def optimize(self, parameters: list[Tensor]) -> Optimizer:
        """The optimizer of these parameters."""
        return Adam(parameters) if self.optimizer == "adam" else SGD(parameters, self.momentum)

    def keeps(self, iteration: int, steps: int) -> bool:
        """Whether the networks after so many iterations, from 1, are kept; an epoch has `steps` of them."""
        past = iteration - self.skip * steps
        return past > 0 and past % self.every == 0 if self.every else iteration == self.epochs * steps
