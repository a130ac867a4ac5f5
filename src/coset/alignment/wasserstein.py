"""Alignment by the W2 distance of diagonal Gaussians (rossi2023 Eq. 17)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from coset.alignment.method import AlignmentTask, Cost
from coset.alignment.objective import InnerProduct


@dataclass(frozen=True)
class Wasserstein(Cost):
    """<m_a, g m_b> + <s_a, g s_b>."""

    name: ClassVar[str] = "wasserstein"
    symmetric: ClassVar[bool] = True

    def products(self, task: AlignmentTask) -> Sequence[InnerProduct]:
        p, q = task.gaussians(self.name)
        return [InnerProduct(p.mean, q.mean), InnerProduct(p.std, q.std)]
