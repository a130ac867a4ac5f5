"""The Bethe permanent: the sum-product approximation of a permanent, in O(n^2) a round and with proven bounds."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from coset.assignment.permanent import checked, level, scale, square
from coset.core.errors import AssignmentError
from coset.core.show import Shown, Table

# A belief this close to certainty counts as certain: where G is a permutation, messages would grow forever.
TINY = 1e-13
# An entry with a smaller log counts as zero: products with it would be denormal, and slow.
NOTHING = -500.0
# Rounds before an extrapolation, the largest change of a log message in it, and by how much it may raise the error.
WINDOW = 12
LEAP = 5.0
SLACK = 2.0


@dataclass(frozen=True, repr=False)
class Bounds(Shown):
    """lower <= log perm(A) <= upper, as `coset.assignment.permanent_bounds` returns them; unpacks as the two.

    Args:
        lower: Of shape [...], one for each matrix.
        upper: The same.

    Example:
        >>> lower, upper = coset.assignment.permanent_bounds(torch.zeros(4, 4))
        >>> bool(lower < torch.tensor(24.0).log() < upper)
        True
    """

    lower: Tensor
    upper: Tensor

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.lower, self.upper))

    def _shown(self) -> Table:
        pairs = zip(self.lower.flatten().tolist(), self.upper.flatten().tolist(), strict=True)
        rows = [(f"{lower:.6g}", f"<= log perm <= {upper:.6g}") for lower, upper in pairs]
        return Table(f"Bounds of {len(rows)} permanent{'s' if len(rows) != 1 else ''}", rows)


def permanent_bounds(log_a: Tensor, *, tolerance: float = 1e-3, rounds: int = 2000) -> Bounds:
    """permB(A) <= perm(A) <= 2^(n/2) permB(A), in logs and as exactly as `log_bethe` is.

    The lower bound is Gurvits' (2011), the upper one Anari and Rezaei's (2019). Both are attained.

    Args:
        log_a: The logs of matrices A >= 0, [..., n, n].
        tolerance: The error of the Bethe permanent, in nats a row.
        rounds: How many rounds of messages to try.

    Returns:
        Both bounds, each of shape [...].

    Raises:
        AssignmentError: As `log_bethe` does.

    Example:
        >>> bounds = coset.assignment.permanent_bounds(torch.zeros(4, 4))
        >>> bool(bounds.lower < torch.tensor(24.0).log() < bounds.upper)
        True
    """
    lower = log_bethe(log_a, tolerance=tolerance, rounds=rounds)
    return Bounds(lower, lower + log_a.shape[-1] / 2 * math.log(2))


def log_bethe(log_a: Tensor, *, tolerance: float = 1e-3, rounds: int = 2000) -> Tensor:
    """The log of the Bethe permanent, of shape [...], of matrices A >= 0 of shape [..., n, n] given by their logs.

        log permB(A) = max_G sum_ij G_ij log A_ij - G_ij log G_ij + (1 - G_ij) log(1 - G_ij)

    over doubly stochastic G (Vontobel 2013; Huang and Jebara 2009). An entry of A may be zero, its log -inf; the
    result is -inf if every permutation meets one. All is in float64, and the result in the dtype of `log_a`.

    The gradient is G, by the envelope theorem (gelberg2024, errata). It cannot be differentiated again. Close to a tie,
    as in [[1, 1], [1, 1]], the maximum is flat and G hardly determined; it is then a subgradient within the error.

    Each call starts from the optimal assignment. Messages of an earlier call would be a worse start: those that were
    certain of another permutation take longest to change.

    Args:
        log_a: The logs of matrices A >= 0, [..., n, n].
        tolerance: The error in nats a row: the result is less than n * tolerance below the maximum, by a bound computed
            from the messages; and the rows of G, by the rows' messages and by the columns', differ by no more on
            average.
        rounds: How many rounds of messages to try before giving up.

    Returns:
        The logs [...], in the dtype of `log_a`.

    Raises:
        AssignmentError: If the matrices are not square, have NaN or inf, or the rounds do not suffice.

    Example:
        >>> log_a = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))
        >>> bool(coset.assignment.log_bethe(log_a) < coset.assignment.log_permanent(log_a))
        True
    """
    if not tolerance > 0 or rounds < 1:
        raise AssignmentError(f"A tolerance of {tolerance} in {rounds} rounds is impossible, both must be positive.")
    value: Tensor = _Bethe.apply(checked(log_a), tolerance, rounds)  # type: ignore[no-untyped-call]
    return value.to(log_a.dtype)


def bethe_beliefs(log_a: Tensor, rounds: int = 5) -> Tensor:
    """The beliefs G [..., n, n] after a fixed number of rounds: close to the gradient of `log_bethe`, and cheap.

    For training: `bethe_value(log_a, bethe_beliefs(log_a))` is close to `log_bethe(log_a)`, and so is its gradient. No
    value is looked at, let alone checked, so it can be captured in a CUDA graph. Computed in the dtype of `log_a`, or
    in float32 if that is larger. No gradient flows through. Rows of G sum to one, and columns as far as the rounds
    have come.

    The messages are those of `log_bethe`, after dividing rows and columns by their maxima: three passes over the
    matrix to the columns and three back, without logs or exponentials. An entry that is now below e^-87 (e^-708 in
    float64) counts as zero. Rows that are all but certain of the same column take more rounds to agree on it.

    Args:
        log_a: The logs of matrices A >= 0, [..., n, n].
        rounds: Five, since G is then well within what the approximation is worth: among 2 to 12 Gaussians in 1 to 30
            dimensions, 0.1 to 3 standard deviations apart, it is four to six times closer to the Bethe beliefs than
            these are to the exact marginals (three times for a pair), and its value off by 0.002 nats a row. Further
            rounds lead away from the marginals. To report a value rather than to train, take `log_bethe`.

    Returns:
        G [..., n, n], in the dtype of `log_a`.

    Raises:
        AssignmentError: If the matrices are not square or not floating.

    Example:
        >>> coset.assignment.bethe_beliefs(torch.zeros(2, 2))
        tensor([[0.5000, 0.5000],
                [0.5000, 0.5000]])
    """
    if rounds < 1:
        raise AssignmentError(f"There are {rounds} rounds of messages, give at least 1.")
    logs = square(log_a).detach()
    if not logs.numel():
        return torch.zeros_like(logs)
    a = level(logs.to(torch.promote_types(logs.dtype, torch.float32))).exp_()
    x = a.clone()
    for _ in range(rounds):
        for dim in (-1, -2):
            torch.div(a, torch.sub(_above(x, dim), x, out=x), out=x)
    return x.div_(_above(x, -1)).to(log_a.dtype)


def _above(x: Tensor, dim: int) -> Tensor:
    """The sums along a dimension, raised a little, so that each is above all its entries and none is zero.

    What a sum is without its largest entry would else be lost in rounding, and the message of it infinite.
    """
    limits = torch.finfo(x.dtype)
    return x.sum(dim, keepdim=True).mul_(1 + 4 * limits.eps).clamp_(min=limits.max**-0.6)


def bethe_value(log_a: Tensor, beliefs: Tensor) -> Tensor:
    """sum_ij G_ij log A_ij - G_ij log G_ij + (1 - G_ij) log(1 - G_ij), of shape [...], for G and log A [..., n, n].

    The function that `log_bethe` maximizes, so a lower bound of log perm(A) if G is doubly stochastic. Where G is
    zero, A may be. The gradient in `log_a` is G.

    Args:
        log_a: The logs of matrices A >= 0, [..., n, n].
        beliefs: G, of the same shape.

    Returns:
        The values [...].

    Raises:
        AssignmentError: If the shapes differ.

    Example:
        >>> log_a = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))
        >>> value = coset.assignment.bethe_value(log_a, coset.assignment.bethe_beliefs(log_a))
        >>> bool((value - coset.assignment.log_bethe(log_a)).abs() < 0.1)
        True
    """
    if square(log_a).shape != beliefs.shape:
        raise AssignmentError(f"log_a and beliefs have shapes {tuple(log_a.shape)} and {tuple(beliefs.shape)}.")
    g, rest = beliefs, (1 - beliefs).clamp(min=0.0)
    return (torch.where(g > 0, g * log_a, 0.0) - torch.xlogy(g, g) + torch.xlogy(rest, rest)).sum((-2, -1))


class _Bethe(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logs: Tensor, tolerance: float, rounds: int) -> Tensor:
        scaled, factor, possible = scale(logs)
        value = factor.masked_fill(~possible, -math.inf)
        beliefs = torch.zeros_like(logs)
        if logs.numel():
            gain, beliefs[possible] = _maximize(scaled[possible], tolerance, rounds)
            value[possible] += gain
        ctx.save_for_backward(beliefs)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (beliefs,) = ctx.saved_tensors
        return gradient[..., None, None] * beliefs, None, None


class _Round(NamedTuple):
    """One round of messages, for matrices [b, n, n].

    before, after: the messages of the columns to the rows, C, that it took and made. rows, columns: G by the messages
    to the rows and to the columns, whose rows or columns sum to one. scales: [b, 1, n], of the columns.
    """

    before: Tensor
    after: Tensor
    rows: Tensor
    columns: Tensor
    scales: Tensor

    def of(self, rows: Tensor) -> "_Round":
        return _Round(*(x[rows] for x in self))

    def residual(self) -> Tensor:
        return (self.rows - self.columns).abs_().sum((-2, -1)) / self.rows.shape[-1]


def _maximize(logs: Tensor, tolerance: float, rounds: int) -> tuple[Tensor, Tensor]:
    """The values [b] and beliefs [b, n, n] of scaled matrices."""
    a = logs.exp().masked_fill_(logs < NOTHING, 0.0)
    values, beliefs = logs.new_empty(len(a)), torch.empty_like(a)
    active = torch.arange(len(a), device=a.device)
    messages = torch.ones_like(a)
    past: list[Tensor] = []
    for _ in range(rounds):
        now = _round(a, messages)
        error = now.residual()
        close = error <= tolerance
        if close.any():
            error[close] = torch.maximum(error[close], _gap(a[close], now.of(close)))
            done, going = error <= tolerance, ~(error <= tolerance)
            values[active[done]] = _value(logs[active[done]], now.of(done))
            beliefs[active[done]] = now.rows[done]
            active, a, error, now, past = active[going], a[going], error[going], now.of(going), [x[going] for x in past]
        if not len(active):
            return values, beliefs
        past.append(now.after)
        messages = now.after
        if len(past) == WINDOW:
            messages, past = _leap(a, past, now), []
    raise AssignmentError(
        f"After {rounds} rounds {len(active)} of {len(logs)} Bethe permanents have errors of up to "
        f"{float(error.max()):.1e} a row, raise the tolerance or the rounds."
    )


def _round(a: Tensor, messages: Tensor) -> _Round:
    """R_ij = 1 / sum_{k != j} A_ik C_ik to the columns, then C_ij = 1 / sum_{k != i} A_kj R_kj to the rows.

    In place where it can be: touching new memory in every step would take most of the time of a large matrix.
    """
    x = a * messages
    others, sums = _without_each(x, -1)
    rows = x.div_(sums)
    y = torch.div(a, others, out=others)
    others, sums = _without_each(y, -2)
    return _Round(messages, others.reciprocal_(), rows, y.div_(sums), sums)


def _without_each(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The sums along a dimension without each one entry, and with all.

    The largest entry is left out by not adding it: subtraction would cancel there, and nowhere else.
    """
    top, at = x.max(dim, keepdim=True)
    rest = x.scatter_(dim, at, 0.0).sum(dim, keepdim=True)
    sums = rest + top
    return (sums - x.scatter_(dim, at, top)).scatter_(dim, at, torch.maximum(rest, TINY * sums)), sums


