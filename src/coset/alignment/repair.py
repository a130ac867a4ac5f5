"""Statistics of merged networks put right: averages of weights shrink the variance of what units do.

Networks with batch norm have their running statistics recomputed; in others the shift and scale of each unit are
corrected and folded into the weights (REPAIR, Jordan et al. 2023).
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.utils.hooks import RemovableHandle

from coset.core import state as states
from coset.core.functional import evaluation_mode, functional_call, tied_names
from coset.core.state import State
from coset.data import Data, as_split
from coset.symmetries.group import names
from coset.symmetries.symmetry import Symmetry

AffineLayer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
# A unit with less deviation than this much of its mean, or of its target, is constant: there is nothing to stretch.
CONSTANT = 1e-6


def recompute_norms(
    model: nn.Module,
    state: State,
    data: Data,
    batch_size: int = 500,
    device: torch.device | str | None = None,
) -> dict[str, Tensor]:
    """The state with the running means and variances of its norms measured on `data`, each batch counting alike.

    A pass in training mode for norms with running statistics, in evaluation mode for all else. Batches are drawn in
    a fixed random order and differ by one example at most. Without such norms this is a copy of the state. The
    result lies where the state does.
    """
    net, home = _copy(model, state, device)
    aliases = tied_names(model)
    tensors = {aliases[name]: x.to(home, copy=True) for name, x in states.untie(model, state).items()}
    norms = running_norms(net)
    for name, norm in norms.items():
        norm.train()
        # The first of a cumulative average takes the place of what was there.
        tensors[aliases[f"{name}.num_batches_tracked".removeprefix(".")]].zero_()
    with torch.no_grad():
        for k, inputs in enumerate(_batches(data, batch_size, home) if norms else ()):
            for norm in norms.values():
                # Without a momentum batch norms average over batches; instance norms do not count them.
                norm.momentum = None if isinstance(norm, _BatchNorm) else 1 / (k + 1)
            functional_call(net, tensors, inputs)
    return {name: tensors[aliases[name]].to(x.device) for name, x in state.items()}


def repair(
    model: nn.Module,
    state: State,
    ends: Sequence[State],
    sym: Symmetry,
    data: Data,
    weights: Sequence[float] | None = None,
    batch_size: int = 500,
    device: torch.device | str | None = None,
) -> dict[str, Tensor]:
    """The merged `state` with the mean and deviation of each hidden unit as in its aligned endpoints, on average.

    With m, s the mean and deviation of a unit before its activation function, over examples and positions, the
    output y of its layer becomes (y - m_merged) s / s_merged + m, m and s being the averages of those of `ends` by
    `weights` (Jordan et al. 2023, Eq. 3). Later layers see corrected activations. The correction is folded into
    weight and bias. That is exact if the data is one batch and each layer is called once; otherwise the averages over
    batches and calls are used.

    Corrected are linear and convolutional layers with units that `sym` can move, if they have a bias to take the
    shift and share no tensor with others. A network with running statistics gets `recompute_norms` instead.
    """
    if running_norms(model):
        return recompute_norms(model, state, data, batch_size, device)
    net, home = _copy(model, state, device)
    layers = _hidden(net, sym)
    if not layers:
        return {name: x.clone() for name, x in state.items()}
    split = as_split(data)

    def measure(point: State, targets: State | None = None) -> dict[str, Tensor]:
        return _measure(net, states.to(point, home), layers, _batches(split, batch_size, home), targets)

    targets = states.mean(states.stack(measure(end) for end in ends), weights)
    repaired = {name: x.clone() for name, x in state.items()}
    for name, merged in measure(state, targets).items():
        weight, bias = state[f"{name}.weight"], state[f"{name}.bias"]
        scale, shift = (x.to(weight.device) for x in _correction(merged, targets[name]))
        rows = scale.reshape(-1, *[1] * (weight.dim() - 1))
        repaired[f"{name}.weight"] = (weight.double() * rows).to(weight.dtype)
        repaired[f"{name}.bias"] = (bias.double() * scale + shift).to(bias.dtype)
    return repaired


def _copy(model: nn.Module, state: State, device: torch.device | str | None) -> tuple[nn.Module, torch.device]:
    """A copy of the model in evaluation mode, and the device where it lies: by default that of the state."""
    home = next(iter(state.values())).device if device is None else torch.device(device)
    return copy.deepcopy(model).eval().to(home), home


def _batches(data: Data, batch_size: int, home: torch.device) -> Iterator[Tensor]:
    """Inputs in random order, since files are often sorted by class, in parts that differ by one at most."""
    inputs, _ = as_split(data)
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0)).to(inputs.device)
    return (inputs[rows].to(home) for rows in order.tensor_split(-(-len(order) // batch_size)))


def running_norms(model: nn.Module) -> dict[str, _NormBase]:
    """The norms with running statistics."""
    norms = {name: module for name, module in model.named_modules() if isinstance(module, _NormBase)}
    return {name: norm for name, norm in norms.items() if norm.running_mean is not None}


def _hidden(model: nn.Module, sym: Symmetry) -> dict[str, AffineLayer]:
    """The layers whose output units can move and whose weight and bias are theirs alone."""
    users = Counter(tied_names(model).values())

    def own(name: str) -> bool:
        units = names(sym.axes[f"{name}.weight"][0]) if f"{name}.weight" in sym.axes else ()
        alone = users[f"{name}.weight"] == users[f"{name}.bias"] == 1
        return alone and any(sym.sets[one].movable for one in units)

    return {name: module for name, module in model.named_modules() if isinstance(module, AffineLayer) and own(name)}


def _measure(
    net: nn.Module,
    state: State,
    layers: Mapping[str, AffineLayer],
    batches: Iterator[Tensor],
    targets: State | None = None,
) -> dict[str, Tensor]:
    """Layer -> [2, units] the mean and deviation of its outputs; with targets, each layer is corrected on the way."""
    moments: dict[str, list[Tensor]] = {}

    def hook(name: str, dim: int, output: Tensor) -> Tensor:
        variance, mean = torch.var_mean(output.movedim(dim, -1).flatten(0, -2).double(), 0, correction=0)
        moments.setdefault(name, []).append(torch.stack([mean, variance]))
        if targets is None:
            return output
        scale, shift = _correction(torch.stack([mean, variance.sqrt()]), targets[name])
        column = [-1, *[1] * (-1 - dim)]
        return output * scale.to(output.dtype).reshape(column) + shift.to(output.dtype).reshape(column)

    def listen(name: str, module: AffineLayer) -> RemovableHandle:
        # The units of a linear layer come last, the channels of a convolution before its positions.
        dim = 1 - module.weight.dim()
        return module.register_forward_hook(lambda _, __, output: hook(name, dim, output))

    handles = [listen(name, module) for name, module in layers.items()]
    with evaluation_mode(net):
        for inputs in batches:
            states.call(net, state, inputs)
    for handle in handles:
        handle.remove()
    averages = {name: torch.stack(rows).mean(0) for name, rows in moments.items()}
    return {name: torch.stack([mean, variance.sqrt()]) for name, (mean, variance) in averages.items()}


def _correction(merged: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """(scale, shift), each (units,), that give outputs of one mean and deviation another."""
    (mean, deviation), (target_mean, target_deviation) = merged, target
    alive = deviation > CONSTANT * torch.maximum(mean.abs(), target_deviation)
    scale = torch.where(alive, target_deviation / deviation.where(alive, 1.0), 1.0)
    return scale, target_mean - scale * mean
