"""A path is a function from t to a solution: the paths there are, and the loss along them and around."""

from coset.paths.barrier import Barrier, Path, barrier
from coset.paths.geodesic import Geodesic, geodesic
from coset.paths.mixture import MixturePath, mixture
from coset.paths.plane import Plane, plane

__all__ = ["Barrier", "Geodesic", "MixturePath", "Path", "Plane", "barrier", "geodesic", "mixture", "plane"]
