"""Flow matching: a field learns the velocities of paths that join starts and networks."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.func import functional_call

from coset.core.checks import check_choices, check_positive
from coset.core.device import matmul_precision
from coset.core.errors import CosetError
from coset.core.progress import Event, Progress
from coset.flow.base import Base
from coset.flow.field import Field
from coset.flow.function_error import FunctionError
from coset.training.capture import captured, release
from coset.training.loop import Course
from coset.training.network import Network
from coset.training.optimizers import Adam, Muon, Optimizer, cosine
from coset.training.randomness import Randomness


class Coupling(ABC):
    """Pairs of a start and a network, [n, D] each, of which every epoch sees each network once.

    ends: [N, D] the networks. conditions: [N, k] what is known about each, or None.
    """

    def __init__(self, ends: Tensor, conditions: Tensor | None) -> None:
        self.ends, self.conditions = ends, conditions

    def __len__(self) -> int:
        return len(self.ends)

    def refresh(self, generator: torch.Generator) -> None:  # noqa: B027 (most have nothing to do)
        """What is done before each epoch."""

    @abstractmethod
    def starts(self, at: Tensor, generator: torch.Generator) -> Tensor:
        """[n, D] the starts of the networks `at`."""

    def pairs(self, at: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor | None]:
        """Starts, networks and conditions."""
        conditions = None if self.conditions is None else self.conditions[at]
        return self.starts(at, generator), self.ends[at], conditions


class Independent(Coupling):
    """Each time another draw from the base."""

    def __init__(self, ends: Tensor, conditions: Tensor | None, base: Base) -> None:
        super().__init__(ends, conditions)
        self.base = base

    def starts(self, at: Tensor, generator: torch.Generator) -> Tensor:
        return self.base.draw(len(at), generator)


class Training(Coupling):
    """Where the network's own training began: paths cross less, and units keep their places."""

    def __init__(self, ends: Tensor, conditions: Tensor | None, begun: Tensor) -> None:
        super().__init__(ends, conditions)
        self.begun = begun

    def starts(self, at: Tensor, generator: torch.Generator) -> Tensor:
        return self.begun[at]


INTERVALS = 32
KEPT = 0.99  # of what is remembered, at each step
LEAST = 1e-12  # so that nothing is divided by zero


class Levels:
    """Weights w(t) = 1 / E[error | t], so that all times count alike.

    Near its start a path hardly tells which network it leads to, so that errors of the best velocity are many times
    those of later: without weights, their noise is most of the gradient. A weight that depends on time alone leaves the
    velocity with the least error as it is. Karras et al. 2024 (Analyzing and improving the training dynamics of
    diffusion models, Section 2.2) learn such weights; these are of running means in equal intervals of time, in which a
    step has a share of its own of one in a hundred.
    """

    def __init__(self, device: torch.device) -> None:
        self._sums, self._counts = torch.zeros(2, INTERVALS, device=device).unbind()

    @property
    def state(self) -> list[Tensor]:
        """What it remembers."""
        return [self._sums, self._counts]

    def __call__(self, time: Tensor, errors: Tensor) -> Tensor:
        """[n] the weights of errors [n] at times [n], which it remembers."""
        at = (time * INTERVALS).long().clamp(max=INTERVALS - 1)
        places = torch.nn.functional.one_hot(at, INTERVALS).to(errors)
        for kept, new in ((self._sums, errors @ places), (self._counts, places.sum(0))):
            kept.mul_(KEPT).add_(new)
        return self._counts[at] / self._sums[at].clamp(min=LEAST)


