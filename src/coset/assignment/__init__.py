"""Assignments: exact, warm-started and certified, their relaxations to doubly stochastic matrices, and permanents."""

from coset.assignment.bethe import Bounds, bethe_beliefs, bethe_value, log_bethe, permanent_bounds
from coset.assignment.birkhoff import Birkhoff, birkhoff, sample_birkhoff
from coset.assignment.lap import Assignment, Assignments, Duals, solve, solve_many
from coset.assignment.permanent import log_permanent
from coset.assignment.permutation_sampling import PermutationSample, log_proposal, sample_permutations
from coset.assignment.projection import alternate_projections, project_doubly_stochastic
from coset.assignment.sinkhorn import sinkhorn
from coset.core.errors import AssignmentError

__all__ = [
    "Assignment",
    "AssignmentError",
    "Assignments",
    "Birkhoff",
    "Bounds",
    "Duals",
    "PermutationSample",
    "alternate_projections",
    "bethe_beliefs",
    "bethe_value",
    "birkhoff",
    "log_bethe",
    "log_permanent",
    "log_proposal",
    "permanent_bounds",
    "project_doubly_stochastic",
    "sample_birkhoff",
    "sample_permutations",
    "sinkhorn",
    "solve",
    "solve_many",
]
