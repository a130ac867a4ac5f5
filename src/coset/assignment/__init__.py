"""Assignments: exact, warm-started and certified, and their relaxations to doubly stochastic matrices."""

from coset.assignment.birkhoff import Birkhoff, birkhoff
from coset.assignment.errors import AssignmentError
from coset.assignment.lap import solve, solve_many
from coset.assignment.projection import project_doubly_stochastic
from coset.assignment.result import Assignment, Assignments, Duals
from coset.assignment.sinkhorn import sinkhorn

__all__ = [
    "Assignment",
    "AssignmentError",
    "Assignments",
    "Birkhoff",
    "Duals",
    "birkhoff",
    "project_doubly_stochastic",
    "sinkhorn",
    "solve",
    "solve_many",
]
