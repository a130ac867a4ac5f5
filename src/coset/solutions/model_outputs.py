"""A model at many states: several at once where that is faster."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from itertools import islice

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from coset.core import state as states
from coset.core.state import State
from coset.solutions.likelihood import Likelihood

# Of the states that run at once: how many coordinates they have in all, and how many rows, states times examples, a
# call has as a multiple of the batch size. More does not fit a processor's caches, where a large net alone is as fast;
# elsewhere it takes many small nets to keep a device busy.
CPU, ELSEWHERE = (2**18, 4), (2**24, 16)


def convolves(model: nn.Module) -> bool:
    """Whether the model has convolutions, of which several at once are slower than one after the other."""
    return any(isinstance(module, _ConvNd) for module in model.modules())


def states_at_once(model: nn.Module, device: torch.device) -> int:
    """How many states of `model` should run at once, one or more.

    With convolutions one, since a convolution of several states is a grouped one, which is slower than one by one.
    """
    if convolves(model):
        return 1
    size = sum(x.numel() for x in [*model.parameters(), *model.buffers()])
    coordinates, _ = _limits(device)
    return max(coordinates // max(size, 1), 1)


def model_outputs(
    model: nn.Module,
    population: Iterable[State],
    inputs: Tensor,
    likelihood: Likelihood,
    *,
    at_once: int,
    batch_size: int,
    device: torch.device,
) -> Iterator[tuple[slice, slice, Tensor]]:
    """The outputs of `model` at each state, on each example: (states, examples, outputs (states, examples, ...)).

    The slices count in the order given. Up to `at_once` states run together by `vmap`, in batches of examples that
    need a few times the memory of `batch_size` examples; one by one if `vmap` refuses the model. The model and the
    states are on `device`, the inputs may be elsewhere.
    """
    waiting = iter(population)
    _, batches = _limits(device)
    vectorized: bool | None = None
    start = 0
    while chunk := list(islice(waiting, at_once)):
        if vectorized is None and len(chunk) > 1:
            vectorized = _vectorizes(model, _stack(model, chunk[:2]), inputs[:2].to(device))
        if vectorized and len(chunk) > 1:
            stacked = _stack(model, chunk)
            rows = max(min(batches * batch_size // len(chunk), batch_size), 1)
            for examples in _slices(len(inputs), rows):
                out = _call_all(model, stacked, inputs[examples].to(device))
                likelihood.read(out[0], model, examples.stop - examples.start)
                yield slice(start, start + len(chunk)), examples, out
        else:
            for k, state in enumerate(chunk, start):
                for examples in _slices(len(inputs), batch_size):
                    raw = states.call(model, state, (inputs[examples].to(device),))
                    out = likelihood.read(raw, model, examples.stop - examples.start)
                    yield slice(k, k + 1), examples, out.unsqueeze(0)
        start += len(chunk)


def _stack(model: nn.Module, chunk: list[State]) -> State:
    """A population without tied names, as `vmap` cannot compare them."""
    return states.untie(model, {name: torch.stack([state[name] for state in chunk]) for name in chunk[0]})


def _call_all(model: nn.Module, population: State, batch: Tensor) -> Tensor:
    outputs: Tensor = torch.vmap(lambda state: states.call(model, state, (batch,)))(population)
    return outputs


def _vectorizes(model: nn.Module, population: State, batch: Tensor) -> bool:
    """Whether `vmap` can run the model, and that without a loop of its own, of which it warns."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return isinstance(_call_all(model, population, batch), Tensor)
    # Models may raise anything where values cannot be looked at. One by one, they say what is really wrong.
    except Exception:
        return False


def _limits(device: torch.device) -> tuple[int, int]:
    return CPU if device.type == "cpu" else ELSEWHERE


def _slices(n: int, size: int) -> Iterator[slice]:
    return (slice(i, min(i + size, n)) for i in range(0, n, size))
