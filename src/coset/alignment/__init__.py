"""Alignment: the element of a symmetry that brings one solution nearest to another."""

from coset.alignment.align import Activations, align, align_many
from coset.alignment.driver import Match, maximise
from coset.alignment.many import ManyMatch, barycenter
from coset.alignment.merge import merge
from coset.alignment.objective import Pair, Problem
from coset.alignment.population import PopulationMatch
from coset.alignment.signature import signature
from coset.alignment.sinkhorn import Sinkhorn

__all__ = [
    "Activations",
    "ManyMatch",
    "Match",
    "Pair",
    "PopulationMatch",
    "Problem",
    "Sinkhorn",
    "align",
    "align_many",
    "barycenter",
    "maximise",
    "merge",
    "signature",
]
