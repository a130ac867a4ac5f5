"""A Gaussian whose covariance in each tensor is a Kronecker product: what K-FAC gives."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from coset.core.contents import tensor
from coset.core.errors import SymmetryError
from coset.core.json_reader import JsonObject
from coset.core.state import StateLike, check, owners, tie
from coset.solutions.coordinates import agree_elsewhere, coordinate_sources, count, home, own_names, slices
from coset.solutions.covariance import Covariance, require_density, require_small
from coset.solutions.full_gaussian import FullGaussian
from coset.solutions.gaussian import MEAN, Gaussian
from coset.solutions.solution import Solution, as_noise, refuse_matrices, require_count, state_image
from coset.symmetries.group import Element
from coset.symmetries.symmetry import Symmetry

ROWS, COLUMNS = "rows.", "columns."  # before the names in a file


class KroneckerGaussian(Solution):
    """Independent Gaussian tensors with Cov(W_ij, W_kl) = A_ik B_jl in each: what K-FAC gives.

    A and B may be singular; then `log_prob` and `entropy` are refused, unless it is by rows or columns without
    variance, which are fixed. They are kept in float64.

    Args:
        mean: a mapping of tensors by name, or a module. Names that hold one tensor object are tied.
        factors: name -> (A [out, out], B [in, in]), the tensor being viewed as a matrix (out, in) with out = shape[0]
            and in all the rest, 1 for a vector; of tied names one has factors. Tensors without factors are fixed.
        noise: standard deviation of the observations of a regression network; None for a classifier.

    Raises:
        StateError: a factor has another shape, or is not positive semidefinite.
        CosetError: a factor has more than 20,000 rows.

    Example:
        >>> q = coset.KroneckerGaussian(model, {"layers.1.weight": (0.1 * torch.eye(10), 0.1 * torch.eye(16))})
        >>> round(q.marginal().std["layers.1.weight"].mean().item(), 6)
        0.1
    """

    kind: ClassVar[str] = "kronecker_gaussian"

    def __init__(
        self, mean: StateLike, factors: Mapping[str, tuple[Tensor, Tensor]], noise: float | None = None
    ) -> None:
        checked = check(mean, where="the mean")
        self.mean = tie({name: x.detach() for name, x in checked.items()}, owners(checked))
        self._factors: dict[str, tuple[Covariance, Covariance]] = {}
        for name, alias in zip(own_names(self.mean, list(factors), "the factors"), factors, strict=True):
            x, (a, b) = self.mean[name], factors[alias]
            rows, columns = _matrix(x).shape
            require_small(max(rows, columns))
            self._factors[name] = (
                Covariance.of(a, rows, f"The first factor of '{alias}'").to(x.device),
                Covariance.of(b, columns, f"The second factor of '{alias}'").to(x.device),
            )
        self.noise = as_noise(noise)

    @property
    def factors(self) -> dict[str, tuple[Tensor, Tensor]]:
        """name -> (A, B), float64."""
        return {name: (a.matrix, b.matrix) for name, (a, b) in self._factors.items()}

    @property
    def roots(self) -> dict[str, tuple[Tensor, Tensor]]:
        """name -> (R, S), float64, with A = R R^T and B = S S^T."""
        return {name: (a.root, b.root) for name, (a, b) in self._factors.items()}

    @property
    def is_random(self) -> bool:
        return any(bool(a.random.any() and b.random.any()) for a, b in self._factors.values())

    def sample(self, n: int, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """M + R E S^T with E ~ N(0, I), drawn on the generator's device.

        Args:
            n: how many.
            generator: what they come from; None is torch's own.
        """
        require_count(n)

        def draw(name: str, m: Tensor) -> Tensor:
            if name not in self._factors:
                return m.expand(n, *m.shape).clone()
            device = m.device if generator is None else generator.device
            noise = torch.randn((n, *_matrix(m).shape), generator=generator, device=device, dtype=torch.float64)
            left, right = (factor.root for factor in self._factors[name])
            return (m.double() + (left @ noise.to(m.device) @ right.T).reshape(n, *m.shape)).to(m.dtype)

        return tie({name: draw(name, m) for name, m in self.mean.items()}, owners(self.mean))

    def log_prob(self, state: StateLike) -> Tensor:
        """-(|R^-1 (W - M) S^-T|^2 + log det(2 pi A x B)) / 2, summed over tensors, over the random coordinates.

        Args:
            state: a mapping of tensors by name, or a module.
        """
        self._require_density()
        point = check(state, like=self.mean)
        if not agree_elsewhere(point, self.mean, list(self._factors)):
            return torch.tensor(-math.inf, dtype=torch.float64)
        total = torch.zeros((), dtype=torch.float64)
        for name, (a, b) in self._factors.items():
            m = _matrix(self.mean[name]).double()
            difference = _matrix(point[name]).to(m) - m
            random = a.random[:, None] & b.random
            if bool(difference[~random].any()):
                return torch.tensor(-math.inf, dtype=torch.float64)
            z = b.whiten(a.whiten(difference[a.random][:, b.random]).T)
            total = total.to(m.device) - (z.square().sum() + z.numel() * math.log(2 * math.pi) + _log_det(a, b)) / 2
        return total

    def entropy(self) -> Tensor:
        """log det(2 pi e A x B) / 2, summed over tensors, over the random coordinates."""
        self._require_density()
        total = torch.zeros((), dtype=torch.float64)
        for a, b in self._factors.values():
            size = int(a.random.sum()) * int(b.random.sum())
            total = total.to(a.root.device) + (size * (1 + math.log(2 * math.pi)) + _log_det(a, b)) / 2
        return total

    def _image(self, sym: Symmetry, g: Element) -> KroneckerGaussian:
        """Exact where an element moves and scales whole rows and columns; else it is refused."""
        refuse_matrices(g, "KroneckerGaussian")
        mean, factors = state_image(sym, g, self.mean), {}
        for name, (where, c) in coordinate_sources(sym, g, self.mean, list(self._factors)).items():
            factors[name] = self.factors[name]
            if where.numel():
                rows, columns = _axes(name, _matrix(where), _matrix(c))
                a, b = self._factors[name]
                factors[name] = a.image(*rows), b.image(*columns)
        return KroneckerGaussian(mean, factors, self.noise)

    def to(self, device: str | torch.device) -> KroneckerGaussian:
        mean = tie({name: x.to(device) for name, x in self.mean.items()}, owners(self.mean))
        return KroneckerGaussian(mean, self.factors, self.noise)

    def full(self) -> FullGaussian:
        """The same distribution with its whole covariance, for small networks."""
        names = list(self._factors)
        size = count(self.mean, names)
        require_small(size)
        covariance = torch.zeros((size, size), dtype=torch.float64, device=home(self.mean, names))
        for name, part in slices(self.mean, names).items():
            covariance[part, part] = torch.kron(*self.factors[name])
        return FullGaussian(self.mean, covariance, names, self.noise)

    def marginal(self) -> Gaussian:
        """The Gaussian with the same variances and no covariances."""
        std = {
            name: a.diagonal().outer(b.diagonal()).sqrt().reshape(self.mean[name].shape).to(self.mean[name])
            for name, (a, b) in self.factors.items()
        }
        return Gaussian(self.mean, std, self.noise)

    def _facts(self) -> list[tuple[object, ...]]:
        return [("factors", ", ".join(f"{name} {len(a)} x {len(b)}" for name, (a, b) in self.factors.items()))]

    def pack(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        tensors = {MEAN + name: x for name, x in self.mean.items()}
        for name, (a, b) in self.factors.items():
            tensors |= {ROWS + name: a, COLUMNS + name: b}
        return {"kind": self.kind, "noise": self.noise, "names": list(self._factors)}, tensors

    @classmethod
    def unpack(cls, description: JsonObject, tensors: dict[str, Tensor]) -> KroneckerGaussian:
        mean = {name.removeprefix(MEAN): x for name, x in tensors.items() if name.startswith(MEAN)}
        factors = {
            name: (tensor(tensors, ROWS + name), tensor(tensors, COLUMNS + name)) for name in description.texts("names")
        }
        return cls(mean, factors, description.optional_number("noise"))

    def _require_density(self) -> None:
        require_density(any(a.singular or b.singular for a, b in self._factors.values()))


def _matrix(x: Tensor) -> Tensor:
    """A tensor as (shape[0], all the rest)."""
    return x.reshape(len(x), math.prod(x.shape[1:])) if x.ndim else x.reshape(1, 1)


def _log_det(a: Covariance, b: Covariance) -> Tensor:
    """log det(A x B) = columns log det A + rows log det B, over the random ones."""
    return b.random.sum() * a.log_det() + a.random.sum() * b.log_det()


def _axes(name: str, index: Tensor, factor: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """(index, factor) of the rows and of the columns, from those of the entries [rows, columns]."""
    columns = index.shape[1]
    rows, places = index[:, 0] // columns, index[0] % columns
    down, across = factor[:, 0], factor[0] / factor[0, 0]
    whole = torch.equal(index, rows[:, None] * columns + places) and torch.allclose(factor, down.outer(across), 1e-9, 0)
    if not whole:
        raise SymmetryError(
            f"The element does not move '{name}' by whole rows and columns, so that its covariance is no Kronecker "
            "product any more: act on its full(), a FullGaussian."
        )
    return (rows, down), (places, across)