def _value(logs: Tensor, messages: _Round) -> Tensor:
    """The Lagrangian at G by rows: the objective, and to first order what columns that do not sum to one are worth.

    Never less than the best permutation is worth, which after scaling is one.
    """
    rest = (1 - messages.rows.sum(-2, keepdim=True)) * messages.scales.log()
    return (bethe_value(logs, messages.rows) + rest.sum((-2, -1))).clamp(min=0.0)


def _gap(a: Tensor, messages: _Round) -> Tensor:
    """How far the maximum can be above `_value`, at most and a row, [b].

    The objective F is concave in each row of G (Vontobel 2013), so max F <= F(G) + max_H <dF, H - G> over doubly
    stochastic H. Up to terms of a row or a column alone, dF_ij = -log(C_ij (1 - G_ij)). The best H is an assignment,
    and bounded by any potentials: here those of the rows' best entries or those one step further.
    """
    others, sums = _without_each(a * messages.before, -1)
    slope = others.div_(sums).mul_(messages.before).mul_(messages.scales).log_().neg_()
    mean = (messages.rows * slope).sum(-1, keepdim=True)
    slope.masked_fill_(a == 0, -math.inf)
    v = (slope - mean).amax(-2, keepdim=True)
    u = (slope - v).amax(-1)
    best = torch.minimum(slope.amax(-1).sum(-1), u.sum(-1) + v.sum((-2, -1)))
    return (best - mean.sum((-2, -1))) / a.shape[-1]