@dataclass(frozen=True)
class Matching:
    """How a flow is learned.

    epochs: passes over the population. optimizer: Muon moves the matrices of the field in all directions alike (see
    `coset.training.optimizers`). rate: the largest, after `warm_up` steps or a tenth of all, whichever is less, from
    where it falls along a cosine; when None 0.02 for muon and 3e-4 for adam.
    average: of the weights that samples are drawn with, w' <- average w' + (1 - average) w. times: of the paths,
    uniform or Beta(1, 2), which is more often early. noise: deviation of points from their path, in units of the
    deviation of weights. function: weight of the error that a velocity makes in the outputs, where data are given (see
    `FunctionError`). level: let all times count alike (see `Levels`), for trainings whose loss rises after it has
    fallen. unseen: how many networks of the population are left out, on which the error is told after each epoch.
    precision, compile: as in `coset.fit`.
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
        """The rate of each of `total` steps."""
        largest = self.RATES[self.optimizer] if self.rate is None else self.rate
        rising = max(1, min(self.warm_up, total // 10))
        return [largest * min(1.0, (k + 1) / rising) * cosine(k / total) for k in range(total)]


class Part:
    """Networks of one width: their field, which shares its weights with those of other parts, and their pairs.

    units
        [D] what errors are measured in
    function
        what measures errors of outputs
    unseen
        pairs that are not learned from
    """

    def __init__(
        self,
        field: Field,
        units: Tensor,
        coupling: Coupling,
        function: FunctionError | None,
        unseen: Coupling | None = None,
    ) -> None:
        self.field, self.units, self.coupling, self.function, self.unseen = field, units, coupling, function, unseen
        self._along: Callable[..., tuple[Tensor, Tensor]] = self._errors

    def compile(self) -> None:
        """Let torch compile paths and field, and leave the derivative of outputs as it is."""
        self._along = torch.compile(self._errors, dynamic=False)

    def loss(
        self,
        weights: dict[str, Tensor],
        ends: tuple[Tensor, Tensor],
        time: Tensor,
        condition: Tensor | None,
        noise: Tensor | None,
        inputs: Tensor | None,
        settings: Matching,
    ) -> Tensor:
        """[n] mean |v - v*|^2 in `units` (Lipman et al. 2023; on manifolds Chen, Lipman 2024), and errors of outputs.

        Of a field that predicts end points, the error is (1 - t) (v - v*): that of the end.
        """
        # What is only measured would be compiled anew.
        along = self._along if torch.is_grad_enabled() else self._errors
        error, end = along(weights, ends, time, condition, noise, settings)
        loss = (error / self.units).square().mean(-1)
        if self.function is not None and inputs is not None:
            loss = loss + settings.function * self.function(end, error, inputs)
        return loss

    def _errors(
        self,
        weights: dict[str, Tensor],
        ends: tuple[Tensor, Tensor],
        time: Tensor,
        condition: Tensor | None,
        noise: Tensor | None,
        settings: Matching,
    ) -> tuple[Tensor, Tensor]:
        """What is wrong with the velocity at a point of each path, and, where outputs count, its predicted end."""
        manifold = self.field.space.manifold
        x = manifold.geodesic(*ends, time)
        wanted = manifold.velocity(*ends, time)
        if noise is not None:
            moved = manifold.exp(x, manifold.tangent(x, settings.noise * self.units * noise))
            wanted, x = manifold.transport(x, moved, wanted), moved
        with torch.autocast(x.device.type, torch.bfloat16, enabled=settings.precision == "bfloat16"):
            found: Tensor = functional_call(self.field, weights, (x, time, condition)).float()
        left = (1 - time).unsqueeze(-1)
        error = (found - wanted) * (left if self.field.predict == "endpoint" else 1)
        return error, x if self.function is None else manifold.exp(x, left * found.detach())


class Learning(Course):
    """A field under way: an epoch goes through the populations of all parts once."""

    def __init__(
        self, parts: Sequence[Part], settings: Matching, randomness: Randomness, progress: Progress | None = None
    ) -> None:
        self.parts, self.settings, self._progress = parts, settings, progress
        first = parts[0].field
        self._network = Network(first)
        self._generator = randomness.generators[0]
        device = parts[0].units.device
        self._device = device
        steps = [_Steps(part, settings, device) for part in parts]
        self._steps = steps
        self.steps = sum(s.count for s in steps)
        self._rates = torch.tensor(settings.rates(settings.epochs * self.steps), device=device)
        self._flat = self._network.flatten(dict(first.named_parameters())).requires_grad_()
        self._average = self._flat.detach().clone()
        self._optimizer: Optimizer = Adam([self._flat])
        if settings.optimizer == "muon":
            self._optimizer = Muon(self._flat, list(self._network.shapes.values()))
        self._done = torch.zeros((), dtype=torch.int64, device=device)
        self._taken, self._begun = 0, self._generator.get_state()  # steps of the epoch, and where its numbers began
        self._sum = torch.zeros((), device=device)
        self._moved: Callable[[Tensor], None] = self._move
        if settings.compile:
            self._moved = torch.compile(self._move, dynamic=False)

    def epoch(self) -> list[tuple[float, float | None]]:
        generator = self._generator
        self._begin(generator)
        with matmul_precision(self.settings.precision):
            for own in self._steps:
                if not own.is_captured:
                    changes = [*self._changes(), own.done]
                    own.advance = captured(partial(self._step, own), changes, [generator], self._device)
                    own.is_captured = True
            before = int(self._done) - self._taken
            # Parts take turns, so that no width is the last one.
            turns = itertools.zip_longest(*([own] * own.count for own in self._steps))
            for own in itertools.islice((own for turn in turns for own in turn if own is not None), self._taken, None):
                own.advance()
                self._taken += 1
                if self._progress is not None:
                    self._progress(Event(before + self._taken, self.settings.epochs * self.steps, "step"))
                if self.after_step is not None:
                    self.after_step()
        self._taken = 0
        return [(float(self._sum) / self.steps, None)]

    def _begin(self, generator: torch.Generator) -> None:
        """The order and starts of an epoch, anew if it was stopped, since they are not kept; it goes on after that."""
        done, now = [own.done.clone() for own in self._steps], generator.get_state()
        if self._taken:
            generator.set_state(self._begun)
        self._begun = generator.get_state()
        for own in self._steps:
            own.begin(generator)
        if not self._taken:
            self._sum.zero_()
            return
        generator.set_state(now)
        for own, steps in zip(self._steps, done, strict=True):
            own.done.copy_(steps)

    def more(self) -> dict[str, list[float]]:
        found = [x for part in self.parts if part.unseen is not None for x in self._unseen(part, part.unseen)]
        return {"unseen": [float(torch.cat(found).mean())]} if found else {}

    @torch.no_grad()
    def _unseen(self, part: Part, pairs: Coupling) -> Iterator[Tensor]:
        """Errors of the averaged weights on networks that were left out, always at the same times, evenly spread."""
        generator = torch.Generator(self._device).manual_seed(0)
        weights = self._network.unflatten(self._average)
        inputs = None if part.function is None else part.function.draw(generator)
        pairs.refresh(generator)
        order = torch.randperm(len(pairs), generator=generator, device=self._device)
        times = (torch.arange(len(pairs), device=self._device) + 0.5) / len(pairs)
        batches = (torch.split(x, self.settings.batch_size) for x in (order, times))
        for at, time in zip(*batches, strict=True):
            x0, x1, condition = pairs.pairs(at, generator)
            with matmul_precision(self.settings.precision):
                yield part.loss(weights, (x0, x1), time, condition, None, inputs, self.settings)

    @torch.no_grad()
    def finish(self) -> None:
        """Give the field its averaged weights, and let go of all else."""
        averaged = self._network.unflatten(self._average)
        for name, p in self.parts[0].field.named_parameters():
            if name in averaged:
                p.copy_(averaged[name])
        release(*self._steps, *self.parts, self)

    def _step(self, own: _Steps) -> None:
        settings, generator, part = self.settings, self._generator, own.part
        at = own.order.index_select(0, own.done.view(1)).squeeze(0)
        x0, x1, condition = part.coupling.pairs(at, generator)
        time = torch.rand(len(at), generator=generator, device=self._device)
        if settings.times == "beta":
            time = 1 - (1 - time).sqrt()  # the quantiles of Beta(1, 2)
        noise = None
        if settings.noise:
            noise = torch.randn(x1.shape, generator=generator, device=self._device)
        inputs = None if part.function is None else part.function.draw(generator)
        weights = self._network.unflatten(self._flat)
        losses = part.loss(weights, (x0, x1), time, condition, noise, inputs, settings)
        counted = losses if own.levels is None else own.levels(time, losses.detach()) * losses
        (gradient,) = torch.autograd.grad(counted.mean(), [self._flat])
        self._moved(gradient)
        own.done += 1
        self._sum += losses.detach().mean()

    @torch.no_grad()
    def _move(self, gradient: Tensor) -> None:
        """A step along the gradient, clipped, with weights that decay on their own; and the average of all so far."""
        settings = self.settings
        gradient = gradient * (settings.clip / torch.linalg.vector_norm(gradient).clamp(min=settings.clip))
        rate = self._rates.index_select(0, self._done.view(1)).squeeze(0)
        self._flat.mul_(1 - rate * settings.weight_decay)
        self._optimizer.step([gradient], rate)
        # Early on an average over few steps, so that it does not remember the start.
        share = torch.clamp(1 / (1 + 0.1 * self._done), min=1 - settings.average)
        self._average.lerp_(self._flat.detach(), share)
        self._done += 1

    def _changes(self) -> list[Tensor]:
        levels = [x for own in self._steps if own.levels is not None for x in own.levels.state]
        return [self._flat, self._average, *self._optimizer.state, self._done, self._sum, *levels]

    def state_dict(self) -> dict[str, Any]:
        kept = [*self._changes(), *(own.done for own in self._steps)]
        return {"changes": [x.detach().clone() for x in kept], "taken": self._taken, "begun": self._begun}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        kept = [*self._changes(), *(own.done for own in self._steps)]
        for x, saved in zip(kept, state["changes"], strict=True):
            x.copy_(saved)
        self._taken, self._begun = state["taken"], state["begun"].cpu()


class _Steps:
    """The steps that one part takes in an epoch."""

    def __init__(self, part: Part, settings: Matching, device: torch.device) -> None:
        self.part = part
        size = min(settings.batch_size, len(part.coupling))
        self.count = len(part.coupling) // size
        self.order = torch.zeros(self.count, size, dtype=torch.int64, device=device)
        self.done = torch.zeros((), dtype=torch.int64, device=device)
        self.levels = Levels(device) if settings.level else None
        if settings.compile:
            part.compile()
        self.advance: Callable[[], None] = _nothing
        self.is_captured = False

    def begin(self, generator: torch.Generator) -> None:
        """Draw an order of the networks, and starts where they are matched anew."""
        self.part.coupling.refresh(generator)
        order = torch.randperm(len(self.part.coupling), generator=generator, device=self.order.device)
        self.order.copy_(order[: self.order.numel()].view_as(self.order))
        self.done.zero_()


def _nothing() -> None:
    """What there is to do before a step is captured."""
