"""Many networks of one architecture: collected, kept, measured, and compared with others."""

from coset.populations.chunk import Collect
from coset.populations.collect import collect
from coset.populations.population import Population

__all__ = ["Collect", "Population", "collect"]
