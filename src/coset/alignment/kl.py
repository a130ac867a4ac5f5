"""Alignment by the divergence KL(g q_b | q_a) of diagonal Gaussians."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from coset.alignment.method import AlignmentTask, Cost
from coset.alignment.objective import InnerProduct
from coset.alignment.precision import wide
from coset.core.errors import CosetError
from coset.solutions.gaussian import Gaussian


@dataclass(frozen=True)
class KL(Cost):
    """<m_a / s_a^2, g m_b> - <1 / (2 s_a^2), g (s_b^2 + m_b^2)>, over the tensors that are random."""

    name: ClassVar[str] = "kl"

    def products(self, task: AlignmentTask) -> Sequence[InnerProduct]:
        p, q = (wide(one) for one in task.gaussians(self.name))
        assert isinstance(p, Gaussian) and isinstance(q, Gaussian)
        random = [name for name in p.std if bool((p.std[name] > 0).any()) or bool((q.std[name] > 0).any())]
        for name in random:
            if not bool((p.std[name] > 0).all()):
                raise CosetError(f"The KL divergence is infinite: the first solution has no deviation in '{name}'.")
        precision = {name: p.std[name].pow(-2) for name in random}
        return [
            InnerProduct(
                {name: precision[name] * p.mean[name] for name in random}, {name: q.mean[name] for name in random}
            ),
            InnerProduct(
                {name: -0.5 * precision[name] for name in random},
                {name: q.std[name].square() + q.mean[name].square() for name in random},
            ),
        ]
