"""The engine that everything learned goes through: networks as vectors, minibatches, the loop, its folder."""

from coset.core.progress import Epoch
from coset.training.loop import Method, Problem, Run

__all__ = ["Epoch", "Method", "Problem", "Run"]
