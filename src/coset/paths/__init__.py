"""A path is a function from t to a solution: the paths there are, and the loss along them and around."""

from coset.paths.barrier import Barrier, Path, barrier
from coset.paths.bezier import Bezier
from coset.paths.chain import Chain
from coset.paths.curve import Curve, is_curve
from coset.paths.geodesic import Geodesic, geodesic
from coset.paths.kinds import CURVES, load_curve
from coset.paths.mixture import MixturePath, mixture
from coset.paths.plane import Plane, plane

__all__ = [
    "CURVES",
    "Barrier",
    "Bezier",
    "Chain",
    "Curve",
    "Geodesic",
    "MixturePath",
    "Path",
    "Plane",
    "barrier",
    "geodesic",
    "is_curve",
    "load_curve",
    "mixture",
    "plane",
]
