"""Estimators by name."""

from typing import Literal, get_args

from coset.errors import CosetError
from coset.orbits.estimators import Bethe, Estimator, Exact, Importance, InfoNCE
from coset.orbits.maps import OrbitMap

Entropy = Literal["infonce", "importance", "bethe", "exact"]


def estimator(entropy: Entropy, orbit: OrbitMap, elements: int) -> Estimator:
    """The estimator called `entropy`; `elements` is how many permutations the sampling ones use."""
    if entropy in get_args(Entropy) and not orbit.sets:
        return Exact(orbit)  # a group of one element
    if entropy == "infonce":
        return InfoNCE(orbit, elements)
    if entropy == "importance":
        return Importance(orbit, elements)
    if entropy == "bethe":
        return Bethe(orbit)
    if entropy == "exact":
        return Exact(orbit)
    raise CosetError(f"entropy must be {' or '.join(get_args(Entropy))}, not {entropy!r}.")
