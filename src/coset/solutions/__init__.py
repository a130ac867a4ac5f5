"""Every solution is a distribution over states: what it is, and how good its predictions are."""

from coset.solutions.dirac import Dirac
from coset.solutions.ensemble import Ensemble
from coset.solutions.evaluate import Evaluation, evaluate
from coset.solutions.full import FullGaussian
from coset.solutions.gaussian import Gaussian
from coset.solutions.kronecker import KroneckerGaussian
from coset.solutions.load import as_solution, load
from coset.solutions.mixture import Mixture
from coset.solutions.moments import Moments, moments
from coset.solutions.predict import predict
from coset.solutions.solution import Solution
from coset.solutions.symmetrized import Symmetrized
from coset.solutions.wasserstein import wasserstein

__all__ = [
    "Dirac",
    "Ensemble",
    "Evaluation",
    "FullGaussian",
    "Gaussian",
    "KroneckerGaussian",
    "Mixture",
    "Moments",
    "Solution",
    "Symmetrized",
    "as_solution",
    "evaluate",
    "load",
    "moments",
    "predict",
    "wasserstein",
]
