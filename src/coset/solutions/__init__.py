"""Every solution is a distribution over states: what it is, and how good its predictions are."""

from coset.solutions.dirac import Dirac
from coset.solutions.evaluate import Evaluation, evaluate
from coset.solutions.gaussian import Gaussian
from coset.solutions.load import as_solution, load
from coset.solutions.mixture import Mixture
from coset.solutions.predict import predict
from coset.solutions.solution import Solution
from coset.solutions.wasserstein import wasserstein

__all__ = [
    "Dirac",
    "Evaluation",
    "Gaussian",
    "Mixture",
    "Solution",
    "as_solution",
    "evaluate",
    "load",
    "predict",
    "wasserstein",
]
