"""Methods that find solutions, and `fit`, which runs them."""

from coset.inference.fit import Epoch, fit
from coset.inference.map import MAP
from coset.inference.method import Method, Run

__all__ = ["MAP", "Epoch", "Method", "Run", "fit"]
