"""Learning a curve: its control points follow the gradient of the loss at random points of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from coset.curves.buffers import Buffers, place
from coset.curves.ends import Ends
from coset.errors import CosetError
from coset.inference.attack import PGD, perturb
from coset.inference.descent import Descending, Descent, check_decay
from coset.inference.method import Problem
from coset.paths import CURVES, Curve

MOST_BENDS = 32  # the coefficients of a polynomial of much higher degree have no digits left


@dataclass(frozen=True)
class Connect(Descent):
    """Minimise E_t[mean_i -log p(y_i | x_i, w(t)) + weight_decay / 2 |w(t)|^2] over the inner control points.

    t ~ U(0, 1), which for a curve of constant speed is Eq. 1 of tatro2020; a batch is seen at one t (Algorithm 2).
    Between Gaussians w(t) is drawn from the one at t, and its entropy over n, the number of examples, is taken off:
    with weight_decay = 1 / (n v) this is minus the ELBO over n under the prior N(0, v), averaged along the curve.

    curve: a polynomial (bezier) or straight pieces (chain). bends: its inner control points. times: independent, or
    one in each of as many equal parts of [0, 1] as an epoch has batches, in random order (stratified), which has less
    variance. attack: the loss is taken at attacked inputs. The other settings are those of `Descent`; the rate is 1e-3
    for adam and 0.03 for sgd when None. The noise is that of the ends.
    """

    RATES: ClassVar[dict[str, float]] = {"adam": 1e-3, "sgd": 0.03}

    optimizer: Literal["adam", "sgd"] = "sgd"
    curve: Literal["bezier", "chain"] = "bezier"
    bends: int = 1
    times: Literal["stratified", "uniform"] = "stratified"
    weight_decay: float = 5e-4
    attack: PGD | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.bends <= MOST_BENDS:
            raise CosetError(f"Connect: a curve can have 1 to {MOST_BENDS} bends, not {self.bends!r}.")
        check_decay(self, self.weight_decay)
        if self.noise is not None:
            raise CosetError("Connect: the noise of a curve is that of its ends, and cannot be set.")


class Along(Descending):
    """A run whose loss is taken at one random point of a curve a step."""

    def __init__(self, settings: Connect, problem: Problem, ends: Ends, moved: list[Tensor]) -> None:
        """`moved` are the parameters that are learned, each with one row."""
        self.connect = settings
        self._noises = None if ends.noise is None else problem.start.new_tensor(ends.noise)
        super().__init__(settings, problem, moved, learns_noise=False)
        self._times = problem.start.new_zeros(self.steps)

    def epoch(self) -> list[tuple[float, float | None]]:
        (generator,) = self.problem.randomness.generators
        drawn = torch.rand(self.steps, generator=generator, device=self.problem.device)
        if self.connect.times == "stratified":
            parts = torch.randperm(self.steps, generator=generator, device=self.problem.device)
            drawn = (parts + drawn) / self.steps
        self._times.copy_(drawn)
        return super().epoch()

    def time(self) -> Tensor:
        """The t of this step, (1,)."""
        return self._times.index_select(0, (self._done % self.steps).view(1))

    def noise(self) -> Tensor:
        if self._noises is None:
            return super().noise()
        return torch.lerp(self._noises[0], self._noises[1], self.time()).view(-1, 1, 1)

    def bent(self, ends: Tensor, deviation: Tensor) -> Tensor:
        """The point at t, (1, p): (1-t) ends_0 + t ends_1 + sum_k B_k(t) deviation_k.

        ends: (2, p); deviation: (1, bends, p), by how much the inner control points are off equal distances on the
        line, as in tatro2020 Eq. 35. Since sum_k B_k(t) k / n = t, this is the curve.
        """
        t = self.time()
        inner = CURVES[self.connect.curve].basis(t, self.connect.bends + 1)[:, 1:-1]
        return torch.lerp(ends[0], ends[1], t.unsqueeze(1)) + torch.einsum("rb,rbp->rp", inner, deviation)

    def measured(self, weights: Tensor, buffers: Buffers, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The loss (1,) of the network `weights` (1, p), under attack if there is one, and its outputs.

        `buffers` are those of the two ends.
        """
        place(self.problem.network.model, buffers, self.time())
        if self.connect.attack is not None:
            fixed = weights.detach()

            def loss(changed: Tensor) -> Tensor:
                return self.loss(self.problem.network.aside(fixed, changed), targets)

            inputs = perturb(self.connect.attack, loss, inputs, self.problem.randomness.generators)
        outputs = self.problem.network(weights, inputs)
        return self.loss(outputs, targets), outputs

    def decay(self, weights: Tensor) -> Tensor:
        """weight_decay / 2 |w|^2, (1,)."""
        return self.connect.weight_decay / 2 * weights.square().sum(1)


class Connecting(Along):
    """The deviations of the control points, (1, bends, p), and for Gaussians those of their log-deviations.

    The step also minimises |deviation - start|^2 / (2 reach) if `reach` is finite, a proximal term (tatro2020 Eq. 34).
    """

    def __init__(
        self,
        settings: Connect,
        problem: Problem,
        ends: Ends,
        start: Tensor | None = None,
        reach: float = float("inf"),
    ) -> None:
        """`start`: where the deviations (1, bends, p) begin, on the straight line when None."""
        self._ends, self._reach = ends, reach
        self._mean, self._log_std, self._buffers = ends.mean, ends.log_std, ends.buffers
        size = 1, settings.bends, self._mean.shape[1]
        self._start = self._mean.new_zeros(size) if start is None else start
        self.deviation = self._start.clone()
        self.log_deviation = None if self._log_std is None else self._mean.new_zeros(size)
        learned = [x for x in (self.deviation, self.log_deviation) if x is not None]
        super().__init__(settings, problem, ends, learned)

    def objective(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        weights = mean = self.bent(self._mean, self.deviation)
        extra = self.decay(mean)
        if self._log_std is not None and self.log_deviation is not None:
            log_std = self.bent(self._log_std, self.log_deviation)
            std = log_std.exp()
            weights = mean + std * self.problem.normal()
            extra = extra + self.decay(std) - log_std.sum(1) / len(self.problem.split)
        if self._reach < float("inf"):
            extra = extra + (self.deviation - self._start).square().sum((1, 2)) / (2 * self._reach)
        loss, outputs = self.measured(weights, self._buffers, inputs, targets)
        return loss + extra, loss, outputs

    def curve(self) -> Curve:
        """The curve as it stands."""
        log_std = None if self.log_deviation is None else self.log_deviation[0].detach()
        return self._ends.curve(self.connect.curve, self.deviation[0].detach(), log_std)
