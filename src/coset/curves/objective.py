"""The objective of a curve on fixed examples at fixed times, so that curves can be compared."""

from __future__ import annotations

import torch
from torch import Tensor

from coset.curves.buffers import Buffers, place
from coset.curves.connect import Connect
from coset.data import Split
from coset.inference.attack import perturb
from coset.inference.network import Network
from coset.paths import CURVES
from coset.paths.repair import running_norms
from coset.solutions.likelihood import likelihood_of

TIMES = 5  # at the middles of so many equal parts of [0, 1]
JUDGED = 1024  # examples at most
BATCH = 512


class Objective:
    """Q = mean over times and examples of -log p(y | x, w(t)) + weight_decay / 2 |w(t)|^2 (tatro2020 Eq. 5).

    As in training, norms with running statistics use those of the batch; there is no dropout. An attack starts from
    the same noise each time.
    """

    def __init__(self, settings: Connect, network: Network, split: Split, noise: tuple[float, float] | None) -> None:
        self._settings, self._network, self._noise = settings, network, noise
        some = split.subset(min(JUDGED, len(split)), torch.Generator().manual_seed(0))
        parts = -(-len(some) // BATCH)  # that differ by one at most: a norm needs more than a few
        self._batches = list(zip(some.inputs.tensor_split(parts), some.targets.tensor_split(parts), strict=True))
        self._examples = len(some)
        self._likelihood = likelihood_of(split.targets)

    @torch.no_grad()
    def __call__(self, ends: Tensor, buffers: Buffers, deviation: Tensor) -> float:
        """Of the curve with the ends (2, p) whose inner control points deviate by (1, bends, p) from the line.

        `buffers` are those of the two ends.
        """
        self._network.model.eval()
        for norm in running_norms(self._network.model).values():
            norm.train()
        times = (torch.arange(TIMES, device=ends.device, dtype=ends.dtype) + 0.5) / TIMES
        inner = CURVES[self._settings.curve].basis(times, self._settings.bends + 1)[:, 1:-1]
        total = 0.0
        for t, weights in zip(times, inner, strict=True):
            place(self._network.model, buffers, t.view(1))
            point = torch.lerp(ends[0], ends[1], t) + torch.einsum("b,bp->p", weights, deviation[0])
            total += self._loss(point.unsqueeze(0), float(t)) / TIMES
            total += self._settings.weight_decay / 2 * float(point.square().sum(dtype=torch.float64)) / TIMES
        return total

    def _loss(self, point: Tensor, t: float) -> float:
        noise = None if self._noise is None else (1 - t) * self._noise[0] + t * self._noise[1]

        total = 0.0
        for inputs, targets in self._batches:

            def loss(given: Tensor, targets: Tensor = targets) -> Tensor:
                outputs = self._network.aside(point, given)
                return -self._likelihood.log_prob(outputs, targets.unsqueeze(0), noise).flatten(1).sum(1)

            given = inputs.unsqueeze(0)
            if self._settings.attack is not None:
                generator = torch.Generator(inputs.device).manual_seed(0)
                given = perturb(self._settings.attack, loss, given, [generator])
            total += float(loss(given))
        return total / self._examples
