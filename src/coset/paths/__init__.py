"""A path is a function from t to a solution: the paths there are, and the loss along them and around."""

from coset.paths.barrier import Barrier, Path, barrier
from coset.paths.connect import Connect
from coset.paths.curve import CURVES, Bezier, Chain, Curve, is_curve, load_curve
from coset.paths.find_curve import find_curve
from coset.paths.geodesic import Geodesic, geodesic
from coset.paths.interpolation_bound import InterpolationBound, interpolation_bound
from coset.paths.mixture import MixturePath, mixture
from coset.paths.pam import PAM, Alternation, alternate
from coset.paths.plane import Plane, plane

__all__ = [
    "CURVES",
    "PAM",
    "Alternation",
    "Barrier",
    "Bezier",
    "Chain",
    "Connect",
    "Curve",
    "Geodesic",
    "InterpolationBound",
    "MixturePath",
    "Path",
    "Plane",
    "alternate",
    "barrier",
    "find_curve",
    "geodesic",
    "interpolation_bound",
    "is_curve",
    "load_curve",
    "mixture",
    "plane",
]
