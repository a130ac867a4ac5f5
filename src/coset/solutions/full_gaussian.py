"""A Gaussian with any covariance: what a Laplace approximation of a small network gives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from coset.core.contents import tensor
from coset.core.json_reader import JsonObject
from coset.core.state import StateLike, check, distinct, owners, tie
from coset.solutions.coordinates import (
    agree_elsewhere,
    coordinate_sources,
    count,
    flatten,
    home,
    own_names,
    slices,
    unflatten,
)
from coset.solutions.covariance import Covariance, require_density, require_small
from coset.solutions.gaussian import MEAN, Gaussian
from coset.solutions.solution import Solution, as_noise, refuse_matrices, require_count, state_image
from coset.symmetries.group import Element
from coset.symmetries.symmetry import Symmetry

COVARIANCE = "covariance"


class FullGaussian(Solution):
    """Any covariance, q(w) = N(w; m, C): what a Laplace approximation of a small network gives.

    A coordinate without variance is fixed. C may be singular in other ways too; then `log_prob` and `entropy` are
    refused. It is kept in float64.

    Args:
        mean: a mapping of tensors by name, or a module.
        covariance: C [P, P], of the named tensors flattened and joined in that order.
        names: the tensors that are random, by default all floating ones, in their order and tied ones once; the others
            are fixed.
        noise: standard deviation of the observations of a regression network; None for a classifier.

    Raises:
        StateError: C has another shape, or is not positive semidefinite.
        CosetError: there are more than 20,000 coordinates.

    Example:
        >>> q = coset.FullGaussian(model, 0.01 * torch.eye(10), ["layers.1.bias"])
        >>> q.marginal().std["layers.1.bias"][0].item()
        0.10000000149011612
    """

    kind: ClassVar[str] = "full_gaussian"

    def __init__(
        self, mean: StateLike, covariance: Tensor, names: Sequence[str] | None = None, noise: float | None = None
    ) -> None:
        checked = check(mean, where="the mean")
        self.mean = tie({name: x.detach() for name, x in checked.items()}, owners(checked))
        if names is None:
            names = [name for name in distinct(self.mean) if self.mean[name].is_floating_point()]
        self.names = own_names(self.mean, names, "the names of the covariance")
        size = count(self.mean, self.names)
        require_small(size)
        self._covariance = Covariance.of(covariance, size, "The covariance").to(home(self.mean, self.names))
        self.noise = as_noise(noise)

    @property
    def covariance(self) -> Tensor:
        """[P, P] float64."""
        return self._covariance.matrix

    @property
    def root(self) -> Tensor:
        """[P, P] float64, R with C = R R^T."""
        return self._covariance.root

    @property
    def is_random(self) -> bool:
        return bool(self._covariance.random.any())

    def sample(self, n: int, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """m + R e with e ~ N(0, I), drawn on the generator's device.

        Args:
            n: how many.
            generator: what they come from; None is torch's own.
        """
        require_count(n)
        device = self.root.device if generator is None else generator.device
        noise = torch.randn((n, len(self.root)), generator=generator, device=device, dtype=torch.float64)
        vectors = flatten(self.mean, self.names) + noise.to(self.root.device) @ self.root.T
        samples = unflatten(vectors, self.mean, self.names)
        copies = {name: samples.get(name, x.expand(n, *x.shape)) for name, x in self.mean.items()}
        return tie({name: x.clone() for name, x in copies.items()}, owners(self.mean))

    def log_prob(self, state: StateLike) -> Tensor:
        """-((w - m)^T C^-1 (w - m) + log det(2 pi C)) / 2 over the random coordinates.

        Args:
            state: a mapping of tensors by name, or a module.
        """
        require_density(self._covariance.singular)
        point, random = check(state, like=self.mean), self._covariance.random
        difference = flatten(point, self.names).to(random.device) - flatten(self.mean, self.names)
        if bool(difference[~random].any()) or not agree_elsewhere(point, self.mean, self.names):
            return torch.tensor(-math.inf, dtype=torch.float64)
        z = self._covariance.whiten(difference[random, None])
        return -(z.square().sum() + len(z) * math.log(2 * math.pi) + self._covariance.log_det()) / 2

    def entropy(self) -> Tensor:
        """log det(2 pi e C) / 2 over the random coordinates."""
        require_density(self._covariance.singular)
        return (int(self._covariance.random.sum()) * (1 + math.log(2 * math.pi)) + self._covariance.log_det()) / 2

    def _image(self, sym: Symmetry, g: Element) -> FullGaussian:
        """Exact, as an element moves each coordinate to one place by w -> c w + b: C_ij becomes c_i c_j C_p(i)p(j)."""
        refuse_matrices(g, "FullGaussian")
        mean, device = state_image(sym, g, self.mean), self.root.device
        images = coordinate_sources(sym, g, self.mean, self.names)
        index = torch.arange(len(self.root), device=device)
        factor = torch.ones(len(self.root), dtype=torch.float64, device=device)
        for name, part in slices(self.mean, self.names).items():
            where, c = images[name]
            index[part] = part.start + where.flatten().to(device)
            factor[part] = c.flatten().to(device)
        return FullGaussian(mean, self._covariance.image(index, factor), self.names, self.noise)

    def to(self, device: str | torch.device) -> FullGaussian:
        mean = tie({name: x.to(device) for name, x in self.mean.items()}, owners(self.mean))
        return FullGaussian(mean, self.covariance.to(device), self.names, self.noise)

    def marginal(self) -> Gaussian:
        """The Gaussian with the same variances and no covariances."""
        std = unflatten(self.covariance.diagonal().sqrt(), self.mean, self.names)
        return Gaussian(self.mean, std, self.noise)

    def _facts(self) -> list[tuple[object, ...]]:
        rank = "singular" if self._covariance.singular else "of full rank"
        return [("random tensors", ", ".join(self.names)), ("covariance", f"{tuple(self.covariance.shape)}, {rank}")]

    def pack(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        mean = {MEAN + name: x for name, x in self.mean.items()}
        description = {"kind": self.kind, "noise": self.noise, "names": self.names}
        return description, mean | {COVARIANCE: self.covariance}

    @classmethod
    def unpack(cls, description: JsonObject, tensors: dict[str, Tensor]) -> FullGaussian:
        mean = {name.removeprefix(MEAN): x for name, x in tensors.items() if name.startswith(MEAN)}
        return cls(mean, tensor(tensors, COVARIANCE), description.texts("names"), description.optional_number("noise"))
