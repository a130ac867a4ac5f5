"""The permutation of a curve's end, relaxed: projected gradient steps over doubly stochastic matrices."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from coset.alignment import relaxed
from coset.assignment import alternate_projections, project_doubly_stochastic
from coset.curves.connect import Along, Connect
from coset.curves.ends import Ends
from coset.inference.method import Problem
from coset.inference.optimizers import Optimizer
from coset.symmetries import Symmetry

ROUNDS = 20  # of alternating projections a step


class Relaxing(Along):
    """min_D E_t[loss(w(t))] + sum |D - 1|^2 / (2 reach), over blocks D that are doubly stochastic (tatro2020 Eq. 34).

    w(t) = (1-t) theta_1 + t D theta_2 + sum_k B_k(t) deviation_k: the control points move with D theta_2, and their
    deviations from the line are held (Eq. 35). The blocks start as identities.
    """

    def __init__(
        self, settings: Connect, problem: Problem, ends: Ends, sym: Symmetry, deviation: Tensor, reach: float
    ) -> None:
        network = problem.network
        self._first, self._deviation, self._reach = ends.mean[0], deviation, reach
        self._second = {name: ends.last.mean[name] for name in network.names}
        self._buffers = ends.buffers
        self._sym = sym
        identity = sym.identity()
        blocks = {group.name: relaxed.matrix_of(identity, group.name) for group in sym.groups}
        self._same = {name: block.to(self._first).unsqueeze(0) for name, block in blocks.items()}
        self._blocks = {name: same.clone() for name, same in self._same.items()}
        super().__init__(settings, problem, ends, list(self._blocks.values()))
        self.optimizer = _Projected(self.optimizer, self.parameters)

    def objective(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        blocks = {name: block[0] for name, block in self._blocks.items()}
        mixed = relaxed.act(self._sym, blocks, self._second)
        second = torch.cat([x.flatten().to(self._first.dtype) for x in mixed.values()])
        weights = self.bent(torch.stack([self._first, second]), self._deviation)
        far = torch.stack([(block - self._same[name]).square().sum() for name, block in self._blocks.items()]).sum()
        lasts = relaxed.act(self._sym, blocks, {name: last for name, (_, last) in self._buffers.items()})
        buffers = {name: (self._buffers[name][0], last.detach()) for name, last in lasts.items()}
        loss, outputs = self.measured(weights, buffers, inputs, targets)
        return loss + self.decay(weights) + far / (2 * self._reach), loss, outputs

    def blocks(self) -> dict[str, Tensor]:
        """The blocks as they stand, doubly stochastic to rounding."""
        return {name: project_doubly_stochastic(block[0].detach()) for name, block in self._blocks.items()}


class _Projected(Optimizer):
    """Steps that end in the Birkhoff polytope; blocks of one size are projected together."""

    def __init__(self, inner: Optimizer, blocks: Sequence[Tensor]) -> None:
        self._inner = inner
        self._alike = [
            [block for block in blocks if block.shape == shape] for shape in dict.fromkeys(x.shape for x in blocks)
        ]
        self.state = inner.state

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], rate: Tensor) -> None:
        self._inner.step(gradients, rate)
        for blocks in self._alike:
            projected = alternate_projections(torch.stack(blocks), ROUNDS)
            for block, new in zip(blocks, projected, strict=True):
                block.copy_(new)
