"""Flow matching: a field learns the velocities of paths that join starts and networks."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from coset.core.capture import captured
from coset.core.errors import CosetError, StateError
from coset.core.functional import matmul_precision
from coset.core.progress import Event, Progress
from coset.core.resume import RunFolder, RunSettings
from coset.core.show import ShownSettings
from coset.data import Data
from coset.flow.conditions import Conditions
from coset.flow.coordinates import (
    BaseDistribution,
    Coupling,
    Geometry,
    Independent,
    OwnStarts,
    TrainingSet,
    measured_base,
)
from coset.flow.output_loss import OutputLoss
from coset.flow.time_weights import TimeWeights
from coset.flow.transport import Transport, refuse_many_conditions
from coset.flow.velocity_network import Architecture, Prediction, Standardize, VelocityNetwork, units
from coset.populations.population import Population
from coset.symmetries.symmetry import Symmetry
from coset.training.loop import Loop, Run, release
from coset.training.network import Network, Randomness, seeded
from coset.training.optimizers import Adam, Muon, Optimizer, check_choices, check_positive, cosine
from coset.weightspace.graph import Wiring, neural_graph

log = logging.getLogger(__name__)

CouplingName = Literal["training", "ot", "independent"]
FEW = 4  # networks for each start, above which there are few
MEASURED = 4096  # networks whose spread is measured


@dataclass(frozen=True)
class FlowPlan:
    """What a flow is like: the arguments of `Flow` but the symmetry, which explains them.

    Args:
        geometry: "euclidean", "normalized" or "geometric".
        coupling: "training", "ot" or "independent".
        architecture: Of the network that computes velocities.
        predict: "velocity" or "endpoint".
        conditions: Names of labels of the population.
        align: Whether to bring all networks in the order of the first one; None where the coupling is not "training".
        group: How many networks are matched together by "ot".

    Raises:
        CosetError: If an argument is none of its choices, or `align` meets the coupling "training".

    Example:
        >>> flow = coset.Flow.of(sym, coset.FlowPlan("euclidean", "ot"))
        >>> flow.plan.aligns
        True
    """

    geometry: Geometry = "geometric"
    coupling: CouplingName = "training"
    architecture: Architecture = field(default_factory=Architecture)
    predict: Prediction = "velocity"
    conditions: tuple[str, ...] = ()
    align: bool | None = None
    group: int = 64

    def __post_init__(self) -> None:
        check_choices(self)
        check_positive(self, "group")
        if len(set(self.conditions)) < len(self.conditions):
            raise CosetError(f"The conditions {', '.join(self.conditions)} name one twice.")
        if self.align and self.coupling == "training":
            raise CosetError("Networks that are coupled with their own starts keep their order: leave align out.")

    @property
    def aligns(self) -> bool:
        """Whether networks are brought in the order of the first one before."""
        return self.coupling != "training" if self.align is None else self.align


@dataclass(frozen=True, repr=False)
class Matching(ShownSettings):
    """How a flow is learned: the method of `Flow.fit`.

    Args:
        epochs: Passes over the population.
        batch_size: Networks of a step.
        rate: The largest learning rate, from where it falls along a cosine; None is 0.02 for muon and 3e-4 for adam.
        optimizer: "muon" moves the matrices of the field in all directions alike; or "adam".
        warm_up: Steps to the largest rate, or a tenth of all if that is less.
        weight_decay: Of the weights of the field, times the rate.
        clip: The largest norm of a gradient.
        average: Of the weights that samples are drawn with, w' <- average w' + (1 - average) w.
        times: Of the paths: "uniform", or "beta" for Beta(1, 2), which is more often early.
        noise: Deviation of points from their path, in units of the deviation of weights.
        function: Weight of the error that a velocity makes in the outputs, where `Flow.fit` has a model and data.
        level: Whether all times count alike, for trainings whose loss rises after it has fallen.
        unseen: How many networks of the population are left out, on which the error is told after each epoch.
        precision: "bfloat16" runs the field in 16 bits, "tf32" rounds the factors of matrix products on CUDA.
        compile: Whether torch compiles the field, which pays in long runs on CUDA.

    Raises:
        CosetError: If a number is out of its range.

    Example:
        >>> coset.Matching(epochs=60, batch_size=128).optimizer
        'muon'
    """

    RATES: ClassVar[dict[str, float]] = {"adam": 3e-4, "muon": 2e-2}

    epochs: int = 200
    batch_size: int = 256
    rate: float | None = None
    optimizer: Literal["adam", "muon"] = "muon"
    warm_up: int = 500
    weight_decay: float = 0.01
    clip: float = 1.0
    average: float = 0.999
    times: Literal["uniform", "beta"] = "uniform"
    noise: float = 0.0
    function: float = 100.0
    level: bool = False
    unseen: int = 0
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    compile: bool = False

    def __post_init__(self) -> None:
        check_choices(self)
        check_positive(self, "epochs", "batch_size", "rate", "clip")
        if not 0 <= self.average < 1:
            raise CosetError(f"Matching: average must be in [0, 1), not {self.average!r}.")
        for name in ("warm_up", "weight_decay", "noise", "function", "unseen"):
            if not 0 <= getattr(self, name) < math.inf:
                raise CosetError(f"Matching: {name} must be finite and not negative, not {getattr(self, name)!r}.")

    def rates(self, total: int) -> list[float]:
        """The learning rate of each step.

        Args:
            total: How many steps there are.
        """
        largest = self.RATES[self.optimizer] if self.rate is None else self.rate
        rising = max(1, min(self.warm_up, total // 10))
        return [largest * min(1.0, (k + 1) / rising) * cosine(k / total) for k in range(total)]


class MatchingLoss:
    """The loss of networks of one width: their field, which shares its weights with those of others, and their pairs.

    units
        [D] what errors are measured in
    outputs
        what measures errors of outputs
    unseen
        pairs that are not learned from
    """

    def __init__(
        self,
        method: Matching,
        field: VelocityNetwork,
        coupling: Coupling,
        outputs: OutputLoss | None,
        unseen: Coupling | None = None,
    ) -> None:
        self.method, self.field, self.coupling, self.outputs, self.unseen = method, field, coupling, outputs, unseen
        self.units = units(field.space, field.standardize)
        self._along: Callable[..., tuple[Tensor, Tensor]] = self._errors

    def compile(self) -> None:
        """Let torch compile paths and field, and leave the derivative of outputs as it is."""
        self._along = torch.compile(self._errors, dynamic=False)

    def __call__(
        self,
        weights: dict[str, Tensor],
        ends: tuple[Tensor, Tensor],
        time: Tensor,
        condition: Tensor | None,
        noise: Tensor | None,
        inputs: Tensor | None,
    ) -> Tensor:
        """[n] mean |v - v*|^2 in `units` (Lipman et al. 2023; on manifolds Chen, Lipman 2024), and errors of outputs.

        Of a field that predicts end points, the error is (1 - t) (v - v*): that of the end.
        """
        # What is only measured would be compiled anew.
        along = self._along if torch.is_grad_enabled() else self._errors
        error, end = along(weights, ends, time, condition, noise)
        loss = (error / self.units).square().mean(-1)
        if self.outputs is not None and inputs is not None:
            loss = loss + self.method.function * self.outputs(end, error, inputs)
        return loss

    def _errors(
        self,
        weights: dict[str, Tensor],
        ends: tuple[Tensor, Tensor],
        time: Tensor,
        condition: Tensor | None,
        noise: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """What is wrong with the velocity at a point of each path, and, where outputs count, its predicted end."""
        manifold = self.field.space.manifold
        x = manifold.geodesic(*ends, time)
        target = manifold.velocity(*ends, time)
        if noise is not None:
            beside = manifold.exp(x, manifold.tangent(x, self.method.noise * self.units * noise))
            target, x = manifold.transport(x, beside, target), beside
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.method.precision == "bfloat16"):
            velocity: Tensor = functional_call(self.field, weights, (x, time, condition)).float()
        remaining = (1 - time).unsqueeze(-1)
        error = (velocity - target) * (remaining if self.field.predict == "endpoint" else 1)
        return error, x if self.outputs is None else manifold.exp(x, remaining * velocity.detach())


class FlowTraining(Run):
    """A field under way: an epoch goes through the networks of all widths once."""

    def __init__(
        self, losses: Sequence[MatchingLoss], method: Matching, randomness: Randomness, progress: Progress | None = None
    ) -> None:
        self.losses, self.method, self._progress = losses, method, progress
        first = losses[0].field
        self._network = Network(first)
        self._generator = randomness.generators[0]
        device = losses[0].units.device
        self._device = device
        steps = [_Steps(loss, method, device) for loss in losses]
        self._steps = steps
        self.steps = sum(s.count for s in steps)
        self._rates = torch.tensor(method.rates(method.epochs * self.steps), device=device)
        self._flat = self._network.flatten(dict(first.named_parameters())).requires_grad_()
        self._average = self._flat.detach().clone()
        self._optimizer: Optimizer = Adam([self._flat])
        if method.optimizer == "muon":
            self._optimizer = Muon(self._flat, list(self._network.shapes.values()))
        self._done = torch.zeros((), dtype=torch.int64, device=device)
        self._step_of_epoch, self._epoch_numbers = 0, self._generator.get_state()  # where its random numbers begin
        self._sum = torch.zeros((), device=device)
        self._advance: Callable[[Tensor], None] = self._move
        if method.compile:
            self._advance = torch.compile(self._move, dynamic=False)

    def epoch(self) -> list[tuple[float, float | None]]:
        generator = self._generator
        self._begin(generator)
        with matmul_precision(self.method.precision):
            for own in self._steps:
                if not own.is_captured:
                    own.advance = partial(self._step, own)
                    if self._device.type == "cuda":
                        own.advance = captured(own.advance, [*self._changes(), own.done], [generator], self._device)
                    own.is_captured = True
            before = int(self._done) - self._step_of_epoch
            # Widths take turns, so that no width is the last one.
            turns = itertools.zip_longest(*([own] * own.count for own in self._steps))
            for own in itertools.islice(
                (own for turn in turns for own in turn if own is not None), self._step_of_epoch, None
            ):
                own.advance()
                self._step_of_epoch += 1
                if self._progress is not None:
                    self._progress(Event(before + self._step_of_epoch, self.method.epochs * self.steps, "step"))
                if self.after_step is not None:
                    self.after_step()
        self._step_of_epoch = 0
        return [(float(self._sum) / self.steps, None)]

    def _begin(self, generator: torch.Generator) -> None:
        """The order and starts of an epoch, anew if it was stopped, since they are not kept; it goes on after that."""
        done, now = [own.done.clone() for own in self._steps], generator.get_state()
        if self._step_of_epoch:
            generator.set_state(self._epoch_numbers)
        self._epoch_numbers = generator.get_state()
        for own in self._steps:
            own.begin(generator)
        if not self._step_of_epoch:
            self._sum.zero_()
            return
        generator.set_state(now)
        for own, steps in zip(self._steps, done, strict=True):
            own.done.copy_(steps)

    def more(self) -> dict[str, list[float]]:
        errors = [x for loss in self.losses if loss.unseen is not None for x in self._unseen(loss, loss.unseen)]
        return {"unseen": [float(torch.cat(errors).mean())]} if errors else {}

    @torch.no_grad()
    def _unseen(self, loss: MatchingLoss, pairs: Coupling) -> Iterator[Tensor]:
        """Errors of the averaged weights on networks that were left out, always at the same times, evenly spread."""
        generator = torch.Generator(self._device).manual_seed(0)
        weights = self._network.unflatten(self._average)
        inputs = None if loss.outputs is None else loss.outputs.draw(generator)
        pairs.refresh(generator)
        order = torch.randperm(len(pairs), generator=generator, device=self._device)
        times = (torch.arange(len(pairs), device=self._device) + 0.5) / len(pairs)
        batches = (torch.split(x, self.method.batch_size) for x in (order, times))
        for at, time in zip(*batches, strict=True):
            x0, x1, condition = pairs.pairs(at, generator)
            with matmul_precision(self.method.precision):
                yield loss(weights, (x0, x1), time, condition, None, inputs)

    @torch.no_grad()
    def finish(self) -> None:
        """Give the field its averaged weights, and let go of all else."""
        averaged = self._network.unflatten(self._average)
        for name, p in self.losses[0].field.named_parameters():
            if name in averaged:
                p.copy_(averaged[name])
        release(*self._steps, *self.losses, self)

    def _step(self, own: _Steps) -> None:
        method, generator, loss = self.method, self._generator, own.loss
        at = own.order.index_select(0, own.done.view(1)).squeeze(0)
        x0, x1, condition = loss.coupling.pairs(at, generator)
        time = torch.rand(len(at), generator=generator, device=self._device)
        if method.times == "beta":
            time = 1 - (1 - time).sqrt()  # the quantiles of Beta(1, 2)
        noise = None
        if method.noise:
            noise = torch.randn(x1.shape, generator=generator, device=self._device)
        inputs = None if loss.outputs is None else loss.outputs.draw(generator)
        weights = self._network.unflatten(self._flat)
        losses = loss(weights, (x0, x1), time, condition, noise, inputs)
        weighted = losses if own.time_weights is None else own.time_weights(time, losses.detach()) * losses
        (gradient,) = torch.autograd.grad(weighted.mean(), [self._flat])
        self._advance(gradient)
        own.done += 1
        self._sum += losses.detach().mean()

    @torch.no_grad()
    def _move(self, gradient: Tensor) -> None:
        """A step along the gradient, clipped, with weights that decay on their own; and the average of all so far."""
        method = self.method
        gradient = gradient * (method.clip / torch.linalg.vector_norm(gradient).clamp(min=method.clip))
        rate = self._rates.index_select(0, self._done.view(1)).squeeze(0)
        self._flat.mul_(1 - rate * method.weight_decay)
        self._optimizer.step([gradient], rate)
        # Early on an average over few steps, so that it does not remember the start.
        share = torch.clamp(1 / (1 + 0.1 * self._done), min=1 - method.average)
        self._average.lerp_(self._flat.detach(), share)
        self._done += 1

    def _changes(self) -> list[Tensor]:
        means = [x for own in self._steps if own.time_weights is not None for x in own.time_weights.state]
        return [self._flat, self._average, *self._optimizer.state, self._done, self._sum, *means]

    def _state(self) -> list[Tensor]:
        return [*self._changes(), *(own.done for own in self._steps)]

    def state_dict(self) -> dict[str, Any]:
        return {
            "changes": [x.detach().clone() for x in self._state()],
            "step": self._step_of_epoch,
            "numbers": self._epoch_numbers,
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        for x, saved in zip(self._state(), state["changes"], strict=True):
            x.copy_(saved)
        self._step_of_epoch, self._epoch_numbers = state["step"], state["numbers"].cpu()


class _Steps:
    """The steps that networks of one width take in an epoch."""

    def __init__(self, loss: MatchingLoss, method: Matching, device: torch.device) -> None:
        self.loss = loss
        size = min(method.batch_size, len(loss.coupling))
        self.count = len(loss.coupling) // size
        self.order = torch.zeros(self.count, size, dtype=torch.int64, device=device)
        self.done = torch.zeros((), dtype=torch.int64, device=device)
        self.time_weights = TimeWeights(device) if method.level else None
        if method.compile:
            loss.compile()
        self.advance: Callable[[], None] = _nothing
        self.is_captured = False

    def begin(self, generator: torch.Generator) -> None:
        """Draw an order of the networks, and starts where they are matched anew."""
        self.loss.coupling.refresh(generator)
        order = torch.randperm(len(self.loss.coupling), generator=generator, device=self.order.device)
        self.order.copy_(order[: self.order.numel()].view_as(self.order))
        self.done.zero_()


def _nothing() -> None:
    """What there is to do before a step is captured."""


@dataclass(frozen=True, eq=False)
class FlowProblem:
    """What there is to learn: networks of one width or several, a field for them all, and where its paths begin.

    sets: the networks of each width. parts: those to learn from, and those that are left out.
    """

    plan: FlowPlan
    sets: Sequence[TrainingSet]
    parts: Sequence[tuple[TrainingSet, TrainingSet | None]]
    field: VelocityNetwork
    base: BaseDistribution
    conditions: Conditions | None
    outputs: OutputLoss | None

    @classmethod
    def of(
        cls,
        plan: FlowPlan,
        populations: Sequence[tuple[Symmetry, Population]],
        method: Matching,
        examples: tuple[nn.Module | None, Data | None],
        device: torch.device,
        seed: int,
    ) -> FlowProblem:
        """From populations of some widths; `examples` are a model and data on which errors of outputs are measured."""
        for _, population in populations:
            if not len(population):
                raise StateError("A flow is learned from some networks, and this population is empty.")
        conditions = None
        if plan.conditions:
            conditions = Conditions.measured(plan.conditions, [own.labels for _, own in populations]).to(device)
        sets = [
            TrainingSet.of(sym, population, plan.geometry, plan.aligns, conditions, device)
            for sym, population in populations
        ]
        if plan.coupling == "training":
            for own in sets:
                _check_starts(own)
        parts = [own.split(method.unseen) for own in sets]
        if plan.coupling == "ot":
            for own, _ in parts:
                refuse_many_conditions(own.conditions)
        first = parts[0][0]
        velocity = _velocity_network(plan, first, 0 if conditions is None else conditions.size, seed).to(device)
        base = measured_base(first.space, first.beginnings, covers=first.starts is None)
        outputs = None
        if method.function and examples != (None, None):
            outputs = OutputLoss.of(first, base, *examples, widths=len(sets))
        return cls(plan, sets, parts, velocity, base, conditions, outputs)

    def losses(self, method: Matching) -> list[MatchingLoss]:
        """The loss of each width."""
        return [
            MatchingLoss(
                method,
                self.field.on(own.space),
                self._coupling(own),
                self.outputs,
                None if other is None else self._coupling(other),
            )
            for own, other in self.parts
        ]

    def folder(self, method: Matching, seed: int, out: str | Path | None) -> AbstractContextManager[RunFolder]:
        """The folder of a run while it lasts, which belongs to this problem."""
        tensors = [x for own in self.sets for x in (own.ends, own.starts, own.conditions) if x is not None]
        plan = asdict(self.plan)
        plan |= {**plan.pop("architecture"), "outputs": None if self.outputs is None else self.outputs.digest}
        return RunSettings(method, seed, self.field, tensors, self.base.space.device, plan).folder(out, ["flow/*"])

    def _coupling(self, own: TrainingSet) -> Coupling:
        if self.plan.coupling == "training" and own.starts is not None:
            return OwnStarts(own.ends, own.conditions, own.starts)
        base = self.base.on(own.space)
        if self.plan.coupling == "independent":
            return Independent(own.ends, own.conditions, base)
        return Transport(own.ends, own.conditions, base, self.plan.group)


def learn(
    problem: FlowProblem,
    method: Matching,
    seed: int,
    out: str | Path | None,
    progress: Progress | None,
    checkpoint_seconds: float,
) -> None:
    """Let the field of a problem learn; see `coset.Flow.fit`."""
    device = problem.base.space.device
    randomness = Randomness(seed, [(0,)], device)
    training = FlowTraining(problem.losses(method), method, randomness, progress)
    with problem.folder(method, seed, out) as folder:
        folder.claim()
        loop = Loop(
            method.epochs,
            [(0,)],
            randomness,
            device,
            stages=[folder.stage("flow")],
            progress=progress,
            checkpoint_seconds=checkpoint_seconds,
            name=lambda index: "The flow",
        )
        loop.drive(training)
    training.finish()
    problem.field.requires_grad_(False)


def _check_starts(own: TrainingSet) -> None:
    """Refuse networks whose starts are not known, and warn of few.

    Iterations of one run have one start, so few runs are few starts, and new ones are unlike all of them.
    """
    if own.starts is None:
        raise CosetError(
            "The coupling 'training' needs to know where each network began, which this population does not: use 'ot'."
        )
    parts = torch.split(own.starts, own.space.at_once)
    distinct = len({value for part in parts for value in part.double().sum(1).tolist()})
    if distinct * FEW < len(own.starts):
        log.warning(
            "these %d networks have %d different starts: coupled with them, a flow learns where these lead and not "
            "where others do; give more runs, or couple by 'ot'",
            len(own.starts),
            distinct,
        )


def _velocity_network(plan: FlowPlan, own: TrainingSet, condition: int, seed: int) -> VelocityNetwork:
    room = own.space
    wiring = Wiring.of(room.sym, room.template)
    standardize = Standardize(wiring).to(own.ends.device)
    both = [x[:MEASURED] for x in (own.ends, own.starts) if x is not None]
    standardize.measure(neural_graph(room.manifold.chart.state(torch.cat(both), room.single), wiring))
    with seeded(seed, (0,)):
        network = plan.architecture.build(wiring, condition)
    return VelocityNetwork(room, network, standardize, plan.predict)
