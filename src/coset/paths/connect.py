"""Learning a curve: its control points follow the gradient of the loss at random points of it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from coset.alignment.repair import running_norms
from coset.core import state as states
from coset.core.errors import CosetError
from coset.core.state import State, check, owners, tie
from coset.paths.curve import CURVES, Curve
from coset.solutions.dirac import Dirac
from coset.solutions.gaussian import Gaussian
from coset.solutions.gaussian_forms import as_gaussian
from coset.solutions.pgd import PGD, perturb
from coset.training.loop import Problem
from coset.training.minibatches import Descending, Descent, check_decay
from coset.training.network import Network

Buffers = Mapping[str, tuple[Tensor, Tensor]]
"""By name, at the first end and at the last."""


def movable(model: nn.Module) -> list[str]:
    """The floating buffers but for running statistics, which learning takes from the batch."""
    norms = {f"{name}.".removeprefix(".") for name in running_norms(model)}
    own = {f"{prefix}{key}" for prefix in norms for key in ("running_mean", "running_var")}
    return [name for name, x in model.named_buffers() if x.is_floating_point() and name not in own]


def between(model: nn.Module, first: State, last: State) -> Buffers:
    """The movable buffers of two states of a model; what is not persistent is in neither."""
    return {name: (first[name], last[name]) for name in movable(model) if name in first}


@torch.no_grad()
def place(model: nn.Module, buffers: Buffers, t: Tensor) -> None:
    """Set the buffers of the model to (1-t) first + t last, as a curve has them; t: (1,)."""
    own = dict(model.named_buffers())
    for name, (first, last) in buffers.items():
        own[name].copy_(torch.lerp(first, last, t.to(first.dtype).view([1] * first.dim())))


@dataclass(frozen=True, eq=False)
class Ends:
    """Two solutions of one model, and their p trainable parameters as vectors.

    mean: (2, p); log_std: (2, p) for Gaussians, None for Diracs; noise: (2,) of a regression, None of a classifier.
    """

    first: Dirac | Gaussian
    last: Dirac | Gaussian
    network: Network

    def __post_init__(self) -> None:
        for q in (self.first, self.last):
            if isinstance(q, Gaussian) and not all(
                bool((q.std[name] > 0).all()) for name in self.network.names if name in q.std
            ):
                raise CosetError(
                    "A curve between Gaussians needs positive standard deviations where they are learned, as it learns "
                    "their logarithms: give Gaussians that have them, or Diracs."
                )

    @property
    def mean(self) -> Tensor:
        return torch.stack([self.network.flatten(q.mean) for q in (self.first, self.last)])

    @property
    def log_std(self) -> Tensor | None:
        found = [self.network.flatten(q.std).log() for q in (self.first, self.last) if isinstance(q, Gaussian)]
        return torch.stack(found) if found else None

    @property
    def buffers(self) -> Buffers:
        """Those that go along the curve."""
        return between(self.network.model, self.first.mean, self.last.mean)

    @property
    def noise(self) -> tuple[float, float] | None:
        a, b = self.first.noise, self.last.noise
        return None if a is None or b is None else (a, b)

    def curve(self, kind: str, mean: Tensor, log_std: Tensor | None) -> Curve:
        """The curve whose inner control points deviate by `mean`, and their log-deviations by `log_std`, (bends, p).

        They deviate from equal distances on the straight line between the ends; whatever is no trainable parameter
        stays on that line.
        """
        inner: list[Dirac | Gaussian] = []
        for k, deviation in enumerate(mean):
            t = (k + 1) / (len(mean) + 1)
            state = self._moved(states.lerp(self.first.mean, self.last.mean, t), deviation)
            noise = None if self.noise is None else (1 - t) * self.noise[0] + t * self.noise[1]
            if log_std is None or self.log_std is None:
                inner.append(Dirac(state, noise))
            else:
                std = torch.exp(torch.lerp(self.log_std[0], self.log_std[1], t) + log_std[k])
                inner.append(Gaussian(state, self.network.unflatten(std), noise))
        return CURVES[kind](self.first, *inner, self.last)

    def _moved(self, state: State, deviation: Tensor) -> dict[str, Tensor]:
        tied = owners(self.first.mean)
        moved = {
            name: (state[name].to(x.dtype) + x).to(state[name].dtype)
            for name, x in self.network.unflatten(deviation).items()
        }
        return tie({name: moved.get(tied[name], x) for name, x in state.items()}, tied)


def ends_of(
    first: Dirac | Gaussian, last: Dirac | Gaussian, model: nn.Module, device: torch.device, thawed: bool = False
) -> Ends:
    """The ends on `device`, with a network that holds what is not trained: buffers and frozen parameters of `first`.

    A frozen parameter stays if the ends agree on it; otherwise, or if all are to be `thawed`, it is trained.
    """
    net = copy.deepcopy(model).to(device)
    like = states.of(net)
    random = isinstance(first, Gaussian) or isinstance(last, Gaussian)
    a, b = (
        _fitted(as_gaussian(q) if random else q, like, where)
        for q, where in ((first, "the first solution"), (last, "the second solution"))
    )
    net.load_state_dict(a.mean, strict=False)
    for name, p in net.named_parameters():
        if p.is_floating_point() and not p.requires_grad:
            p.requires_grad_(thawed or not torch.equal(a.mean[name], b.mean[name]))
    return Ends(a, b, Network(net))


def _fitted(q: Dirac | Gaussian, like: State, where: str) -> Dirac | Gaussian:
    """The solution where a model's own state lies, in its precision and with its ties, which files do not keep."""
    checked = check(q.mean, like=like, where=where)
    mean = tie({name: x.to(like[name]) for name, x in checked.items()}, owners(like))
    if isinstance(q, Dirac):
        return Dirac(mean, q.noise)
    return Gaussian(mean, {name: s.to(mean[name]) for name, s in q.std.items()}, q.noise)


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
