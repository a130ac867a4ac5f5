"""A distribution and its images under a group: how much they overlap, and the entropy of their mixture."""

from coset.orbits.choose import Entropy, estimator
from coset.orbits.estimators import Bethe, Estimator, Exact, Importance, InfoNCE
from coset.orbits.maps import OrbitMap

__all__ = ["Bethe", "Entropy", "Estimator", "Exact", "Importance", "InfoNCE", "OrbitMap", "estimator"]
