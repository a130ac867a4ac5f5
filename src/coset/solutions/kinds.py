"""Every kind of solution, by the name that its file has."""

from coset.solutions.dirac import Dirac
from coset.solutions.ensemble import Ensemble
from coset.solutions.full import FullGaussian
from coset.solutions.gaussian import Gaussian
from coset.solutions.kronecker import KroneckerGaussian
from coset.solutions.mixture import Mixture
from coset.solutions.solution import Solution
from coset.solutions.symmetrized import Symmetrized

KINDS: dict[str, type[Solution]] = {
    kind.kind: kind for kind in (Dirac, Gaussian, FullGaussian, KroneckerGaussian, Ensemble, Mixture, Symmetrized)
}
