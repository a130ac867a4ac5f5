"""Learned matching: descend a loss over the whole group, permutations relaxed and matrices by retraction."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from coset.alignment.align import as_method
from coset.alignment.coordinate_ascent import Match
from coset.alignment.element_parameters import ElementParameters, cosine, falling, scores_at_identity
from coset.alignment.method import AlignmentTask, AlignMethod
from coset.alignment.methods import METHODS
from coset.alignment.repair import running_norms
from coset.alignment.weights import Weights
from coset.core import state as states
from coset.core.capture import captured
from coset.core.errors import CosetError
from coset.core.functional import evaluating, functional_call, matmul_precision, refuse_shared_modules
from coset.core.resume import NO_FOLDER, RunFolder, Stage, content_digest, tensor_digest
from coset.core.show import ShownSettings
from coset.core.state import State, is_coordinate
from coset.data import Split, as_split
from coset.solutions.likelihood import as_logits, check_targets
from coset.symmetries.group import Element
from coset.symmetries.symmetry import Symmetry

RelaxedLoss = Literal["l2", "midpoint", "random"] | Callable[[State], Tensor]
PATH_TIMES = {"midpoint": (0.5,), "random": (0.1, 0.3, 0.5, 0.7, 0.9)}  # where elements are judged
JUDGED = 8192  # examples on which they are judged, at most
JUDGED_TARGETS = 2**17  # and their targets, of which a sequence has many
SHARE = 10  # of so many examples one is held out
COMPARED = 5000  # examples by which units are matched at the start
LARGEST_TURN = 0.5  # in radians: steps back to the group take no more
STARTS = tuple(name for name in METHODS if name not in ("learned", "sinkhorn"))
UNSEEN = ("out", "checkpoint_seconds", "objective", "start")  # settings without which runs are told apart
SAVED = ("start", "best", "least", "losses", "tensors", "generator", "order", "position")
JUDGEMENTS, PATIENCE = 20, 10  # how often elements are judged, and after how many steps at least

logger = logging.getLogger(__name__)


@dataclass(frozen=True, repr=False)
class Learned(ShownSettings, AlignMethod):
    """Minimise a loss between a and g b by gradient descent over g in the whole group (Theus et al. 2025).

        min over g of E_t loss((1 - t) a + t g b)

    Permutations are P = sinkhorn(X / temperature), learned by Adam while the temperature falls (Peña et al. 2023);
    matrices M are moved on their group, M <- exp(-rate polar(m)) M with m the mean gradient in its Lie algebra. In
    each unit of time every plane turns by the same angle.

    The loss is the mean cross-entropy of the model in evaluation mode. Running statistics are mixed and interpolated
    like weights, but the gradient passes over buffers. A tenth of the data is held out. On it elements of the group are
    judged, without relaxation, and the best one met is the result: it is never worse there than the start.

    Args:
        objective: "random": the loss at (1 - t) a + t g b, with a new t ~ U(0, 1) at each step; "midpoint": at t = 1/2;
            "l2": |a - g b|^2 over the trained tensors; or a function: any differentiable scalar of the state g b.
        start: Where the descent begins: a method or its name, an element or a match; None is activations where model
            and data are given, and weights elsewhere.
        both: Whether a moves, too; of hard elements this is the same group, seen from both sides.
        steps: How many gradient steps.
        rate: Adam's for the scores of permutations, which have a deviation of one at first.
        turn_rate: The angle, in radians, by which matrices turn at each step. Both rates fall along a cosine.
        temperature: Of the relaxation at first.
        last_temperature: At the end, where P is nearly a permutation; None is the same as at first.
        batch_size: Examples drawn for the loss at each step.
        repair: Whether batch norms use the statistics of the batch, as after `coset.barrier(..., repair=data)`, and not
            the mixed ones.
        precision: "bfloat16" runs the model, not the element, in 16 bits; "tf32" rounds factors on CUDA.
        compile: Let torch compile the model.
        out: A folder for checkpoints. Called again with the same arguments, this goes on where it was stopped, with the
            same result.
        checkpoint_seconds: A checkpoint is written after the first judgement that ends so long after the last one.

    Example:
        >>> match = coset.align(a, b, sym, coset.Learned(steps=20), model, digits.train)
        >>> match.objective >= match.identity_objective, len(match.history)
        (True, 20)
    """

    name: ClassVar[str] = "learned"
    margin: ClassVar[float] = 3.0
    """By how much the scores of the start are larger than their deviation."""
    falls: ClassVar[bool] = True
    """Whether the rates fall along a cosine."""

    objective: RelaxedLoss = "random"
    start: str | AlignMethod | Element | Match | None = None
    both: bool = False
    steps: int = 1000
    rate: float = 0.2
    turn_rate: float = 0.03
    temperature: float = 1.0
    last_temperature: float | None = 0.03
    batch_size: int = 64
    repair: bool = False
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    compile: bool = False
    out: str | Path | None = None
    checkpoint_seconds: float = 60.0

    def __post_init__(self) -> None:
        kind = type(self).__name__
        if not callable(self.objective) and self.objective not in ("l2", *PATH_TIMES):
            raise CosetError(f"There is no objective {self.objective!r}; choose l2, midpoint, random or a function.")
        for name in ("steps", "rate", "turn_rate", "temperature", "last_temperature", "batch_size"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise CosetError(f"The {name} of {kind} is {value}, but must be positive and finite.")
        if self.turn_rate > LARGEST_TURN:
            raise CosetError(f"The turn_rate of {kind} is {self.turn_rate}, but must be no more than {LARGEST_TURN}.")
        if not self.checkpoint_seconds >= 0:
            raise CosetError(
                f"The checkpoint_seconds of {kind} are {self.checkpoint_seconds}, but must not be negative."
            )
        if self.precision not in ("float32", "tf32", "bfloat16"):
            raise CosetError(f"There is no precision {self.precision!r}; choose float32, tf32 or bfloat16.")
        if callable(self.objective) and self.both:
            raise CosetError("A function of the state knows one end: both ends learn by random, midpoint or l2.")
        if isinstance(self.start, str) and self.start not in STARTS:
            raise CosetError(f"There is no start {self.start!r}; choose {', '.join(STARTS)}, an element or a match.")
        if not isinstance(self.start, str | AlignMethod | Element | Match | None):
            raise CosetError(f"A {type(self.start).__name__} is no start; give a method, an element or a match.")

    def symmetry(self, task: AlignmentTask) -> Symmetry:
        """The part of the group that is learned: matrices where the gains of both are one.

        Args:
            task: The two solutions, their symmetry, and what else was given to `coset.align`.
        """
        return Weights().symmetry(task)

    def match(self, task: AlignmentTask) -> Match:
        """The best element met, for the means of a and b; never worse than its start on examples held out.

        The match's objective is minus the judged loss; its history is the relaxed objective at each step, and its
        sweeps are the steps.

        Memory: the matrices [n, n] and their moments, one relaxed b, and what the model keeps for a gradient.

        Args:
            task: Two solutions, with a model and data where the objective is a loss.
        """
        begin = time.perf_counter()
        generator = task.generator if task.generator is not None else torch.Generator().manual_seed(0)
        with self._folder(task, generator) as folder:
            stage = folder.stage(metrics=False)
            saved = stage.load_checkpoint(task.device, SAVED)
            learning, judged = self._splits(task, generator)
            start = _unpacked(task.sym, saved["start"]) if saved else self._first(task, learning, generator)
            a, b = (states.to(mean, task.device) for mean in task.means_for_model())
            with self._ready(task) as model:
                losses = PathLoss(self, a, model, task.sym.buffers, (learning, judged))
                at_identity, at_start = losses.judge(a, b), losses.judge(a, task.sym.act(start, b))
                descent = _Descent(
                    self, task, losses, (a, b), start, least=at_start, split=learning, generator=generator
                )
                if descent.trained:
                    folder.claim()
                    descent.run(stage, saved)
        value, identity = self._values(task, descent.best, (-descent.least, -at_identity))
        seconds = time.perf_counter() - begin
        return Match(descent.best, value, identity, len(descent.losses), seconds, (value,), tuple(descent.losses))

    def _values(self, task: AlignmentTask, element: Element, judged: tuple[float, float]) -> tuple[float, float]:
        """The objective of the match, and that of the identity; `judged` are minus the losses of both."""
        return judged

    def _first(self, task: AlignmentTask, learning: Split | None, generator: torch.Generator) -> Element:
        """Where the descent begins."""
        if isinstance(self.start, Element):
            return self.start.to("cpu")
        if isinstance(self.start, Match):
            return self.start.element.to("cpu")
        runs = task.model is not None and learning is not None
        method = as_method(self.start if self.start is not None else "activations" if runs else "weights")
        if learning is not None:
            task = replace(task, data=learning.subset(_fitting(learning, COMPARED), generator))
        return method.match(replace(task, sym=self.symmetry(task), generator=generator)).element.to("cpu")

    def _splits(self, task: AlignmentTask, generator: torch.Generator) -> tuple[Split | None, Split | None]:
        """Examples to learn from, and others to judge by, where the objective is a loss; else all there are."""
        split = None if task.data is None else as_split(task.data).to(task.device)
        if callable(self.objective) or self.objective == "l2":
            return split, None
        if task.model is None or split is None:
            raise CosetError(
                f'The objective "{self.objective}" is a loss on data: give model and data, or choose "l2".'
            )
        if len(split) < 2:
            raise CosetError("Some examples are learned from and others are held out: give at least 2.")
        order = torch.randperm(len(split), generator=generator, device=generator.device).to(task.device)
        count = _fitting(split, min(JUDGED, max(1, len(split) // SHARE)))
        rows = order[count:], order[:count]
        learning, judged = (Split(split.inputs[some], split.targets[some]) for some in rows)
        return learning, judged

    @contextlib.contextmanager
    def _ready(self, task: AlignmentTask) -> Iterator[nn.Module | None]:
        """The model on the device, in evaluation mode but for norms that are to use the statistics of a batch."""
        if task.model is None or callable(self.objective) or self.objective == "l2":
            yield None
            return
        with contextlib.ExitStack() as stack:
            model = stack.enter_context(evaluating(task.model, task.device))
            for norm in running_norms(model).values() if self.repair else ():
                norm.training = True
                stack.callback(setattr, norm, "training", False)
            yield model

    def _folder(self, task: AlignmentTask, generator: torch.Generator) -> contextlib.AbstractContextManager[RunFolder]:
        if self.out is None:
            return contextlib.nullcontext(NO_FOLDER)
        settings = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in UNSEEN}
        objective = self.objective if isinstance(self.objective, str) else getattr(self.objective, "__qualname__", "")
        start = self.start if isinstance(self.start, str | None) else content_digest(_words(self.start))
        data = None if task.data is None else tensor_digest(as_split(task.data))
        more = {
            "ends": [content_digest(dict(mean)) for mean in task.means],
            "data": data,
            "model": content_digest(repr(task.model)),
            "seed": tensor_digest([generator.get_state()]),
            "device": task.device.type,
        }
        return RunFolder.open(
            self.out, {"method": self.name, **settings, "objective": objective, "start": start, **more}
        )


class PathLoss:
    """The loss of two states, one of which may be relaxed.

    Args:
        method: Says which.
        a: The first state as it is given; tensors without coordinates are its own.
        model: The model, ready to run; None where the loss does not need one.
        buffers: The tensors that are not trained.
        splits: Examples to learn from, and others to judge by.
    """

    def __init__(
        self,
        method: Learned,
        a: State,
        model: nn.Module | None,
        buffers: frozenset[str],
        splits: tuple[Split | None, Split | None],
    ) -> None:
        self.method, self.model, self.buffers, self.examples = method, model, buffers, splits[1]
        self._call: Callable[..., Any] = functional_call
        if model is None:
            return
        self.fixed = {name: x for name, x in states.untie(model, a).items() if not is_coordinate(x)}
        for split in splits:
            assert split is not None
            logits = as_logits(states.call(model, a, (split.inputs[:2],)), model, len(split.inputs[:2]))
            check_targets(split.targets, logits)
        if method.compile:
            refuse_shared_modules(model)
            self._call = torch.compile(functional_call)

    def coordinates(self, state: State) -> dict[str, Tensor]:
        """What takes part: floating tensors, of tied ones the first."""
        once = state if self.model is None else states.untie(self.model, state)
        return {name: x for name, x in once.items() if is_coordinate(x)}

    def __call__(self, a: State, b: State, t: Tensor | float, inputs: Tensor, targets: Tensor) -> Tensor:
        """The mean cross-entropy at (1 - t) a + t b."""
        assert self.model is not None
        buffers = dict(self.model.named_buffers())
        mixed = {name: a[name] + t * (x - a[name]) for name, x in b.items()}
        # A forward pass may write into buffers.
        tensors = {**buffers, **self.fixed, **mixed}
        tensors = {name: x.clone() if name in buffers and name not in mixed else x for name, x in tensors.items()}
        learning = torch.is_grad_enabled()  # elements are judged as they are, in float32
        call = self._call if learning else functional_call
        bits = learning and self.method.precision == "bfloat16"
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=bits):
            logits = as_logits(call(self.model, tensors, (inputs,)), self.model, len(inputs))
        return nn.functional.cross_entropy(logits.flatten(0, -2).float(), targets.flatten())

    def distance(self, a: State, b: State) -> Tensor:
        """|a - b|^2 over the trained tensors."""
        trained = [name for name in b if name not in self.buffers]
        return torch.stack([(a[name] - b[name]).abs().square().sum() for name in trained]).sum()

    @torch.no_grad()
    def judge(self, a: State, b: State) -> float:
        """The loss of two states that are not relaxed: always the same."""
        objective = self.method.objective
        if callable(objective):
            return float(_scalar(objective(b)))
        a, b = self.coordinates(a), self.coordinates(b)
        if objective == "l2":
            return float(self.distance(a, b))
        assert self.examples is not None
        times, total = PATH_TIMES[objective], torch.zeros((), device=self.examples.inputs.device)
        n = len(self.examples)
        batch = -(-n // -(-n // self.method.batch_size))  # all alike, as far as they go
        for t in times:
            for inputs, targets in self.examples.minibatches(batch, shuffle=False):
                total += self(a, b, t, inputs, targets) * (len(inputs) / n / len(times))
        return float(total)


class _Control(NamedTuple):
    """What differs from step to step, on the device, so that a captured step can be replayed."""

    number: Tensor
    rate: Tensor
    turn_rate: Tensor
    temperature: Tensor
    t: Tensor


class _Descent:
    """Gradient steps from a start, and the best element met.

    `best`, `least` and `losses` are the result: the element, its judged loss, and the relaxed losses of all steps.
    """

    def __init__(
        self,
        method: Learned,
        task: AlignmentTask,
        losses: PathLoss,
        ends: tuple[State, State],
        start: Element,
        least: float,
        split: Split | None,
        generator: torch.Generator,
    ) -> None:
        self.method, self.task, self.loss, self.start, self.generator = method, task, losses, start, generator
        self.best, self.least, self.split = start, least, split
        self.losses: list[float] = []
        a, b = ends
        whole = callable(method.objective)
        self.a = dict(a) if whole else losses.coordinates(a)
        self.first = task.sym.act(start, b)
        self.b = self.first if whole else losses.coordinates(self.first)
        sym, device = method.symmetry(task), task.device
        pairs = [(self.a, self.b), (self.b, self.a)] if method.both else [(self.a, self.b)]
        self.ends = [
            ElementParameters(sym, scores_at_identity(to, one, sym, method.margin), device) for to, one in pairs
        ]
        self.whole_a, self.whole_b = a, self.first
        self.trained = [x for end in self.ends for x in end.trained]
        self.control = _Control(*(torch.zeros((), device=device) for _ in _Control._fields))
        self.recent = torch.zeros(method.steps, device=device)
        self.order, self.position = torch.zeros(0, dtype=torch.int64), 0
        if split is not None:
            rows = min(method.batch_size, len(split))
            self.batch = split.inputs[:rows].clone(), split.targets[:rows].clone()

    @property
    def state(self) -> list[Tensor]:
        """All that a step changes."""
        return [*(x for end in self.ends for x in end.state), self.recent]

    def run(self, stage: Stage, saved: Mapping[str, Any] | None) -> None:
        """All steps, or those that are left."""
        if saved is not None:
            self._load(saved)
        method, begin = self.method, time.perf_counter()
        last_saved = begin
        every = max(PATIENCE, -(-method.steps // JUDGEMENTS))
        advance: Callable[[], None] | None = None
        for step in range(len(self.losses) + 1, method.steps + 1):
            self._prepare(step)
            if advance is None:
                advance = self._step
                if self.task.device.type == "cuda" and not callable(method.objective):
                    advance = captured(self._step, self.state, (), self.task.device)
            advance()
            if step % every and step < method.steps:
                continue
            self.losses += self.recent[len(self.losses) : step].tolist()
            if not all(map(math.isfinite, self.losses)):
                self._give_up()
                break
            self._judge()
            now = time.perf_counter()
            text = (
                f"step {step} of {method.steps}: relaxed objective {self.losses[-1]:.6g}, best element {self.least:.6g}"
            )
            self.task.tell(f"{text}, {now - begin:.0f} s", step, method.steps, "step")
            if now - last_saved >= method.checkpoint_seconds or step == method.steps:
                last_saved = now
                stage.save_checkpoint(self._saved())

    def _prepare(self, step: int) -> None:
        """The batch of a step, its rates and its t."""
        method, generator = self.method, self.generator
        done = (step - 1) / method.steps
        fall = cosine(done) if method.falls else 1.0
        t = 0.5
        if method.objective == "random":
            t = float(torch.rand((), generator=generator, device=generator.device))
        temperature = falling(method.temperature, method.last_temperature or method.temperature, done)
        numbers = (step, method.rate * fall, method.turn_rate * fall, temperature, t)
        for tensor, number in zip(self.control, numbers, strict=True):
            tensor.fill_(number)
        if self.loss.model is None or self.split is None:
            return
        rows = len(self.batch[0])
        if self.position + rows > len(self.order):
            self.order = torch.randperm(len(self.split), generator=generator, device=generator.device)
            self.position = 0
        at = self.order[self.position : self.position + rows].to(self.task.device)
        self.position += rows
        for whole, part in zip(self.split, self.batch, strict=True):
            part.copy_(whole[at])

    def _step(self) -> None:
        control = self.control
        with torch.enable_grad():
            with matmul_precision(self.method.precision):
                value = self._value()
            if not _scalar(value).requires_grad:
                raise CosetError("The objective does not depend on the state it is given in a differentiable way.")
            gradients = torch.autograd.grad(value, self.trained, allow_unused=True, materialize_grads=True)
        rest = list(gradients)
        with matmul_precision("float32"):
            for end in self.ends:
                own, rest = rest[: len(end.trained)], rest[len(end.trained) :]
                end.step(own, control.rate, control.turn_rate, control.number)
        self.recent.index_copy_(0, (control.number - 1).long().view(1), value.detach().reshape(1).float())

    def _value(self) -> Tensor:
        """The relaxed objective."""
        control = self.control
        b = self.ends[0].image(self.b, control.temperature)
        a = self.ends[1].image(self.a, control.temperature) if self.method.both else self.a
        if callable(self.method.objective):
            return self.method.objective(b)
        if self.loss.model is None:
            return self.loss.distance(a, b)
        return self.loss(a, b, control.t, *self.batch)

    def _give_up(self) -> None:
        """The steps were too large: what was met before is the result, if there was anything."""
        step = next(number for number, value in enumerate(self.losses, 1) if not math.isfinite(value))
        name = type(self.method).__name__
        if step == 1:
            raise CosetError(f"The objective is {self.losses[0]} at step 1 of {name}: lower the rates.")
        logger.warning("the objective of %s was lost at step %d: lower its rates; the best before is kept", name, step)
        del self.losses[step - 1 :]

    def _judge(self) -> None:
        """Remember the element that the parameters are near, if none before was as good."""
        delta = self.ends[0].element()
        if self.method.both:
            delta = self.ends[1].element().inverse() @ delta
        value = self.loss.judge(self.whole_a, self.task.sym.act(delta, self.whole_b))
        if value < self.least:
            self.best, self.least = delta @ self.start, value

    def _saved(self) -> dict[str, Any]:
        return {
            "start": _packed(self.start),
            "best": _packed(self.best),
            "least": self.least,
            "losses": self.losses,
            "tensors": [x.detach().clone() for x in self.state],
            "generator": self.generator.get_state(),
            "order": self.order,
            "position": self.position,
        }

    def _load(self, saved: Mapping[str, Any]) -> None:
        self.best, self.least = _unpacked(self.task.sym, saved["best"]), saved["least"]
        self.losses, self.order, self.position = saved["losses"], saved["order"].cpu(), saved["position"]
        self.generator.set_state(saved["generator"].cpu())
        with torch.no_grad():
            for x, old in zip(self.state, saved["tensors"], strict=True):
                x.copy_(old)


def _packed(element: Element) -> dict[str, dict[str, Tensor]]:
    return {
        name: {key: x.cpu() for key, x in getattr(element, name).items()}
        for name in ("permutations", "scales", "matrices")
    }


def _unpacked(sym: Symmetry, packed: Mapping[str, Mapping[str, Tensor]]) -> Element:
    parts = {name: {key: x.cpu() for key, x in part.items()} for name, part in packed.items()}
    return sym.element(parts["permutations"], parts["scales"], parts["matrices"])


def _words(start: object) -> object:
    """What a start is known by."""
    element = start.element if isinstance(start, Match) else start
    return _packed(element) if isinstance(element, Element) else repr(start)


def _fitting(split: Split, count: int) -> int:
    """So many examples, or fewer if they have many targets each."""
    return max(1, min(count, len(split), JUDGED_TARGETS // max(1, split.targets[0].numel())))


def _scalar(value: Tensor) -> Tensor:
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise CosetError("The objective must return a tensor that holds one number.")
    return value
