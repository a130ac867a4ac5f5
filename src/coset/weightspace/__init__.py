"""The space of networks modulo their symmetries: canonical forms and the manifold they live on."""

from coset.weightspace.canonical import Canonical, canonicalize
from coset.weightspace.manifold import Manifold, manifold
from coset.weightspace.volume import log_scales, log_volume

__all__ = ["Canonical", "Manifold", "canonicalize", "log_scales", "log_volume", "manifold"]
