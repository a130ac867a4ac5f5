"""Optimizers, schedules, the settings that choose them, and checks of settings, before any work is done."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import ClassVar, Literal, get_args, get_type_hints

import torch
from torch import Tensor

from coset.core.errors import CosetError
from coset.core.show import ShownSettings
from coset.training.network import TrainingProblem

WARM = 0.3  # of a one-cycle run, which starts at 1/25 as torch's does
COLD = 1 / 25


def constant(done: float) -> float:
    """1."""
    return 1.0


def cosine(done: float) -> float:
    """(1 + cos(pi done)) / 2, from 1 to 0."""
    return (1 + math.cos(math.pi * done)) / 2


def onecycle(done: float) -> float:
    """Up along a line from 1/25 to 1, then down along a cosine to 0 (Smith & Topin 2018)."""
    return COLD + (1 - COLD) * done / WARM if done < WARM else cosine((done - WARM) / (1 - WARM))


SCHEDULES: Mapping[str, Callable[[float], float]] = {"cosine": cosine, "constant": constant, "onecycle": onecycle}
"""By name: the share of steps done, from 0 to 1, to the factor."""


BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


class Optimizer(ABC):
    """Moves parameters against their gradients; `state` is what it remembers."""

    state: list[Tensor]

    @abstractmethod
    def step(self, gradients: Sequence[Tensor], rate: Tensor) -> None:
        """One step of size `rate`, in place."""


class SGD(Optimizer):
    """v <- momentum v + g; w <- w - rate v."""

    def __init__(self, parameters: Sequence[Tensor], momentum: float) -> None:
        self._parameters, self._momentum = parameters, momentum
        self.state = [torch.zeros_like(p) for p in parameters]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], rate: Tensor) -> None:
        for p, v, g in zip(self._parameters, self.state, gradients, strict=True):
            v.mul_(self._momentum).add_(g)
            p.addcmul_(v, rate, value=-1)


class Adam(Optimizer):
    """w <- w - rate m' / (sqrt(v') + epsilon), with the moments m and v corrected for their start at zero.

    Kingma & Ba 2015, Algorithm 1.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self._count = torch.zeros((), dtype=torch.float64, device=parameters[0].device)
        self._moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in parameters]
        self.state = [self._count, *(x for pair in self._moments for x in pair)]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], rate: Tensor) -> None:
        self._count += 1
        size = (rate / (1 - BETA1**self._count)).to(rate.dtype)
        root = (1 - BETA2**self._count).sqrt().to(rate.dtype)
        for p, (m, v), g in zip(self._parameters, self._moments, gradients, strict=True):
            m.lerp_(g, 1 - BETA1)
            v.mul_(BETA2).addcmul_(g, g, value=1 - BETA2)
            p.addcdiv_(m * size, v.sqrt().div_(root).add_(EPSILON), value=-1)


MOMENTUM = 0.95
COEFFICIENTS, ITERATIONS = (3.4445, -4.7750, 2.0315), 5
SMALLEST = 16  # the shorter side of what counts as a matrix: those below have too few directions
REST = 0.25  # of the rate, for what is no matrix


class Muon(Optimizer):
    """w <- w - rate max(1, a/b)^(1/2) O(m) of matrices a x b, with their momentum m; Adam of all that is no matrix.

    O(m) = U V^T of m = U S V^T (`orthogonal`), so that small singular values of gradients count as much as large ones
    (Jordan et al. 2024). Outputs of a layer then change by about `rate`, however wide it is, so that rates carry over
    from narrow networks to wide ones (Yang, Simon, Bernstein 2023). The momentum is Nesterov's: that of the next step.

    flat
        [p] all parameters
    shapes
        of the tensors that lie in it, one after the other
    """

    def __init__(self, flat: Tensor, shapes: Sequence[torch.Size]) -> None:
        self._flat, self._shapes = flat, shapes
        self._kinds = sorted({tuple(s) for s in shapes if _is_matrix(s)})
        self._momenta = [flat.new_zeros(sum(s == kind for s in shapes), *kind) for kind in self._kinds]
        self._moves = flat.new_zeros(sum(s.numel() for s in shapes if not _is_matrix(s)))
        self._adam = Adam([self._moves])
        self.state = [*self._momenta, *self._adam.state]

    # Products of many shapes take a minute to compile, and are no faster then.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], rate: Tensor) -> None:
        (whole,) = gradients
        parts = torch.split(whole, [s.numel() for s in self._shapes])
        by_shape = list(zip(parts, self._shapes, strict=True))
        steps: dict[tuple[int, ...], Iterator[Tensor]] = {}
        for kind, momentum in zip(self._kinds, self._momenta, strict=True):
            # Those of one shape together: many small products are slow.
            gradient = torch.stack([part.view(kind) for part, shape in by_shape if shape == kind])
            momentum.lerp_(gradient, 1 - MOMENTUM)
            size = max(1, kind[0] / kind[1]) ** 0.5
            steps[kind] = iter(-rate * size * orthogonal(gradient.lerp(momentum, MOMENTUM)))
        others = [part for part, shape in by_shape if not _is_matrix(shape)]
        self._moves.zero_()
        self._adam.step([torch.cat(others) if others else self._moves], REST * rate)
        rest = iter(torch.split(self._moves, [part.numel() for part in others]))
        self._flat += torch.cat([next(steps[s]).flatten() if s in steps else next(rest) for s in self._shapes])


