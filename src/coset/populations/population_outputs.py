"""What every network of a population says of the same inputs.

The first layers of all networks are one matrix product, and convolutions are products, too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from coset.core import state as states
from coset.core.errors import ModelError, StateError
from coset.core.functional import evaluating, functional_call
from coset.core.progress import Event, Progress
from coset.core.state import State, check, members
from coset.solutions.likelihood import Likelihood
from coset.solutions.model_outputs import states_at_once
from coset.solutions.predictive import BATCH, require_numbers

Sizes2d = int | Sequence[int]


def by_patches(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes2d = 1,
    padding: Sizes2d | str = 0,
    dilation: Sizes2d = 1,
    groups: int = 1,
) -> Tensor:
    """`F.conv2d` on CUDA as W P, with the patches P [c k^2, m places] of inputs [m, c, height, width].

    Many small networks at once by `vmap` are as many products, where those of `F.conv2d` are one convolution with as
    many groups, whose gradients are slow. Patches are slices, which torch puts together in one kernel if it compiles
    them, and in many if not. What is no plain convolution, or not on CUDA, is left to torch.
    """
    if not input.is_cuda or input.ndim != 4 or groups != 1 or isinstance(padding, str):
        return F.conv2d(input, weight, bias, stride, padding, dilation, groups)
    return multiplied(input, weight, bias, _pair(stride), _pair(padding), _pair(dilation))


def multiplied(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
) -> Tensor:
    """W P + b, [m, channels, rows, columns]: a view of [channels, m, rows, columns]."""
    kernel = weight.shape[2:]
    padded = F.pad(input.transpose(0, 1), (padding[1], padding[1], padding[0], padding[0]))
    sizes = zip(padded.shape[2:], kernel, stride, dilation, strict=True)
    rows, columns = ((size - d * (k - 1) - 1) // step + 1 for size, k, step, d in sizes)

    def places(first: int, count: int, step: int) -> slice:
        return slice(first, first + step * (count - 1) + 1, step)

    patches = torch.stack(
        [
            padded[:, :, places(i * dilation[0], rows, stride[0]), places(j * dilation[1], columns, stride[1])]
            for i in range(kernel[0])
            for j in range(kernel[1])
        ],
        1,
    )
    outputs = weight.flatten(1) @ patches.flatten(2).flatten(0, 1)
    if bias is not None:
        outputs = outputs + bias.unsqueeze(-1).to(outputs.dtype)
    return outputs.view(len(weight), len(input), rows, columns).transpose(0, 1)


def _pair(x: Sizes2d) -> tuple[int, int]:
    return (x, x) if isinstance(x, int) else (x[0], x[-1])


class WeightsFirst(TorchFunctionMode):
    """While it is active, a linear layer computes (W x^T)^T + b where torch computes x W^T + b.

    Under `vmap` over W [n, h, d], with inputs x [m, d] that all networks share, torch folds W x^T into one product
    [n h, d] x [d, m], and its gradient into another. It does not fold x W^T, for which it reads x anew for each of n
    small products. Outputs come as views of [n, h, m]: examples last, along which short rows of units are fast, too.

    Compiled on CUDA, a convolution is W P with the patches P of its inputs, [n, h, c k^2] x [n, c k^2, m places]: what
    `vmap` makes of n of them is one with n groups, whose gradients are slow where channels are few.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.linear:
            func = _linear
        elif func is F.conv2d and torch.compiler.is_compiling():
            func = by_patches
        return func(*args, **(kwargs or {}))


def outputs_of_all(model: nn.Module, population: State, inputs: Tensor) -> Tensor:
    """Outputs (n, m, ...) of all networks of a population on the same inputs (m, ...), differentiable.

    Of tied names the population has one (see `coset.core.state.untie`).
    """

    def one(state: dict[str, Tensor]) -> Tensor:
        outputs = functional_call(model, state, (inputs,))
        if not isinstance(outputs, Tensor):
            raise ModelError(
                f"{type(model).__name__} returns a {type(outputs).__name__} in training, where one tensor is "
                "expected: wrap it in a module that returns the outputs alone."
            )
        return outputs

    with WeightsFirst():
        outputs: Tensor = torch.vmap(one)(dict(population))
    return outputs


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    rows = input.reshape(-1, input.shape[-1])
    outputs = weight @ rows.mT
    if bias is not None:
        outputs = outputs + bias.unsqueeze(-1).to(outputs.dtype)
    return outputs.mT.reshape(*input.shape[:-1], len(weight))


# Outputs of the model that are in memory at once, over all networks; and how many times that elsewhere than on a CPU,
# where networks that run one by one take as long for a few examples as for many: they get as many times the batch.
ENTRIES, ELSEWHERE = 2**24, 4


@torch.no_grad()
def predictions(
    population: State,
    model: nn.Module,
    inputs: Tensor,
    likelihood: Likelihood,
    device: torch.device,
    progress: Progress | None = None,
) -> Iterator[tuple[slice, Tensor]]:
    """(examples, outputs [n, examples, ...]) of all n networks, the examples in their order.

    So few examples at a time that there are about `ENTRIES` outputs, on a GPU `ELSEWHERE` times as many: what compares
    networks needs all of them on one example, and what compares examples can be summed up. Networks run together by
    `vmap` as far as that pays, one by one if it refuses the model. `progress` hears of the examples once their outputs
    have been used.
    """
    n = states.size(check(population, where="the population"))
    if n == 0:
        raise StateError("A population needs at least one network, and this one is empty.")
    with evaluating(model, device) as ready:
        networks = states.untie(ready, states.to(population, device))
        first = states.call(ready, _one(networks, 0), (inputs[:1].to(device),))
        at_once = min(states_at_once(ready, device), n)
        vectorized = at_once > 1 and _vectorizes(ready, members(networks, slice(2)), inputs[:2].to(device))
        times = 1 if device.type == "cpu" else ELSEWHERE
        most = BATCH if vectorized else times * BATCH
        step = min(max(times * ENTRIES // (n * likelihood.read(first, model, 1).numel()), 1), most)
        for start in range(0, len(inputs), step):
            examples = slice(start, min(start + step, len(inputs)))
            batch = inputs[examples].to(device)
            if vectorized:
                parts = [
                    outputs_of_all(ready, members(networks, slice(k, k + at_once)), batch) for k in range(0, n, at_once)
                ]
            else:
                parts = [states.call(ready, _one(networks, k), (batch,)).unsqueeze(0) for k in range(n)]
            outputs = torch.cat(parts)
            likelihood.read(outputs[0], model, len(batch))
            require_numbers(outputs, model)
            yield examples, outputs
            if progress is not None:
                progress(Event(examples.stop, len(inputs), "example"))


def _one(population: State, k: int) -> dict[str, Tensor]:
    return {name: x[k] for name, x in population.items()}


def _vectorizes(model: nn.Module, population: State, batch: Tensor) -> bool:
    """Whether `vmap` can run the model, and that without a loop of its own, of which it warns."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return isinstance(outputs_of_all(model, population, batch), Tensor)
    # Models may raise anything where values cannot be looked at. One by one, they say what is really wrong.
    except Exception:
        return False
