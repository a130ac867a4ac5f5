"""Every solution is a distribution over states: what it is, and how good its predictions are."""

from coset.solutions.attack import PGD
from coset.solutions.dirac import Dirac
from coset.solutions.ensemble import Ensemble
from coset.solutions.evaluate import Evaluation, evaluate
from coset.solutions.full import FullGaussian
from coset.solutions.gaussian import Gaussian
from coset.solutions.kronecker import KroneckerGaussian
from coset.solutions.load import as_solution, load
from coset.solutions.mixture import Mixture
from coset.solutions.orbit_map import OrbitMap
from coset.solutions.overlap import Overlap, overlap
from coset.solutions.overlap_estimators import Bethe, Entropy, Estimator, Exact, Importance, InfoNCE, estimator
from coset.solutions.predictive import Moments, moments, predict
from coset.solutions.solution import Solution
from coset.solutions.symmetrized import Symmetrized
from coset.solutions.wasserstein import wasserstein

__all__ = [
    "PGD",
    "Bethe",
    "Dirac",
    "Ensemble",
    "Entropy",
    "Estimator",
    "Evaluation",
    "Exact",
    "FullGaussian",
    "Gaussian",
    "Importance",
    "InfoNCE",
    "KroneckerGaussian",
    "Mixture",
    "Moments",
    "OrbitMap",
    "Overlap",
    "Solution",
    "Symmetrized",
    "as_solution",
    "estimator",
    "evaluate",
    "load",
    "moments",
    "overlap",
    "predict",
    "wasserstein",
]