def orthogonal(x: Tensor) -> Tensor:
    """[k, a, b] U V^T of x = U S V^T, nearly: singular values between about 0.7 and 1.2, whatever those of x are.

    Five times X <- c_1 X + (c_2 A + c_3 A^2) X with A = X X^T, from X = x / |x|_F: a polynomial in the singular values
    that is steep at zero (Jordan et al. 2024). On CUDA in bfloat16, which that leaves room for.
    """
    tall = x.shape[-2] > x.shape[-1]
    y = (x.mT if tall else x) / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    if x.is_cuda:
        y = y.bfloat16()
    first, second, third = COEFFICIENTS
    for _ in range(ITERATIONS):
        a = y @ y.mT
        y = torch.baddbmm(y, torch.baddbmm(a, a, a, beta=second, alpha=third), y, beta=first)
    factor: Tensor = (y.mT if tall else y).to(x.dtype)
    return factor


def _is_matrix(shape: torch.Size) -> bool:
    return len(shape) == 2 and min(shape) >= SMALLEST


class MinibatchSettings(ShownSettings, ABC):
    """Settings of what goes through minibatches. Its objective is per training example, so rates carry over.

    batch_size: an epoch leaves out the examples that do not fill a batch, other ones each time. augment: shift and
    mirror images. precision: bfloat16 runs the model, not the parameters, in 16 bits; tf32 rounds the factors of
    matrix products on CUDA. compile: let torch compile the model, which pays in long runs of convolutional networks.
    """

    epochs: int
    batch_size: int
    augment: bool = False
    compile: bool = False
    precision: Literal["float32", "tf32", "bfloat16"]
    training: ClassVar[bool] = True  # the mode that the model is in

    @abstractmethod
    def rate_at(self, step: int, total: int) -> float:
        """The rate of a step.

        Args:
            step: From 0 to total - 1.
            total: How many steps there are.

        Returns:
            The rate.
        """

    @abstractmethod
    def make_optimizer(self, problem: TrainingProblem, parameters: list[Tensor]) -> Optimizer:
        """What moves the parameters.

        Args:
            problem: The networks and their data.
            parameters: The tensors, in place.

        Returns:
            The optimizer.
        """

    @abstractmethod
    def initial_noise(self, problem: TrainingProblem) -> tuple[float, bool]:
        """The standard deviation of the targets at the start.

        Args:
            problem: The networks and their data.

        Returns:
            The deviation, and whether it is learned.
        """


INITIAL_NOISE = 0.5  # where a learned noise starts, for targets of unit variance


@dataclass(frozen=True, repr=False)
class Descent(MinibatchSettings):
    """Settings of what follows a gradient.

    rate: the largest learning rate, the method's own for the optimizer when None. momentum: of sgd.
    schedule: of the learning rate, to zero (cosine), after a warm-up (onecycle), or constant.
    noise: standard deviation of the targets of a regression, learned when None. The others are those of
    `MinibatchSettings`.
    """

    RATES: ClassVar[Mapping[str, float]]

    optimizer: Literal["adam", "sgd"] = "adam"
    rate: float | None = None
    momentum: float = 0.9
    epochs: int = 50
    batch_size: int = 128
    schedule: Literal["cosine", "constant", "onecycle"] = "cosine"
    augment: bool = False
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    noise: float | None = None
    compile: bool = False

    def __post_init__(self) -> None:
        check_choices(self)
        check_positive(self, "rate", "epochs", "batch_size", "noise")
        if not 0 <= self.momentum < 1:
            raise CosetError(f"{type(self).__name__}: momentum must be in [0, 1), not {self.momentum!r}.")

    @property
    def largest_rate(self) -> float:
        """The rate, or the method's own."""
        return self.RATES[self.optimizer] if self.rate is None else self.rate

    def rate_at(self, step: int, total: int) -> float:
        return self.largest_rate * SCHEDULES[self.schedule](step / total)

    def make_optimizer(self, problem: TrainingProblem, parameters: list[Tensor]) -> Optimizer:
        return Adam(parameters) if self.optimizer == "adam" else SGD(parameters, self.momentum)

    def initial_noise(self, problem: TrainingProblem) -> tuple[float, bool]:
        if self.noise is not None:
            return self.noise, False
        return INITIAL_NOISE, not problem.classifies


def check_decay(settings: Descent, decay: float) -> None:
    """Refuse a weight decay that is none."""
    if not 0 <= decay < math.inf:
        raise CosetError(f"{type(settings).__name__}: weight_decay must be finite and not negative, not {decay!r}.")


def check_choices(settings: object) -> None:
    """Refuse a word that is none of those its field allows, and a fraction where that is a whole number."""
    for name, hint in get_type_hints(type(settings)).items():
        value = getattr(settings, name)
        if hint is int and not isinstance(value, Integral):
            raise CosetError(f"{type(settings).__name__}: {name} must be a whole number, not {value!r}.")
        choices = get_args(hint)
        if choices and isinstance(choices[0], str) and value not in choices:
            raise CosetError(f"{type(settings).__name__}: {name} must be {' or '.join(choices)}, not {value!r}.")


def check_positive(settings: object, *names: str) -> None:
    """Refuse a number that is not positive and finite; None is no number."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and not 0 < value < math.inf:
            raise CosetError(f"{type(settings).__name__}: {name} must be positive and finite, not {value!r}.")
