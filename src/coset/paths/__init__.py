"""A path is a function from t to a solution: the paths there are, and the loss along them."""

from coset.paths.barrier import Barrier, Path, barrier
from coset.paths.geodesic import Geodesic, geodesic
from coset.paths.mixture import MixturePath, mixture

__all__ = ["Barrier", "Geodesic", "MixturePath", "Path", "barrier", "geodesic", "mixture"]
