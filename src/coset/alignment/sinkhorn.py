"""Sinkhorn re-basin: descend any differentiable objective over relaxed permutations (Peña et al. 2023)."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from coset.alignment import relaxed
from coset.alignment.coordinate_ascent import Match, maximise
from coset.alignment.method import AlignmentTask, AlignMethod
from coset.alignment.objective import InnerProduct, Objective
from coset.assignment.sinkhorn import sinkhorn
from coset.core import state as states
from coset.core.errors import CosetError
from coset.core.functional import evaluating
from coset.core.state import State, is_coordinate
from coset.data import Split, as_split
from coset.solutions.likelihood import as_logits, check_targets
from coset.symmetries.group import Element
from coset.symmetries.symmetry import Symmetry

RelaxedLoss = Literal["l2", "midpoint", "random"] | Callable[[State], Tensor]
PATH_TIMES = {"midpoint": (0.5,), "random": (0.1, 0.3, 0.5, 0.7, 0.9)}  # where hard permutations are judged
JUDGED = 8192  # examples on which they are judged, at most
PATIENCE = 10  # steps between two judgements
TOLERANCE = 1e-6  # of float32


@dataclass(frozen=True)
class Sinkhorn(AlignMethod):
    """Minimise an objective of the relaxed b, P(b), by Adam over scores X with P = sinkhorn(X / temperature).

    The loss is the mean cross-entropy of the model in evaluation mode. Running statistics are mixed and interpolated
    like weights, but the gradient passes over buffers, since torch's batch norm has none for them.

    The descent begins at the exact weight matching g: X is the gradient of <a, P(g b)> at P = 1, so that pairs which
    weights cannot tell apart are open. On six pairs of digits MLPs this ended lower than X = 1 from the unmoved b on
    all, and lower than X = 1 from g on five. Every few steps X is rounded to permutations, and the best ones met are
    the result: by the objective it is never worse than weight matching.

    Args:
        objective: "l2": |a - P(b)|^2 over the trained tensors (weightflow Eq. 4.4); "midpoint": the loss at
            (a + P(b)) / 2 (Eq. 4.5); "random": the loss at (1 - t) a + t P(b), with a new t ~ U(0, 1) at each step
            (Eq. 4.6); or a function: any differentiable scalar of the state P(b).
        steps: How many steps of Adam.
        rate: Adam's; the scores have a deviation of one at first.
        temperature: tau of Eq. 4.3: the lower, the nearer P is to a permutation.
        batch_size: Examples drawn for the loss at each step.

    Example:
        >>> match = coset.align(a, b, sym, coset.Sinkhorn(steps=20), model, digits.train)
        >>> match.sweeps, len(match.history)
        (20, 20)
    """

    name: ClassVar[str] = "sinkhorn"

    objective: RelaxedLoss = "midpoint"
    steps: int = 200
    rate: float = 0.1
    temperature: float = 1.0
    batch_size: int = 256

    def __post_init__(self) -> None:
        if isinstance(self.objective, str) and self.objective not in ("l2", *PATH_TIMES):
            raise CosetError(f"There is no objective {self.objective!r}; choose l2, midpoint, random or a function.")
        for name in ("steps", "rate", "temperature", "batch_size"):
            if not 0 < getattr(self, name) < math.inf:
                raise CosetError(f"The {name} of Sinkhorn is {getattr(self, name)}, but must be positive and finite.")

    def match(self, task: AlignmentTask) -> Match:
        """The best permutations met, for the means of a and b; never worse than those of weight matching.

        Every few steps X is rounded to permutations and these are judged: by the objective itself, or by the mean
        loss over fixed examples and t. The match's objective is the <a, g b> of weight matching, for comparison; its
        history is the relaxed objective at each step, and its sweeps are the steps.

        Memory: the matrices [n, n] and Adam's two moments, one relaxed b, and what the model keeps for a gradient.

        Args:
            task: Two solutions, with a model and data where the objective is a loss.
        """
        begin = time.perf_counter()
        generator = task.generator if task.generator is not None else torch.Generator().manual_seed(0)
        a, b = (states.to(mean, task.device) for mean in task.means_for_model())
        with self._ready(task) as ready:
            weights = Objective(task.sym, [InnerProduct(a, b)], device=task.device)
            start = maximise(weights, generator=generator, greedy=True, progress=task.progress)
            if not task.sym.groups:
                return start
            losses = self._losses(a, task.sym, ready, generator)
            delta, history = self._descend(a, task.sym.act(start.element, b), task, losses)
        element = delta @ start.element
        value = weights.value(element)
        seconds = time.perf_counter() - begin
        return Match(element, value, start.identity_objective, self.steps, seconds, (value,), tuple(history))

    @contextlib.contextmanager
    def _ready(self, task: AlignmentTask) -> Iterator[tuple[nn.Module, Split] | None]:
        """The model and the data on the device, where the objective is a loss."""
        if self.objective not in PATH_TIMES:
            yield None
            return
        if task.model is None or task.data is None:
            raise CosetError(
                f'The objective "{self.objective}" is a loss on data: give model and data, or choose "l2".'
            )
        split = as_split(task.data).to(task.device)
        with evaluating(task.model, task.device) as ready:
            yield ready, split

    def _losses(
        self, a: State, sym: Symmetry, ready: tuple[nn.Module, Split] | None, generator: torch.Generator
    ) -> _Losses:
        if ready is not None:
            assert isinstance(self.objective, str)
            return _path_loss(a, *ready, self.objective, self.batch_size, generator)
        if callable(self.objective):
            return _Losses(self.objective, self.objective)
        parameters = [name for name, x in a.items() if is_coordinate(x) and name not in sym.buffers]

        def distance(b: State) -> Tensor:
            return torch.stack([(a[name] - b[name]).abs().square().sum() for name in parameters]).sum()

        return _Losses(distance, distance)

    def _descend(self, a: State, b: State, task: AlignmentTask, losses: _Losses) -> tuple[Element, list[float]]:
        """The element that brings b, which is matched already, lowest; and the relaxed objective at each step."""
        sym = task.sym
        scores = _scores(a, b, sym)
        parameters = list(scores.values())
        adam = torch.optim.Adam(parameters, lr=self.rate)
        last = best = sym.identity()
        least = _judged(losses, b)
        history: list[float] = []
        for step in range(1, self.steps + 1):
            with torch.enable_grad():
                plans = {name: sinkhorn(x, self.temperature, tolerance=TOLERANCE) for name, x in scores.items()}
                mixed = relaxed.act(sym, plans, b)
                mixed.update({name: mixed[name].detach() for name in sym.buffers & mixed.keys()})
                value = _differentiable(losses.relaxed(mixed), step)
                gradients = torch.autograd.grad(value, parameters, allow_unused=True)
            for x, gradient in zip(parameters, gradients, strict=True):
                x.grad = gradient
            adam.step()
            history.append(float(value.detach()))
            if step % PATIENCE and step < self.steps:
                continue
            rounded = relaxed.rounded(sym, scores)
            if any(not torch.equal(rounded[name], last[name]) for name in scores):
                last, loss = rounded, _judged(losses, sym.act(rounded, b))
                if loss < least:
                    best, least = rounded, loss
            text = f"step {step} of {self.steps}: relaxed objective {history[-1]:.6g}, best permutations {least:.6g}"
            task.tell(text, step, self.steps, "step")
        return best, history


class _Losses(NamedTuple):
    """The objective of a relaxed b, which may be drawn at random, and of a permuted b, which is always the same."""

    relaxed: Callable[[State], Tensor]
    hard: Callable[[State], Tensor]


def _path_loss(
    a: State, model: nn.Module, split: Split, objective: str, batch_size: int, generator: torch.Generator
) -> _Losses:
    """Cross-entropy at points between a and b."""
    judged = split if len(split) <= JUDGED else split.subset(JUDGED, generator)
    batches = _endless(split, batch_size, generator)

    def loss(b: State, t: float, inputs: Tensor, targets: Tensor) -> Tensor:
        logits = as_logits(states.call(model, states.lerp(a, b, t), (inputs,)), model, len(inputs))
        check_targets(targets, logits)
        return nn.functional.cross_entropy(logits.flatten(0, -2), targets.flatten())

    def at_random(b: State) -> Tensor:
        t = 0.5 if objective == "midpoint" else float(torch.rand((), generator=generator, device=generator.device))
        return loss(b, t, *next(batches))

    def mean(b: State) -> Tensor:
        times = PATH_TIMES[objective]
        parts = [
            loss(b, t, inputs, targets) * (len(inputs) / len(judged) / len(times))
            for t in times
            for inputs, targets in judged.minibatches(batch_size, shuffle=False)
        ]
        return torch.stack(parts).sum()

    return _Losses(at_random, mean)


def _endless(split: Split, batch_size: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        yield from split.minibatches(batch_size, generator)


def _scores(a: State, b: State, sym: Symmetry) -> dict[str, Tensor]:
    """The gradients of <a, P(b)> in the matrices at P = 1, [n, n] or [copies, n, n]: scores of pairs of units.

    Each is divided by its deviation, so that rate and temperature mean the same for all.
    """
    identity = sym.identity()
    device = next(iter(b.values())).device
    with torch.enable_grad():
        plans = {group.name: relaxed.matrix_of(identity, group.name).to(device) for group in sym.groups}
        for plan in plans.values():
            plan.requires_grad_()
        names = [name for name in sym.axes if name not in sym.buffers and is_coordinate(b[name])]
        image = relaxed.act(sym, plans, {name: b[name] for name in names})
        value = states.inner({name: a[name] for name in names}, image)
        gradients = torch.autograd.grad(value, list(plans.values()), materialize_grads=True)
    return {
        name: (x / x.std(correction=0).clamp(min=torch.finfo(x.dtype).tiny)).requires_grad_()
        for name, x in zip(plans, gradients, strict=True)
    }


def _judged(losses: _Losses, b: State) -> float:
    with torch.no_grad():
        return float(_scalar(losses.hard(b)))


def _differentiable(value: Tensor, step: int) -> Tensor:
    if not _scalar(value).requires_grad:
        raise CosetError("The objective does not depend on the state it is given in a differentiable way.")
    if not bool(value.isfinite()):
        raise CosetError(f"The objective is {float(value.detach())} at step {step} of Sinkhorn: lower the rate.")
    return value


def _scalar(value: Tensor) -> Tensor:
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise CosetError("The objective of Sinkhorn must return a tensor that holds one number.")
    return value
