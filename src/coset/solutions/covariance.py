"""Covariance matrices: checked once, with a root to draw from and to transport by."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from coset.core.errors import CosetError, StateError

LARGEST = 20_000
# Rounding spoils an n x n factorization by about n eps; below this many times that, nothing is left of a number.
LOST = 16


@dataclass(frozen=True, eq=False)
class Covariance:
    """A positive semidefinite matrix, in float64.

    matrix: [n, n]
    root: [n, n] with matrix = root root^T; lower triangular unless `singular`
    random: [n], the coordinates with positive variance; the others are fixed, and their rows of the root zero
    singular: whether a combination of random coordinates is fixed, so that there is no density
    """

    matrix: Tensor
    root: Tensor
    random: Tensor
    singular: bool

    @classmethod
    def of(cls, matrix: Tensor, size: int, where: str) -> Covariance:
        """The covariance [size, size], refused under the name `where` unless it is positive semidefinite.

        All is judged beside the standard deviations of the coordinates, so that their units do not matter. Rounding
        in the dtype of `matrix` is forgiven: what it can spoil is taken for zero.
        """
        if not isinstance(matrix, Tensor) or not matrix.is_floating_point():
            raise StateError(f"{where} must be a tensor of floating point numbers.")
        if tuple(matrix.shape) != (size, size):
            raise StateError(f"{where} has shape {tuple(matrix.shape)} where {(size, size)} is expected.")
        wide = matrix.detach().double()
        if bad := int((~wide.isfinite()).sum()):
            raise StateError(f"{where} has {bad} NaN or infinite of {wide.numel()} values.")
        variances = wide.diagonal()
        if negative := int((variances < 0).sum()):
            raise StateError(f"{where} has {negative} negative of {size} variances on its diagonal.")
        limits = torch.finfo(matrix.dtype)
        # Smaller numbers have lost digits, and covariances may still be there where variances are not.
        deviation = variances.clamp(min=limits.tiny).sqrt()
        largest = deviation.outer(deviation)
        if bool(((wide - wide.T).abs() > math.sqrt(limits.eps) * largest).any()):
            raise StateError(f"{where} is not symmetric: give (c + c.T) / 2 if that is what is meant.")
        random = variances > limits.tiny
        if bool((wide[~random].abs() > 2 * largest[~random]).any()):
            raise StateError(f"{where} is not positive semidefinite: a coordinate without variance has covariances.")
        wide = torch.where(random[:, None] & random, (wide + wide.T) / 2, 0.0)
        return _factorized(wide, random, deviation[random], LOST * size * limits.eps, where)

    def log_det(self) -> Tensor:
        """The log-determinant over the random coordinates."""
        return 2 * self.root.diagonal()[self.random].log().sum()

    def whiten(self, x: Tensor) -> Tensor:
        """z [random, k] with root z = x for x [random, k]."""
        part = self.root[self.random][:, self.random]
        z: Tensor = torch.linalg.solve_triangular(part, x, upper=False)
        return z

    def image(self, index: Tensor, factor: Tensor) -> Tensor:
        """The matrix of y_i = factor_i x_index(i)."""
        return self.matrix[index][:, index] * factor.outer(factor)

    def to(self, device: str | torch.device) -> Covariance:
        return Covariance(self.matrix.to(device), self.root.to(device), self.random.to(device), self.singular)


def require_small(size: int) -> None:
    """Refuse a covariance of too many coordinates before it is made."""
    if size > LARGEST:
        raise CosetError(
            f"A full covariance of {size:,} coordinates is too large, the limit is {LARGEST:,}: name fewer tensors, or "
            "use a KroneckerGaussian or a Gaussian."
        )


def require_density(singular: bool) -> None:
    """Refuse to give a density where there is none."""
    if singular:
        raise CosetError(
            "There is no density over these coordinates, as their covariance is singular: add a small multiple of the "
            "identity to it."
        )


def _inverse_trace(root: Tensor, deviation: Tensor) -> Tensor:
    """The trace of the inverse of the correlations, whose least eigenvalue is 1 / trace or up to n times that."""
    inverse: Tensor = torch.linalg.solve_triangular(root, deviation.diag(), upper=False)
    return inverse.square().sum()


def _factorized(matrix: Tensor, random: Tensor, deviation: Tensor, lost: float, where: str) -> Covariance:
    """By Cholesky if that is sound, else by the eigenvectors of the correlations, what is less than `lost` being 0."""
    part = matrix[random][:, random]
    root, failed = torch.linalg.cholesky_ex(part)
    singular = bool(failed) or float(_inverse_trace(root, deviation)) * lost >= 1
    if singular:
        values, vectors = torch.linalg.eigh(part / deviation.outer(deviation))
        if float(values[0]) < -lost:
            raise StateError(
                f"{where} is not positive semidefinite: an eigenvalue of its correlations is {float(values[0]):.3g}."
            )
        root = deviation[:, None] * vectors * values.where(values > lost, 0.0).sqrt()
    full = torch.zeros_like(matrix)
    full[random[:, None] & random] = root.flatten()
    return Covariance(full @ full.T if singular else matrix, full, random, singular)
