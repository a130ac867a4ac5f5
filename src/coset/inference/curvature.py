"""The generalised Gauss-Newton matrix of a network over a training set: its diagonal, or a dense part of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import vjp, vmap

from coset.core.errors import ModelError
from coset.core.functional import functional_call
from coset.training.network import Network, Tensors

BUDGET = 2**25  # numbers held for a chunk of examples


@dataclass(frozen=True, eq=False)
class Curvature:
    """H = sum_i J_i^T L_i J_i at one network, with J_i = df(x_i; w)/dw and L_i = -d^2 log p(y_i | f) / df^2.

    This is the Hessian of -sum_i log p(y_i | x_i, w) without the curvature of f itself, so it has no negative
    direction; for a softmax or a Gaussian it does not depend on y (Martens 2020). The sum is over all examples,
    one by one, so it is exact. The model should be in evaluation mode.

    weights: (p,); inputs: (n, ...); noise: standard deviation of the targets of a regression, None for classes.
    """

    network: Network
    weights: Tensor
    inputs: Tensor
    noise: float | None

    def diagonal(self) -> Tensors:
        """The diagonal of H by name, float64."""
        total = {name: torch.zeros_like(x, dtype=torch.float64) for name, x in self.tensors.items()}
        for rows in self.rows(self.network.names):
            for name, x in rows.items():
                total[name] += x.square().sum(0)
        return total

    def dense(self, names: Sequence[str]) -> Tensor:
        """The part of H for the named tensors, flattened and matrix in that order, [P, P] float64."""
        size = sum(x.numel() for name, x in self.tensors.items() if name in names)
        total = self.weights.new_zeros((size, size), dtype=torch.float64)
        for rows in self.rows(names):
            matrix = torch.cat([_wide(rows[name]) for name in names], 1)
            total.addmm_(matrix.T, matrix)
        return total

    def blocks(self, names: Sequence[str]) -> Tensors:
        """For each of the named tensors its block of H, [size, size] float64."""
        tensors = self.tensors
        total = {name: tensors[name].new_zeros((tensors[name].numel(),) * 2, dtype=torch.float64) for name in names}
        for rows in self.rows(names):
            for name, x in rows.items():
                wide = _wide(x)
                total[name].addmm_(wide.T, wide)
        return total

    @property
    def tensors(self) -> Tensors:
        """The weights by name."""
        return self.network.unflatten(self.weights)

    def outputs(self) -> Tensor:
        """f of the first example, (1, ...)."""
        outputs: Tensor = functional_call(self.network.model, self.tensors, (self.inputs[:1],))
        return outputs

    def rows(self, names: Sequence[str]) -> Iterator[Tensors]:
        """For chunks of examples the vectors v (count, *shape) by name, sum v v^T over all of them being H."""
        if not names:
            return
        model, tensors = self.network.model, self.tensors
        varied = {name: tensors[name] for name in names}

        def vectors(x: Tensor) -> Tensors:
            def outputs(some: Tensors) -> Tensor:
                batch: Tensor = functional_call(model, {**tensors, **some}, (x.unsqueeze(0),))
                return batch.squeeze(0)

            f, pull = vjp(outputs, varied)[:2]
            gradients: tuple[Tensors] = vmap(pull)(output_root(f, self.noise))
            return gradients[0]

        count = self.outputs().numel()
        size = max(1, BUDGET // (count * sum(x.numel() for x in varied.values())))
        for some in torch.split(self.inputs, size):
            try:
                rows = vmap(vectors)(some)
            except (RuntimeError, ValueError, NotImplementedError) as error:
                raise ModelError(
                    f"The curvature of {type(model).__name__} cannot be computed example by example: "
                    f"{str(error).splitlines()[0]}"
                ) from error
            yield {name: x.flatten(0, 1) for name, x in rows.items()}


def _wide(rows: Tensor) -> Tensor:
    """(count, *shape) -> (count, size) float64; the shape of a scalar is empty."""
    return rows.reshape(len(rows), math.prod(rows.shape[1:])).double()


def output_root(outputs: Tensor, noise: float | None) -> Tensor:
    """Vectors r (count, *outputs.shape) with sum r r^T = -d^2 log p(y | f) / df^2 at the outputs f of one example.

    For classes with p = softmax(f) it is diag(p) - p p^T, of r_c = sqrt(p_c) (e_c - p), for each row of logits; for a
    regression I / noise^2.
    """
    if noise is not None:
        unit = torch.eye(outputs.numel(), dtype=outputs.dtype, device=outputs.device)
        return (unit / noise).reshape(-1, *outputs.shape)
    p = outputs.reshape(-1, outputs.shape[-1]).softmax(-1)
    unit, places = (torch.eye(n, dtype=p.dtype, device=p.device) for n in (p.shape[1], p.shape[0]))
    roots = p.sqrt().unsqueeze(-1) * (unit - p.unsqueeze(1))
    return torch.einsum("tcd,ts->tcsd", roots, places).reshape(-1, *outputs.shape)
