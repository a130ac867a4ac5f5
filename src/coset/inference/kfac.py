"""Kronecker factors of the curvature of linear layers and convolutions (K-FAC)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional as F

from coset.core.errors import ModelError
from coset.core.functional import functional_call
from coset.inference.curvature import BUDGET, Curvature, output_root
from coset.training.network import Network

LinearLayer = nn.Linear | nn.Conv2d
Calls = list[tuple[str, LinearLayer, Tensor, Tensor]]
"""What layers did: the weight's name, the layer, its inputs and its outputs."""


@dataclass
class _Factors:
    """Sums over places: outputs = sum g g^T [out, out], inputs = sum a a^T [in, in]."""

    outputs: Tensor
    inputs: Tensor
    places: int = 0

    @classmethod
    def zero(cls, weight: Tensor) -> _Factors:
        outputs, inputs = (weight.new_zeros((n, n), dtype=torch.float64) for n in weight.flatten(1).shape)
        return cls(outputs, inputs)

    def add(self, a: Tensor, g: Tensor) -> None:
        self.outputs.addmm_(g.T, g)
        self.inputs.addmm_(a.T, a)
        self.places += len(a)


def layers(network: Network) -> list[tuple[str, LinearLayer]]:
    """The layers with trained weights, and these weights' names; refused if another matrix is trained."""
    names = {id(p): name for name, p in network.model.named_parameters() if p.requires_grad}
    named: list[tuple[str, LinearLayer]] = []
    for module in network.model.modules():
        for own, p in module.named_parameters(recurse=False):
            if id(p) not in names or p.ndim < 2:
                continue
            if own != "weight" or not isinstance(module, LinearLayer) or not _is_plain(module):
                raise _no_factors(names[id(p)])
            named.append((names[id(p)], module))
    return named


def kronecker(curvature: Curvature) -> dict[str, tuple[Tensor, Tensor]]:
    """weight -> (G [out, out], A [in, in]), float64, with H of the weight, viewed as (out, in), about G x A.

    A layer that maps a_it to W a_it at the places t = 1..T of example i has the gradient sum_t g_itc a_it^T for each
    vector r_ic of `output_root`. K-FAC takes places, and g and a, for independent (Martens & Grosse 2015; Grosse &
    Martens 2016): G = sum_itc g_itc g_itc^T and A = sum_it a_it a_it^T / (n T). With one place it is exact for a
    linear regression, and for one example.
    """
    network, inputs, noise = curvature.network, curvature.inputs, curvature.noise
    named, calls = layers(network), Calls()
    factors = {name: _Factors.zero(layer.weight) for name, layer in named}
    tensors = {name: x.requires_grad_() for name, x in network.unflatten(curvature.weights).items()}
    start, size = 0, 1
    with _watched(named, calls), torch.enable_grad():
        while start < len(inputs):
            calls.clear()
            outputs: Tensor = functional_call(network.model, tensors, (inputs[start : start + size],))
            roots = vmap(lambda f: output_root(f, noise))(outputs.detach()).transpose(0, 1)
            outs = [out for *_, out in calls]
            gradients = torch.autograd.grad(outputs, outs, roots, is_grads_batched=True, allow_unused=True)
            for (name, layer, x, out), g in zip(calls, gradients, strict=True):
                factors[name].add(
                    _inputs_at_places(layer, x.detach()),
                    _gradients_at_places(layer, out.new_zeros(1, *out.shape) if g is None else g),
                )
            start += size
            # One example says how much room another takes.
            size = max(1, BUDGET * size // (len(roots) * max(1, sum(out.numel() for out in outs))))
    for name, sums in factors.items():
        if not sums.places:
            raise _no_factors(name)
    return {name: (sums.outputs, sums.inputs / sums.places) for name, sums in factors.items()}


def damped(g: Tensor, a: Tensor, precision: float) -> tuple[Tensor, Tensor]:
    """Covariances (C, D), C x D about (G x A + precision I)^-1.

    (G + sqrt(precision) / b I)^-1 x (A + b sqrt(precision) I)^-1, with b^2 the mean eigenvalue of A over that of G
    (Ritter, Botev & Barber 2018; b as in Martens & Grosse 2015). The product has terms beside the
    sum, so the covariance is too small rather than too large.
    """
    unit_g, unit_a = (torch.eye(len(x), dtype=x.dtype, device=x.device) for x in (g, a))
    scales = float(g.trace()) / len(g), float(a.trace()) / len(a)
    if min(scales) <= 0:
        return unit_g / precision, unit_a
    balance = (scales[1] / scales[0]) ** 0.5
    root = precision**0.5
    return _inverse(g + root / balance * unit_g), _inverse(a + root * balance * unit_a)


def _inverse(matrix: Tensor) -> Tensor:
    return torch.cholesky_inverse(torch.linalg.cholesky(matrix))


def _is_plain(layer: LinearLayer) -> bool:
    if isinstance(layer, nn.Linear):
        return True
    return layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)


def _no_factors(name: str) -> ModelError:
    return ModelError(
        f"The curvature of '{name}' has no Kronecker factors, as it is not the weight of an nn.Linear or a "
        "plain nn.Conv2d only: use hessian='diagonal'."
    )


def _inputs_at_places(layer: LinearLayer, x: Tensor) -> Tensor:
    """The inputs of a layer at all places, (places, in) float64."""
    if isinstance(layer, nn.Linear):
        return x.flatten(0, -2).double()
    assert not isinstance(layer.padding, str)
    patches = F.unfold(x.double(), layer.kernel_size, layer.dilation, layer.padding, layer.stride)
    return patches.transpose(1, 2).flatten(0, 1)


def _gradients_at_places(layer: LinearLayer, g: Tensor) -> Tensor:
    """Gradients (count, m, ...) by the outputs of a layer, at all places, (count places, out) float64."""
    last = g if isinstance(layer, nn.Linear) else g.movedim(2, -1)
    return last.flatten(0, -2).double()


@contextmanager
def _watched(named: Sequence[tuple[str, LinearLayer]], calls: Calls) -> Iterator[None]:
    """Write down in `calls` what the layers do."""

    def watch(name: str, layer: LinearLayer) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
        def hook(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
            calls.append((name, layer, args[0], output))
            return output.clone()  # an activation may work in place

        return hook

    handles = [layer.register_forward_hook(watch(name, layer)) for name, layer in named]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
