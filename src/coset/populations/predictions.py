"""What every network of a population says, on a few examples at a time."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from coset.core import state as states
from coset.core.errors import StateError
from coset.core.functional import evaluating
from coset.core.state import State, check, members
from coset.populations.shared_inputs import outputs_of_all
from coset.solutions.likelihood import Likelihood
from coset.solutions.outputs import together
from coset.solutions.predictive import BATCH, require_numbers

# Outputs of the model that are in memory at once, over all networks; and how many times that elsewhere than on a CPU,
# where networks that run one by one take as long for a few examples as for many: they get as many times the batch.
ENTRIES, ELSEWHERE = 2**24, 4


@torch.no_grad()
def predictions(
    population: State, model: nn.Module, inputs: Tensor, likelihood: Likelihood, device: torch.device
) -> Iterator[tuple[slice, Tensor]]:
    """(examples, outputs [n, examples, ...]) of all n networks, the examples in their order.

    So few examples at a time that there are about `ENTRIES` outputs, on a GPU `ELSEWHERE` times as many: what compares
    networks needs all of them on one example, and what compares examples can be summed up. Networks run together by
    `vmap` as far as that pays, one by one if it refuses the model.
    """
    n = states.size(check(population, where="the population"))
    if n == 0:
        raise StateError("A population needs at least one network, and this one is empty.")
    with evaluating(model, device) as ready:
        given = states.untie(ready, states.to(population, device))
        first = states.call(ready, _one(given, 0), (inputs[:1].to(device),))
        at_once = min(together(ready, device), n)
        vectorized = at_once > 1 and _vectorizes(ready, members(given, slice(2)), inputs[:2].to(device))
        times = 1 if device.type == "cpu" else ELSEWHERE
        most = BATCH if vectorized else times * BATCH
        step = min(max(times * ENTRIES // (n * likelihood.read(first, model, 1).numel()), 1), most)
        for start in range(0, len(inputs), step):
            examples = slice(start, min(start + step, len(inputs)))
            batch = inputs[examples].to(device)
            if vectorized:
                parts = [
                    outputs_of_all(ready, members(given, slice(k, k + at_once)), batch) for k in range(0, n, at_once)
                ]
            else:
                parts = [states.call(ready, _one(given, k), (batch,)).unsqueeze(0) for k in range(n)]
            outputs = torch.cat(parts)
            likelihood.read(outputs[0], model, len(batch))
            require_numbers(outputs, model)
            yield examples, outputs


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
