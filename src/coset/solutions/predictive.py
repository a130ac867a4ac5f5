"""The posterior predictive distribution of a solution, and how well it is known from finitely many states."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coset.core.errors import CosetError, ModelError
from coset.core.functional import evaluating, resolve
from coset.core.names import plural
from coset.core.show import Shown, Table
from coset.core.state import State, StateLike
from coset.solutions.as_solution import as_solution
from coset.solutions.likelihood import Classification, Likelihood, Regression, likelihood_of, log_softmax, of_targets
from coset.solutions.model_outputs import model_outputs, states_at_once
from coset.solutions.solution import Solution
from coset.solutions.weighted_samples import WeightedSamples, weighted_samples


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
        shifts = values.double() - self.first[examples]
        v = self.weights[rows].to(shifts)
        self.shift[examples] += torch.einsum("s,s...->...", v, shifts)
        self.square[examples] += torch.einsum("s,s...->...", v, shifts.square())

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
    draws = weighted_samples(q, samples)
    noise = draws.noise
    likelihood.check_noise(noise)
    where = resolve(device, q.mean)
    weights, targets = draws.weights.to(where), targets.to(where)
    probs, values = AverageProbs(weights, len(inputs)), AverageValues(weights, len(inputs))
    logs: Tensor | None = None  # log p(y | x, w_s): (draws, n, ...)
    with sample_outputs(
        draws, model, inputs, likelihood, batch_size=batch_size, generator=generator, device=where, prepare=prepare
    ) as evaluations:
        for rows, examples, out in evaluations:
            if logs is None:
                likelihood.check(out[0], targets)
            if isinstance(likelihood, Classification):
                log_probs = log_softmax(out)
                part = of_targets(log_probs, targets[examples])
                probs.add(rows, examples, log_probs)
            else:
                std = None if noise is None else noise[rows].to(where).reshape(-1, 1, 1)
                part = likelihood.log_prob(out, targets[examples], std)
                values.add(rows, examples, out)
            if logs is None:
                logs = part.new_empty(len(weights), len(inputs), *part.shape[2:])
            logs[rows, examples] = part
    assert logs is not None  # there is at least one state
    require_numbers(logs, model)
    log_weights = weights.log().reshape(-1, *[1] * (logs.ndim - 1))
    total = (logs + log_weights.to(logs)).logsumexp(0).double()
    regression = isinstance(likelihood, Regression)
    return Predictive(
        probs.total,
        values.mean if regression else None,
        -float(total.mean()),
        _influence(draws, logs, total),
        _spread(weights, logs),
    )


@contextmanager
def sample_outputs(
    draws: WeightedSamples,
    model: nn.Module,
    inputs: Tensor,
    likelihood: Likelihood,
    *,
    batch_size: int,
    generator: torch.Generator | None,
    device: torch.device,
    prepare: Prepare | None = None,
) -> Iterator[Evaluations]:
    """The outputs of `model` at the states of `draws`, as `coset.solutions.model_outputs` gives them."""
    if batch_size < 1 or len(inputs) < 1:
        raise CosetError(f"Cannot predict {len(inputs)} examples in batches of {batch_size}: give one or more of each.")
    with evaluating(model, device) as ready:
        at_once = states_at_once(ready, device)
        states = draws.states(seed_from(generator), device, at_once)
        prepared = states if prepare is None else (prepare(ready, state) for state in states)
        yield model_outputs(ready, prepared, inputs, likelihood, at_once=at_once, batch_size=batch_size, device=device)


def require_numbers(x: Tensor, model: nn.Module) -> None:
    """Refuse NaN in what comes from the outputs of a model."""
    if bool(x.isnan().any()):
        raise ModelError(f"{type(model).__name__} returns NaN for some examples.")


def seed_from(generator: torch.Generator | None) -> int:
    """A seed drawn from `generator`; 0 without one, so that measurements repeat."""
    return 0 if generator is None else int(torch.randint(2**62, (), generator=generator, device=generator.device))


def _influence(draws: WeightedSamples, logs: Tensor, total: Tensor) -> Influence | None:
    """By the delta method, whose square sums to the variance of the loss.

    A state s moves the loss by h_s = -mean_i p_s(y_i) / p(y_i), for all examples at once. Component k of weight w_k
    has d_k draws: w_k^2 var(h) / d_k is the sum over them of the squares of w_k (h_s - mean h) / sqrt(d_k (d_k - 1)).
    """
    influence: list[tuple[float, ...]] = []
    start = 0
    for (weight, component), count in zip(draws.components, draws.counts, strict=True):
        rows, start = logs[start : start + count], start + count
        if not component.is_random:
            influence.append(())
        elif count == 1:
            return None
        else:
            h = -torch.stack([(row - total).exp().mean() for row in rows])
            influence.append(tuple((weight * (h - h.mean()) / math.sqrt(count * (count - 1))).tolist()))
    return tuple(influence)


def _spread(weights: Tensor, logs: Tensor) -> float | None:
    """sqrt(sum_s v_s (l_s - mean)^2 / (1 - sum_s v_s^2)), which for equal weights divides by draws - 1."""
    if len(weights) == 1:
        return None
    losses = -logs.flatten(1).mean(1, dtype=torch.float64)
    variance = (weights * (losses - weights @ losses).square()).sum() / (1 - weights.square().sum())
    return float(variance.sqrt())


def predict(
    q: StateLike,
    model: nn.Module,
    x: Tensor,
    samples: int = 128,
    *,
    batch_size: int = BATCH,
    generator: torch.Generator | None = None,
    device: str | torch.device | None = None,
) -> Tensor:
    """The predictive distribution of classes, log p(class | x) = log mean_s softmax(model(x; w_s)) with w_s ~ q.

    Args:
        q: a solution, a state or a module.
        model: returns logits (n, ..., classes) for inputs (n, ...). It runs in evaluation mode and is not changed.
        x: inputs (n, ...).
        samples: states drawn from `q`; a Dirac needs one evaluation, whatever their number.
        batch_size: inputs in a call of the model.
        generator: what the states are drawn from; without one they are the same at each call.
        device: where the model runs, the solution's own by default.

    Returns:
        (n, ..., classes) float64.

    Raises:
        CosetError: the solution has noise, so that its outputs are values; `coset.moments` predicts those.
        ModelError: the model returns something else than logits, or NaN.

    Example:
        >>> log_probs = coset.predict(a, model, digits.test.inputs)
        >>> log_probs.shape, round(float(log_probs[0].exp().sum()), 6)
        (torch.Size([355, 10]), 1.0)
    """
    solution = as_solution(q)
    draws = weighted_samples(solution, samples)
    if draws.noise is not None:
        raise CosetError("This solution has noise, so its outputs are values and no classes: use coset.moments.")
    where = resolve(device, solution.mean)
    average = AverageProbs(draws.weights.to(where), len(x))
    with sample_outputs(
        draws, model, x, Classification(), batch_size=batch_size, generator=generator, device=where
    ) as evaluations:
        for rows, examples, logits in evaluations:
            average.add(rows, examples, log_softmax(logits))
    assert average.total is not None  # there is at least one state
    require_numbers(average.total, model)
    return average.total


@dataclass(frozen=True, eq=False, repr=False)
class Moments(Shown):
    """Mean and standard deviation of a predictive distribution of values y at n inputs, each (n, k) float64.

    Args:
        mean: E[f(x; w)].
        std: sqrt(epistemic^2 + E[noise^2]), that of y.
        epistemic: the standard deviation of f(x; w) over states w, zero for a Dirac.

    Example:
        >>> q = coset.Dirac(model, noise=0.1)
        >>> m = coset.moments(q, model, digits.test.inputs[:3])
        >>> m.std.shape, m.epistemic.max().item()
        (torch.Size([3, 10]), 0.0)
    """

    mean: Tensor
    std: Tensor
    epistemic: Tensor

    def _shown(self) -> Table:
        n, k = self.mean.shape
        sizes = [(name, float(getattr(self, name).mean())) for name in ("std", "epistemic")]
        low, high = float(self.mean.min()), float(self.mean.max())
        rows = [("mean", f"from {low:.4g} to {high:.4g}"), *((name, f"{size:.4g} on average") for name, size in sizes)]
        return Table(f"Moments of {plural(k, 'value')} at {plural(n, 'input')}", rows)


def moments(
    q: StateLike,
    model: nn.Module,
    x: Tensor,
    samples: int = 128,
    *,
    batch_size: int = BATCH,
    generator: torch.Generator | None = None,
    device: str | torch.device | None = None,
) -> Moments:
    """Mean and standard deviation of y = f(x; w) + noise * e with w ~ q and e ~ N(0, 1), by sampling `q`.

    Args:
        q: a solution with `noise`.
        model: returns values (n, k) for inputs (n, ...). It runs in evaluation mode and is not changed.
        x: inputs (n, ...).
        samples: states drawn from `q`; a Dirac needs one evaluation, whatever their number.
        batch_size: inputs in a call of the model.
        generator: what the states are drawn from; without one they are the same at each call.
        device: where the model runs, the solution's own by default.

    Returns:
        The moments, each (n, k) float64.

    Raises:
        CosetError: the solution has no noise; `coset.predict` is for classes.
        ModelError: the model returns something else than values, or NaN.

    Example:
        >>> coset.moments(coset.Dirac(model, noise=0.1), model, digits.test.inputs[:3]).mean.shape
        torch.Size([3, 10])
    """
    solution = as_solution(q)
    draws = weighted_samples(solution, samples)
    noise = draws.noise
    if noise is None:
        raise CosetError(
            "This solution has no noise, so the deviation of values is not known: give it, as in coset.Dirac(state, "
            "noise=0.1), or use coset.predict for classes."
        )
    where = resolve(device, solution.mean)
    average = AverageValues(draws.weights.to(where), len(x))
    with sample_outputs(
        draws, model, x, Regression(), batch_size=batch_size, generator=generator, device=where
    ) as evaluations:
        for rows, examples, values in evaluations:
            average.add(rows, examples, values)
    require_numbers(average.mean, model)
    variance = average.variance
    return Moments(average.mean, (variance + draws.weights @ noise.square()).sqrt(), variance.sqrt())