def _leap(a: Tensor, past: list[Tensor], now: _Round) -> Tensor:
    """The messages to go on from: the last ones or an extrapolation, whichever has the smallest error."""
    least = SLACK * (now.residual() + _gap(a, now))
    best = now.after
    for trial in _extrapolate(past, (now.rows * (1 - now.rows)).sqrt()):
        then = _round(a, trial)
        error = then.residual() + _gap(a, then)
        best = torch.where((error < least)[:, None, None], trial, best)
        least = torch.fmin(least, error)
    return best


def _extrapolate(past: list[Tensor], weights: Tensor) -> list[Tensor]:
    """Where a sequence of messages may lead; without this, matrices close to a tie take thousands of rounds.

    In the logs x_k, two guesses. Reduced rank extrapolation (Sidi 2017) takes the combination of the x_k whose next
    step is smallest, weighted by what it does to the beliefs. If G is a permutation there is no end to go to, and the
    other guess is to go on in the same direction.
    """
    x = torch.stack(past, 1).log_().flatten(2)
    steps = x.diff(dim=1)
    w = weights.flatten(1).unsqueeze(1)
    bends = steps.diff(dim=1).mul_(w)
    gram = bends @ bends.mT
    ridge = 1e-12 * gram.diagonal(dim1=-2, dim2=-1).amax(-1) + 1e-300
    gram.diagonal(dim1=-2, dim2=-1).add_(ridge.unsqueeze(-1))
    # Nonsense from a singular system is no error: it is not taken.
    t = torch.linalg.solve_ex(gram, bends @ (w * steps[:, -1:]).mT)[0]
    leap = steps[:, -1:] - t.mT @ steps[:, 1:]
    leap = leap * (LEAP / leap.abs().amax(-1, keepdim=True).clamp(min=LEAP))
    # Half a window each: messages around a cycle of rows may go around with it, and means over the round do not.
    middle = x.mean(1, keepdim=True)
    drift = x[:, WINDOW // 2 :].mean(1, keepdim=True) - middle
    drift = drift * (LEAP / drift.abs().amax(-1, keepdim=True).clamp(min=1e-300))
    guesses = x[:, -2:-1] + leap, middle + drift, middle
    return [guess.exp().view_as(past[0]) for guess in guesses]
