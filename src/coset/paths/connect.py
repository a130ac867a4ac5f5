"""Learning a curve: its control points follow the gradient of the loss at random points of it."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

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
from coset.training.loop import Learner, Minibatch
from coset.training.network import Network, Tensors, TrainingProblem
from coset.training.optimizers import INITIAL_NOISE, Descent, check_decay

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
        logs = [self.network.flatten(q.std).log() for q in (self.first, self.last) if isinstance(q, Gaussian)]
        return torch.stack(logs) if logs else None

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
            state = self._deviating(states.lerp(self.first.mean, self.last.mean, t), deviation)
            noise = None if self.noise is None else (1 - t) * self.noise[0] + t * self.noise[1]
            if log_std is None or self.log_std is None:
                inner.append(Dirac(state, noise))
            else:
                std = torch.exp(torch.lerp(self.log_std[0], self.log_std[1], t) + log_std[k])
                inner.append(Gaussian(state, self.network.unflatten(std), noise))
        return CURVES[kind](self.first, *inner, self.last)

    def _deviating(self, state: State, deviation: Tensor) -> dict[str, Tensor]:
        tied = owners(self.first.mean)
        trained = {
            name: (state[name].to(x.dtype) + x).to(state[name].dtype)
            for name, x in self.network.unflatten(deviation).items()
        }
        return tie({name: trained.get(tied[name], x) for name, x in state.items()}, tied)


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


@dataclass(frozen=True, repr=False)
class Connect(Descent):
    """Minimise E_t[mean_i -log p(y_i | x_i, w(t)) + weight_decay / 2 |w(t)|^2] over the inner control points.

    t ~ U(0, 1), which for a curve of constant speed is Eq. 1 of tatro2020; a batch is seen at one t (Algorithm 2).
    Between Gaussians w(t) is drawn from the one at t, and its entropy over n, the number of examples, is taken off:
    with weight_decay = 1 / (n v) this is minus the ELBO over n under the prior N(0, v), averaged along the curve.

    Args:
        optimizer: "sgd" or "adam".
        rate: The largest learning rate; 0.03 for sgd and 1e-3 for adam when None.
        momentum: Of sgd.
        epochs: Passes over the data.
        batch_size: Examples of a step; an epoch leaves out those that do not fill a batch, other ones each time.
        schedule: Of the rate: to zero ("cosine"), after a warm-up ("onecycle"), or "constant".
        augment: Shift and mirror images.
        precision: "bfloat16" runs the model, not the parameters, in 16 bits; "tf32" rounds factors on CUDA.
        noise: None, as the noise of a curve is that of its ends.
        compile: Let torch compile the model, which pays in long runs of convolutional networks.
        curve: A polynomial ("bezier") or straight pieces ("chain").
        bends: Its inner control points.
        times: Of the batches: independent ("uniform"), or one in each of as many equal parts of [0, 1] as an epoch has
            batches, in random order ("stratified"), which has less variance.
        weight_decay: Of the network at t.
        attack: The loss is taken at inputs under this attack; at those of the data when None.

    Raises:
        CosetError: If a setting is out of range.

    Example:
        >>> curve = coset.find_curve(a, b, model, digits.train, coset.Connect(epochs=2, curve="chain", bends=2))
        >>> type(curve).__name__, len(curve.points)
        ('Chain', 4)
    """

    RATES: ClassVar[Mapping[str, float]] = {"adam": 1e-3, "sgd": 0.03}

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

    def initial_noise(self, problem: TrainingProblem) -> tuple[float, bool]:
        """Of a curve it plays no part: the noise is that of the ends.

        Args:
            problem: What is trained on.
        """
        return INITIAL_NOISE, False


@dataclass(frozen=True, eq=False)
class EndTensors:
    """The two ends as vectors: mean and log_std (2, p), the latter of Gaussians; noise (2,) of a regression."""

    mean: Tensor
    log_std: Tensor | None
    buffers: Buffers
    noise: Tensor | None


@dataclass(frozen=True, eq=False)
class AlongCurve(Learner):
    """What is learned at one random point of a curve a step."""

    connect: Connect
    ends: Ends

    def context(self, problem: TrainingProblem) -> EndTensors:
        noise = None if self.ends.noise is None else problem.start.new_tensor(self.ends.noise)
        return EndTensors(self.ends.mean, self.ends.log_std, self.ends.buffers, noise)

    def memory(self, problem: TrainingProblem) -> dict[str, Any]:
        """The t of each step of an epoch."""
        return {"times": problem.start.new_zeros(problem.steps(self.connect.batch_size))}

    def before_epoch(self, problem: TrainingProblem, parameters: Tensors, epoch: int) -> None:
        (generator,) = problem.randomness.generators
        times = problem.memory["times"]
        steps = len(times)
        draws = torch.rand(steps, generator=generator, device=problem.device)
        if self.connect.times == "stratified":
            parts = torch.randperm(steps, generator=generator, device=problem.device)
            draws = (parts + draws) / steps
        times.copy_(draws)

    def time(self, problem: TrainingProblem, batch: Minibatch) -> Tensor:
        """The t of a step, (1,)."""
        times: Tensor = problem.memory["times"]
        return times.index_select(0, batch.step.view(1))

    def point(self, t: Tensor, ends: Tensor, deviation: Tensor) -> Tensor:
        """The point at t, (1, p): (1-t) ends_0 + t ends_1 + sum_k B_k(t) deviation_k.

        ends: (2, p); deviation: (1, bends, p), by how much the inner control points are off equal distances on the
        line, as in tatro2020 Eq. 35. Since sum_k B_k(t) k / n = t, this is the curve.
        """
        inner = CURVES[self.connect.curve].basis(t, self.connect.bends + 1)[:, 1:-1]
        return torch.lerp(ends[0], ends[1], t.unsqueeze(1)) + torch.einsum("rb,rbp->rp", inner, deviation)

    def loss(
        self, problem: TrainingProblem, batch: Minibatch, t: Tensor, weights: Tensor, buffers: Buffers
    ) -> tuple[Tensor, Tensor]:
        """The loss (1,) of the network `weights` (1, p), under attack if there is one, and its outputs.

        `buffers` are those of the two ends.
        """
        noises = problem.context.noise
        noise = None if noises is None else torch.lerp(noises[0], noises[1], t)
        place(problem.network.model, buffers, t)
        inputs = batch.inputs
        if self.connect.attack is not None:
            fixed = weights.detach()

            def loss(changed: Tensor) -> Tensor:
                return batch.loss(problem.network.aside(fixed, changed), noise)

            inputs = perturb(self.connect.attack, loss, inputs, problem.randomness.generators)
        outputs = problem.network(weights, inputs)
        return batch.loss(outputs, noise), outputs

    def decay(self, weights: Tensor) -> Tensor:
        """weight_decay / 2 |w|^2, (1,)."""
        return self.connect.weight_decay / 2 * weights.square().sum(1)


@dataclass(frozen=True, eq=False)
class CurveLearner(AlongCurve):
    """Learns how far the inner control points deviate, and for Gaussians their log-deviations, each (1, bends, p).

    start: where the deviations begin, on the straight line when None. A step also minimises |deviation - start|^2 /
    (2 reach) if `reach` is finite, a proximal term (tatro2020 Eq. 34).
    """

    start: Tensor | None = None
    reach: float = math.inf

    def parameters(self, problem: TrainingProblem) -> Tensors:
        zeros = problem.start.new_zeros(1, self.connect.bends, problem.start.shape[1])
        deviation = (zeros if self.start is None else self.start).clone()
        return {"mean": deviation} if problem.context.log_std is None else {"mean": deviation, "log_std": zeros}

    def objective(
        self, problem: TrainingProblem, parameters: Tensors, batch: Minibatch
    ) -> tuple[Tensor, Tensor, Tensor]:
        ends, t, deviation = problem.context, self.time(problem, batch), parameters["mean"]
        weights = mean = self.point(t, ends.mean, deviation)
        extra = self.decay(mean)
        if ends.log_std is not None:
            log_std = self.point(t, ends.log_std, parameters["log_std"])
            std = log_std.exp()
            weights = mean + std * problem.normal()
            extra = extra + self.decay(std) - log_std.sum(1) / len(problem.split)
        if self.reach < math.inf:
            start = 0 if self.start is None else self.start
            extra = extra + (deviation - start).square().sum((1, 2)) / (2 * self.reach)
        loss, outputs = self.loss(problem, batch, t, weights, ends.buffers)
        return loss + extra, loss, outputs

    def curve(self, parameters: Tensors) -> Curve:
        """The curve as it stands."""
        mean, log_std = parameters["mean"], parameters.get("log_std")
        return self.ends.curve(self.connect.curve, mean[0].detach(), None if log_std is None else log_std[0].detach())
