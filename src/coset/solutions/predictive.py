"""The posterior predictive distribution of a classifier, one drawn state after the other."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coset import state as states
from coset.checks import State
from coset.errors import CosetError, ModelError
from coset.solutions.classification import as_logits, check_targets
from coset.solutions.device import resolve
from coset.solutions.solution import Solution
from coset.symmetries.trace import evaluation_mode

BATCH = 1024


@dataclass(frozen=True, eq=False)
class Predictive:
    """log_probs: (n, ..., classes) float64, log p(class | x) = log E_q[p(class | x, w)].

    loss_error: the standard error, from drawing finitely many states, of the mean of -log p(target | x); zero
    if nothing is random, None if it cannot be known.
    """

    log_probs: Tensor
    loss_error: float | None


def predictive(
    q: Solution,
    model: nn.Module,
    inputs: Tensor,
    samples: int,
    *,
    targets: Tensor | None = None,
    batch_size: int = BATCH,
    generator: torch.Generator | None = None,
    device: str | torch.device | None = None,
    prepare: Callable[[nn.Module, State], State] | None = None,
) -> Predictive:
    """Average the probabilities of states drawn from `q`; `prepare` maps each before it is used.

    Each component of `q` gets its share of the samples, at least two so that their spread is seen; a point gets
    one. Memory is that of one state, the log-probabilities (n, ..., classes), and with targets the likelihoods
    (samples, n, ...).
    """
    if samples < 1 or batch_size < 1 or len(inputs) < 1:
        raise CosetError(
            f"Cannot predict {len(inputs)} examples with {samples} samples in batches of {batch_size}: each must be "
            "one or more."
        )
    where = resolve(device, q.mean)
    own = seeded(generator, where)
    total: Tensor | None = None
    likelihoods: list[tuple[float, Tensor]] = []  # of each component: its weight, and (draws, n, ...) in logs
    with evaluating(model, where) as ready:
        for weight, component in q.components():
            draws = max(math.ceil(weight * samples), min(2, samples)) if component.is_random else 1
            found = []
            for state in _draw(component.to(where), draws, own):
                logs = _log_probs(ready, prepare(ready, state) if prepare else state, inputs, batch_size, where)
                if targets is not None:
                    if total is None:
                        check_targets(targets, logs)
                    found.append(logs.gather(-1, targets.to(where).unsqueeze(-1)).squeeze(-1))
                logs = logs.double() + math.log(weight / draws)
                total = logs if total is None else torch.logaddexp(total, logs)
            if found:
                likelihoods.append((weight, torch.stack(found)))
    assert total is not None  # weights sum to one, so there is a component
    if bool(total.isnan().any()):
        raise ModelError(f"{type(model).__name__} returns NaN for some examples.")
    if targets is None:
        return Predictive(total, None)
    target_logs = total.gather(-1, targets.to(where).unsqueeze(-1)).squeeze(-1)
    return Predictive(total, _loss_error(likelihoods, target_logs, [c.is_random for _, c in q.components()]))


def seeded(generator: torch.Generator | None, device: torch.device) -> torch.Generator:
    """A generator on `device`, seeded by one draw from `generator`; without one by 0, so measurements repeat."""
    seed = 0 if generator is None else int(torch.randint(2**62, (), generator=generator, device=generator.device))
    return torch.Generator(device).manual_seed(seed)


@contextmanager
def evaluating(model: nn.Module, device: torch.device) -> Iterator[nn.Module]:
    """The model in evaluation mode on `device`; a copy of it if it is elsewhere."""
    if any(x.device != device for x in [*model.parameters(), *model.buffers()]):
        model = copy.deepcopy(model).to(device)
    with evaluation_mode(model):
        yield model


def _draw(q: Solution, draws: int, generator: torch.Generator) -> Iterator[State]:
    if not q.is_random:
        yield q.mean
        return
    for _ in range(draws):
        yield states.unstack(q.sample(1, generator))[0]


def _log_probs(model: nn.Module, state: State, inputs: Tensor, batch_size: int, device: torch.device) -> Tensor:
    """log p(class | x, state): (n, ..., classes)."""
    found = []
    for start in range(0, len(inputs), batch_size):
        batch = inputs[start : start + batch_size]
        logits = as_logits(states.call(model, state, (batch.to(device),)), model, len(batch))
        found.append(torch.log_softmax(logits.float() if logits.element_size() < 4 else logits, -1))
    return torch.cat(found)


def _loss_error(likelihoods: list[tuple[float, Tensor]], logs: Tensor, random: list[bool]) -> float | None:
    """By the delta method: a draw s moves the loss by h_s = -mean_i p_s(y_i) / p(y_i), for all examples at once.

    The variance is sum_k w_k^2 var(h in component k) / draws_k.
    """
    variance = 0.0
    for (weight, component), varies in zip(likelihoods, random, strict=True):
        if not varies:
            continue
        if len(component) == 1:
            return None
        effect = torch.stack([(row - logs).exp().mean() for row in component])
        variance += weight**2 * float(effect.var()) / len(component)
    return math.sqrt(variance)
