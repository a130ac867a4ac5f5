"""Errors a user can cause; each message is one sentence that names the culprit and the remedy."""

from coset.core.printable import printable


class CosetError(Exception):
    """Base of every error a user can cause. Its message may repeat names of files and tensors, in printable text."""

    def __str__(self) -> str:
        return printable(super().__str__())


class StateError(CosetError):
    """A state or checkpoint is malformed: missing or unknown keys, wrong shapes, NaN, a broken file."""


class DataError(CosetError):
    """A data set is unknown, absent or does not match its published hash."""


class ModelError(CosetError):
    """A model cannot be built or called as asked."""


class SymmetryError(CosetError):
    """A symmetry could not be inferred, or does not preserve the model's function."""


class AssignmentError(CosetError):
    """A cost matrix, a warm start or the choice of a kernel is not usable."""
