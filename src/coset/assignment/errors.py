"""The error of this room."""

from coset.errors import CosetError


class AssignmentError(CosetError):
    """A cost matrix, a warm start or the choice of a kernel is not usable."""
