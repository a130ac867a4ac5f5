"""A Gaussian as two vectors over the coordinates that a symmetry may move."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coset.errors import CosetError
from coset.orbits.maps import OrbitMap
from coset.solutions.gaussian import Gaussian
from coset.solutions.ties import distinct
from coset.symmetries import Symmetry


@dataclass(frozen=True, eq=False)
class Vectors:
    """mean, std: (p,) of the random tensors `names` one after the other; orbit: how permutations move them."""

    names: tuple[str, ...]
    mean: Tensor
    std: Tensor
    orbit: OrbitMap

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """(n, p)."""
        noise = torch.randn((n, len(self.mean)), generator=generator, device=generator.device, dtype=self.mean.dtype)
        return self.mean + self.std * noise.to(self.mean.device)


def vectors(q: Gaussian, sym: Symmetry) -> Vectors:
    """The vectors of `q`, on its device; refused if a tensor that moves is fixed, since its images do not overlap."""
    names = [name for name in distinct(q.std) if bool((q.std[name] > 0).all())]
    moved = {name for group in sym.groups if group.size > 1 for name, _ in group.members}
    known = {*names} | {second for second, first in sym.tied.items() if first in names}
    for name in moved - known:
        if name in q.mean:
            raise CosetError(
                f"Tensor '{name}' is moved by the symmetry but has coordinates with standard deviation 0: equivalent "
                "modes of this posterior do not overlap at all."
            )
    shapes = {name: q.mean[name].shape for name in names}
    if not names:
        raise CosetError("No tensor of this posterior is random, so there is nothing to symmetrize.")
    mean, std = (torch.cat([x[name].flatten() for name in names]) for x in (q.mean, q.std))
    return Vectors(tuple(names), mean, std, OrbitMap(sym, shapes, mean.device))
