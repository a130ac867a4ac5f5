"""Outputs of a model under two sets of weights, compared; and weights at which a mistake is seen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from coset.symmetries.examples import tensors_in

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
NOISE = {torch.float64: 1e-13, torch.float32: 1e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}


def numbers(output: Any) -> list[Tensor]:
    """All floating and complex tensors of what a model returned, as float64."""
    tensors = [t.detach() for t in tensors_in(output)]
    real = [torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in tensors]
    return [t.double() for t in real if t.is_floating_point()]


def difference(a: list[Tensor], b: list[Tensor], least: Sequence[float] | None = None) -> float:
    """Largest absolute difference relative to the largest entry; infinite where but one is finite.

    `least`: for each tensor, what the difference is relative to at least, as where all that is left is rounding.
    """
    worst = 0.0
    for x, y, low in zip(a, b, least or [0.0] * len(b), strict=True):
        if x.shape != y.shape or not torch.equal(_special(x), _special(y)):
            return math.inf
        x, y = x[x.isfinite()], y[y.isfinite()]
        scale = max(low, float(y.abs().max())) if y.numel() else 0.0
        if scale > 0:
            worst = max(worst, float((x - y).abs().max()) / scale)
    return worst


def sizes(outputs: list[Tensor]) -> list[float]:
    """The largest finite entry of each."""
    finite = [x[x.isfinite()].abs() for x in outputs]
    return [float(x.max()) if x.numel() else 0.0 for x in finite]


def _special(x: Tensor) -> Tensor:
    """0 for a finite number, and a number for each that is not."""
    return x.isposinf() + 2 * x.isneginf() + 3 * x.isnan()


def any_finite(outputs: list[Tensor]) -> bool:
    """Whether there is a number to compare."""
    return any(bool(output.isfinite().any()) for output in outputs)


def generic(state: Mapping[str, Tensor], generator: torch.Generator, gain: float = 1.0) -> dict[str, Tensor]:
    """Random weights of ordinary size, ties kept: nothing is zero, one or constant.

    Matrices get N(0, gain^2 / fan_in); vectors keep their sign: positive ones (gains, variances) exp(N(0, 0.3^2)),
    others N(0, 0.3^2).
    """
    new: dict[int, Tensor] = {}
    for tensor in state.values():
        if not tensor.is_floating_point() or tensor.layout is not torch.strided or id(tensor) in new:
            continue
        noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float32).to(tensor)
        wide = [size for size in tensor.shape if size > 1]
        if len(wide) > 1:
            new[id(tensor)] = noise * (gain / math.sqrt(max(1, tensor[0].numel())))
        elif tensor.numel() and bool((tensor > 0).all()):
            new[id(tensor)] = (0.3 * noise).exp()
        else:
            new[id(tensor)] = 0.3 * noise
    return {name: new.get(id(tensor), tensor) for name, tensor in state.items()}
