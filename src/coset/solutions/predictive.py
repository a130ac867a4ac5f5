"""The posterior predictive distribution of a solution, and how well it is known from finitely many states."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coset.core.device import resolve
from coset.core.errors import CosetError, ModelError
from coset.core.functional import evaluating
from coset.core.state import State
from coset.solutions.draws import Draws, share
from coset.solutions.likelihood import Classification, Likelihood, Regression, likelihood_of, log_softmax, of_targets
from coset.solutions.load import as_solution
from coset.solutions.outputs import outputs, together
from coset.solutions.solution import Solution


class AverageProbs:
    """log sum_s v_s p_s from log p_s (states, examples, ..., classes); weights v: (draws,)."""

    def __init__(self, weights: Tensor, n: int) -> None:
        self.weights, self.n = weights, n
        self.total: Tensor | None = None

    def add(self, rows: slice, examples: slice, logs: Tensor) -> None:
        """Take in the states `rows` on the examples."""
        if self.total is None:
            self.total = _filled(logs, self.n, -math.inf)
        shares = self.weights[rows].log().to(logs).reshape(-1, *[1] * (logs.ndim - 1))
        part = (logs + shares).logsumexp(0).double()
        self.total[examples] = torch.logaddexp(self.total[examples], part)


class AverageValues:
    """sum_s v_s f_s and sum_s v_s (f_s - mean)^2 from f_s (states, examples, k); weights v: (draws,).

    Sums are of the differences to the first state, so that a small variance is not lost beside a large mean.
    """

    def __init__(self, weights: Tensor, n: int) -> None:
        self.weights, self.n = weights, n
        self.first: Tensor | None = None

    def add(self, rows: slice, examples: slice, values: Tensor) -> None:
        """Take in the states `rows` on the examples."""
        if self.first is None:
            self.first, self.shift, self.square = (_filled(values, self.n, 0.0) for _ in range(3))
        if rows.start == 0:
            self.first[examples] = values[0].double()
        moved = values.double() - self.first[examples]
        v = self.weights[rows].to(moved)
        self.shift[examples] += torch.einsum("s,s...->...", v, moved)
        self.square[examples] += torch.einsum("s,s...->...", v, moved.square())

    @property
    def mean(self) -> Tensor:
        """(n, k) float64."""
        assert self.first is not None  # there is at least one state
        return self.first + self.shift

    @property
    def variance(self) -> Tensor:
        """(n, k) float64."""
        return (self.square - self.shift.square()).clamp_min(0)


def _filled(part: Tensor, n: int, value: float) -> Tensor:
    """(n, ...) for parts (states, examples, ...)."""
    return part.new_full((n, *part.shape[2:]), value, dtype=torch.float64)


BATCH = 1024
Prepare = Callable[[nn.Module, State], State]
Evaluations = Iterator[tuple[slice, slice, Tensor]]
Influence = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, eq=False)
class Predictive:
    """p(y | x) = sum_s v_s p(y | x, w_s) for states w_s drawn from a solution, with weights v_s that sum to one.

    log_probs: (n, ..., classes) float64, log p(class | x); None for regression.
    mean: (n, k) float64, sum_s v_s f(x; w_s); None for classification.
    loss: -mean_i log p(y_i | x_i), in nats.
    influence: for each component how much each of its draws moved the loss, nothing for a point; None if it cannot be
    known, since one state was drawn.
    spread: the standard deviation over states of the loss of each alone; None if there is but one.
    """

    log_probs: Tensor | None
    mean: Tensor | None
    loss: float
    influence: Influence | None
    spread: float | None

    @property
    def loss_error(self) -> float | None:
        """The standard error of the loss from drawing finitely many states; zero if nothing is random."""
        return None if self.influence is None else math.hypot(*(g for part in self.influence for g in part))


def predictive(
    q: Solution,
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    samples: int,
    *,
    batch_size: int = BATCH,
    generator: torch.Generator | None = None,
    device: str | torch.device | None = None,
    prepare: Prepare | None = None,
) -> Predictive:
    """Measure states drawn from `q` against the targets; `prepare` maps each state before it is used.

    Memory is that of a few states, the log-probabilities (n, ..., classes) or the means, and the likelihoods
    (samples, n, ...).
    """
    likelihood = likelihood_of(targets)
    draws = share(q, samples)
    noise = draws.noise
    likelihood.check_noise(noise)
    where = resolve(device, q.mean)
    weights, targets = draws.weights.to(where), targets.to(where)
    probs, values = AverageProbs(weights, len(inputs)), AverageValues(weights, len(inputs))
    found: Tensor | None = None  # log p(y | x, w_s): (draws, n, ...)
    with evaluated(draws, model, inputs, likelihood, batch_size, generator, where, prepare) as evaluations:
        for rows, examples, out in evaluations:
            if found is None:
                likelihood.check(out[0], targets)
            if isinstance(likelihood, Classification):
                logs = log_softmax(out)
                part = of_targets(logs, targets[examples])
                probs.add(rows, examples, logs)
            else:
                std = None if noise is None else noise[rows].to(where).reshape(-1, 1, 1)
                part = likelihood.log_prob(out, targets[examples], std)
                values.add(rows, examples, out)
            if found is None:
                found = part.new_empty(len(weights), len(inputs), *part.shape[2:])
            found[rows, examples] = part
    assert found is not None  # there is at least one state
    require_numbers(found, model)
    log_weights = weights.log().reshape(-1, *[1] * (found.ndim - 1))
    total = (found + log_weights.to(found)).logsumexp(0).double()
    regression = isinstance(likelihood, Regression)
    return Predictive(
        probs.total,
        values.mean if regression else None,
        -float(total.mean()),
        _influence(draws, found, total),
        _spread(weights, found),
    )


@contextmanager
def evaluated(
    draws: Draws,
    model: nn.Module,
    inputs: Tensor,
    likelihood: Likelihood,
    batch_size: int,
    generator: torch.Generator | None,
    device: torch.device,
    prepare: Prepare | None = None,
) -> Iterator[Evaluations]:
    """The outputs of `model` at the states of `draws`, as `coset.solutions.outputs` gives them."""
    if batch_size < 1 or len(inputs) < 1:
        raise CosetError(f"Cannot predict {len(inputs)} examples in batches of {batch_size}: give one or more of each.")
    with evaluating(model, device) as ready:
        at_once = together(ready, device)
        drawn = draws.states(seed_from(generator), device, at_once)
        prepared = drawn if prepare is None else (prepare(ready, state) for state in drawn)
        yield outputs(ready, prepared, inputs, likelihood, at_once=at_once, batch_size=batch_size, device=device)


def require_numbers(x: Tensor, model: nn.Module) -> None:
    """Refuse NaN in what comes from the outputs of a model."""
    if bool(x.isnan().any()):
        raise ModelError(f"{type(model).__name__} returns NaN for some examples.")


def seed_from(generator: torch.Generator | None) -> int:
    """A seed drawn from `generator`; 0 without one, so that measurements repeat."""
    return 0 if generator is None else int(torch.randint(2**62, (), generator=generator, device=generator.device))


def _influence(draws: Draws, found: Tensor, logs: Tensor) -> Influence | None:
    """By the delta method, whose square sums to the variance of the loss.

    A state s moves the loss by h_s = -mean_i p_s(y_i) / p(y_i), for all examples at once. Component k of weight w_k
    has d_k draws: w_k^2 var(h) / d_k is the sum over them of the squares of w_k (h_s - mean h) / sqrt(d_k (d_k - 1)).
    """
    influence: list[tuple[float, ...]] = []
    start = 0
    for (weight, component), count in zip(draws.components, draws.counts, strict=True):
        rows, start = found[start : start + count], start + count
        if not component.is_random:
            influence.append(())
        elif count == 1:
            return None
        else:
            h = -torch.stack([(row - logs).exp().mean() for row in rows])
            influence.append(tuple((weight * (h - h.mean()) / math.sqrt(count * (count - 1))).tolist()))
    return tuple(influence)


def _spread(weights: Tensor, found: Tensor) -> float | None:
    """sqrt(sum_s v_s (l_s - mean)^2 / (1 - sum_s v_s^2)), which for equal weights divides by draws - 1."""
    if len(weights) == 1:
        return None
    losses = -found.flatten(1).mean(1, dtype=torch.float64)
    variance = (weights * (losses - weights @ losses).square()).sum() / (1 - weights.square().sum())
    return float(variance.sqrt())


def predict(
    q: State | Solution,
    model: nn.Module,
    x: Tensor,
    samples: int = 128,
    *,
    batch_size: int = BATCH,
    generator: torch.Generator | None = None,
    device: str | torch.device | None = None,
) -> Tensor:
    """log p(class | x) = log mean_s softmax(model(x; w_s)) with w_s ~ q: (n, ..., classes) float64.

    The model returns logits (n, ..., classes). A Dirac needs one evaluation, whatever `samples`. Without a generator
    the noise is the same at each call. `device` is the solution's own unless given.
    """
    given = as_solution(q)
    draws = share(given, samples)
    if draws.noise is not None:
        raise CosetError("This solution has noise, so its outputs are values and no classes: use coset.moments.")
    where = resolve(device, given.mean)
    average = AverageProbs(draws.weights.to(where), len(x))
    with evaluated(draws, model, x, Classification(), batch_size, generator, where) as evaluations:
        for rows, examples, logits in evaluations:
            average.add(rows, examples, log_softmax(logits))
    assert average.total is not None  # there is at least one state
    require_numbers(average.total, model)
    return average.total


@dataclass(frozen=True, eq=False)
class Moments:
    """Of the predictive distribution of y at n inputs, each (n, k) float64.

    mean: E[f(x; w)]; std: sqrt(epistemic^2 + E[noise^2]), of y; epistemic: the standard deviation of f(x; w) over
    states w, zero for a Dirac.
    """

    mean: Tensor
    std: Tensor
    epistemic: Tensor


def moments(
    q: State | Solution,
    model: nn.Module,
    x: Tensor,
    samples: int = 128,
    *,
    batch_size: int = BATCH,
    generator: torch.Generator | None = None,
    device: str | torch.device | None = None,
) -> Moments:
    """Mean and standard deviation of y = f(x; w) + noise * e with w ~ q and e ~ N(0, 1), from states drawn from `q`.

    The model returns values (n, k), and `q` has a noise. A Dirac needs one evaluation, whatever `samples`. Without a
    generator the draws are the same at each call. `device` is the solution's own unless given.
    """
    given = as_solution(q)
    draws = share(given, samples)
    noise = draws.noise
    if noise is None:
        raise CosetError(
            "This solution has no noise, so the deviation of values is not known: give it, as in coset.Dirac(state, "
            "noise=0.1), or use coset.predict for classes."
        )
    where = resolve(device, given.mean)
    average = AverageValues(draws.weights.to(where), len(x))
    with evaluated(draws, model, x, Regression(), batch_size, generator, where) as evaluations:
        for rows, examples, values in evaluations:
            average.add(rows, examples, values)
    require_numbers(average.mean, model)
    variance = average.variance
    return Moments(average.mean, (variance + draws.weights @ noise.square()).sqrt(), variance.sqrt())
