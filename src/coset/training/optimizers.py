"""Steps by which all directions of a matrix move alike, in place of those that its gradient is large in."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

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
        given = list(zip(parts, self._shapes, strict=True))
        turned: dict[tuple[int, ...], Iterator[Tensor]] = {}
        for kind, momentum in zip(self._kinds, self._momenta, strict=True):
            # Those of one shape together: many small products are slow.
            found = torch.stack([part.view(kind) for part, shape in given if shape == kind])
            momentum.lerp_(found, 1 - MOMENTUM)
            size = max(1, kind[0] / kind[1]) ** 0.5
            turned[kind] = iter(-rate * size * orthogonal(found.lerp(momentum, MOMENTUM)))
        others = [part for part, shape in given if not _is_matrix(shape)]
        self._moves.zero_()
        self._adam.step([torch.cat(others) if others else self._moves], REST * rate)
        rest = iter(torch.split(self._moves, [part.numel() for part in others]))
        self._flat += torch.cat([next(turned[s]).flatten() if s in turned else next(rest) for s in self._shapes])


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
    found: Tensor = (y.mT if tall else y).to(x.dtype)
    return found


def _is_matrix(shape: torch.Size) -> bool:
    return len(shape) == 2 and min(shape) >= SMALLEST
