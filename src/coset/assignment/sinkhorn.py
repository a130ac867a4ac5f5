"""The Sinkhorn operator: doubly stochastic matrices as a smooth relaxation of permutations."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from coset.core.errors import AssignmentError

SWEEPS = 10
# Larger scores are approached by doubling from MODERATE. With sums less right than ROUGH, doubling loses the way.
MODERATE = 16.0
ROUGH = 0.01


def sinkhorn(scores: Tensor, temperature: float = 1.0, *, tolerance: float = 1e-9, rounds: int = 1000) -> Tensor:
    """The doubly stochastic P that maximizes <P, X> + tau H(P), with H(P) = -sum P log P.

    The solution is P_ij = exp((X_ij + f_i + g_j) / tau) (Cuturi 2013; Mena et al. 2018, Theorem 1). A round is a few
    sweeps of row and column normalization and then, if these do not suffice, one damped Newton step on (f, g); the
    rounds start at a high temperature and halve it until it is tau. All of it is in float64 and in the log domain.

    The gradient is that of the optimality conditions, not of the iterations (Eisenberger et al. 2022; Peña et al.
    2023), so its memory is O(n^2) whatever the number of rounds. With a loose tolerance it is still the exact
    derivative of a nearby operator: the one whose row and column sums are held at those P has. It cannot be
    differentiated again. For a gradient in the temperature call `sinkhorn(scores / temperature)`.

    Args:
        scores: X of shape [..., n, n], of any floating dtype; leading dimensions are a batch.
        temperature: tau > 0; P tends to the best permutation of X for tau -> 0 and to 1/n for tau -> infinity.
        tolerance: The largest deviation of a row or column sum of P from one, before P is rounded to the dtype of X.
        rounds: How many rounds to try at one temperature before giving up.

    Returns:
        P, of the shape and dtype of X.

    Raises:
        AssignmentError: If X is not square or not finite, or the rounds do not suffice.

    Example:
        >>> plan = coset.assignment.sinkhorn(torch.randn(5, 5), temperature=0.1)
        >>> bool(torch.allclose(plan.sum(0), torch.ones(5)))
        True
    """
    if not 0 < temperature < math.inf:
        raise AssignmentError(f"The temperature is {temperature}, but must be positive and finite.")
    logits = in_double(scores, "The matrix of scores") / temperature
    plan: Tensor = _Sinkhorn.apply(logits, tolerance, rounds)  # type: ignore[no-untyped-call]
    return plan.to(scores.dtype)


def balanced_from(scores: Tensor, columns: Tensor, temperature: Tensor | float, sweeps: int) -> tuple[Tensor, Tensor]:
    """P near the doubly stochastic exp((X + f + g) / tau), by a few sweeps from the g of a similar X.

    For descents, where X changes little from step to step: in the dtype of X, without reading a number from the device,
    and with as many sweeps in the gradient, which is that of the optimality conditions (Peña et al. 2023).

    Args:
        scores: X of shape [..., n, n].
        columns: g to begin with, [..., n].
        temperature: tau.
        sweeps: Over rows and columns; columns of P then sum to one, and rows roughly.

    Returns:
        P, which can be differentiated in X, and g.
    """
    plan, potentials = _Sweeps.apply(scores, columns, temperature, sweeps)  # type: ignore[no-untyped-call]
    return plan, potentials


class _Sweeps(torch.autograd.Function):
    @staticmethod
    def forward(scores: Tensor, columns: Tensor, temperature: Tensor | float, sweeps: int) -> tuple[Tensor, Tensor]:
        logits, g = scores / temperature, (columns / temperature).unsqueeze(-2)
        for _ in range(sweeps):
            f = -(logits + g).logsumexp(-1, keepdim=True)
            g = -(logits + f).logsumexp(-2, keepdim=True)
        return (logits + f + g).exp(), g.squeeze(-2) * temperature

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(output[0])
        ctx.temperature, ctx.sweeps = inputs[2:]
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, unused: Tensor) -> tuple[Tensor, None, None, None]:
        (plan,) = ctx.saved_tensors
        flow = plan * gradient
        rows, columns = flow.sum(-1, keepdim=True), flow.sum(-2).unsqueeze(-1)
        sums, b = plan.sum(-1, keepdim=True), torch.zeros_like(columns)
        for _ in range(ctx.sweeps):
            a = (rows - plan @ b) / sums
            b = columns - plan.mT @ a
        return plan * (gradient - a - b.mT) / ctx.temperature, None, None, None


def in_double(matrix: Tensor, name: str) -> Tensor:
    """The matrix in float64; refuse one that is not floating, finite and of shape [..., n, n]."""
    if matrix.dim() < 2 or matrix.shape[-1] != matrix.shape[-2]:
        raise AssignmentError(f"{name} has shape {tuple(matrix.shape)}, but must be square, [..., n, n].")
    if not matrix.is_floating_point():
        raise AssignmentError(f"{name} is of type {matrix.dtype}, but must be floating.")
    matrix = matrix.double()
    bad = int((~matrix.isfinite()).sum())
    if bad:
        raise AssignmentError(f"{name} has {bad} NaN or infinite of {matrix.numel()} values.")
    return matrix


class _Sinkhorn(torch.autograd.Function):
    @staticmethod
    def forward(logits: Tensor, tolerance: float, rounds: int) -> Tensor:
        return balance(logits, torch.exp, _sweep, _newton, tolerance, rounds)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (plan,) = ctx.saved_tensors
        return tangent(plan, gradient), None, None


def tangent(weights: Tensor, gradient: Tensor) -> Tensor:
    """W * (G - a 1^T - 1 b^T), with the a and b that make its rows and columns sum to zero; all [..., n, n].

    This is the weighted least-squares residual of fitting a_i + b_j to G, and the gradient of a P = h(X + f 1^T +
    1 g^T) with fixed marginals, where W = h'.
    """
    if not weights.numel():
        return weights * gradient
    # The second pass removes what the ridge and rounding left of the first.
    for _ in range(2):
        flow = weights * gradient
        a, b = solve_marginals(weights, flow.sum(-1), flow.sum(-2))
        gradient = gradient - a.unsqueeze(-1) - b.unsqueeze(-2)
    return weights * gradient


def solve_marginals(
    weights: Tensor, rows: Tensor, columns: Tensor, ridge: Tensor | float = 0.0
) -> tuple[Tensor, Tensor]:
    """a, b of shape [..., n] with diag(W 1) a + W b = rows and W^T a + diag(W^T 1) b = columns.

    Solved through the Schur complement of a, which is the Laplacian of a graph on the columns. Its null vector 1
    is removed. `ridge`, of shape [...], is added to the diagonal of the system, and never less than rounding
    makes necessary when the graph is in parts.
    """
    n = weights.shape[-1]
    sums = weights.sum(-1)
    ridge = (ridge + 1e-15 * n * sums.amax(-1)).unsqueeze(-1)
    shares = weights / (sums + ridge).unsqueeze(-1)
    # The diagonal is summed from the rest: as a difference from W^T 1 it would lose all digits near a permutation.
    edges = weights.mT @ shares
    edges.diagonal(dim1=-2, dim2=-1).zero_()
    leak = ridge + ridge * shares.sum(-2)
    laplacian = torch.diag_embed(edges.sum(-1) + leak) - edges + 1 / n
    right = columns - (shares.mT @ rows.unsqueeze(-1)).squeeze(-1)
    b = torch.cholesky_solve(right.unsqueeze(-1), torch.linalg.cholesky(laplacian)).squeeze(-1)
    return (rows - (weights @ b.unsqueeze(-1)).squeeze(-1)) / (sums + ridge), b


def balance(
    scores: Tensor,
    link: Callable[[Tensor], Tensor],
    sweep: Callable[[Tensor], Tensor],
    newton: Callable[[Tensor], Tensor],
    tolerance: float,
    rounds: int,
) -> Tensor:
    """The P = link(X + f 1^T + 1 g^T) whose rows and columns sum to one, for an increasing link; [..., n, n].

    `sweep` shifts rows and then columns, so that the columns are right; `newton` takes a step in f and g at once.
    Both return the shifted scores: f and g are never kept, since the result does not depend on them. Large scores
    are halved until they are moderate, and doubled again as soon as the sums are roughly right.
    """
    if not tolerance > 0 or rounds < 1:
        raise AssignmentError(f"A tolerance of {tolerance} in {rounds} rounds is impossible, both must be positive.")
    if not scores.numel():
        return scores.clone()
    scores = scores - scores.amax(-1, keepdim=True)
    scores = scores - scores.amax(-2, keepdim=True)
    spread = -float(scores.amin())
    if not spread < math.inf:
        raise AssignmentError("The scores span more than float64 can hold, scale them down or raise the temperature.")
    halvings = max(0, math.ceil(math.log2(max(spread, 1.0) / MODERATE)))
    scores = scores * 0.5 ** (halvings + 1)
    for goal in [ROUGH] * halvings + [tolerance]:
        scores = 2 * scores
        for _ in range(rounds):
            scores = sweep(scores)
            plan = link(scores)
            error = float((plan.sum(-1) - 1).abs().amax())
            if error <= goal:
                break
            scores = newton(scores)
        else:
            raise AssignmentError(
                f"After {rounds} rounds a row sums to one only within {error:.1e}, raise the tolerance or the rounds."
            )
    return plan


def _sweep(logs: Tensor) -> Tensor:
    """Normalize rows and columns in turn; columns of exp(logs) then sum to one."""
    logs = logs - logs.logsumexp(-1, keepdim=True)
    logs = logs - logs.logsumexp(-2, keepdim=True)
    # Row sums are now in [n^-2, n], so a few more sweeps by plain products cannot overflow.
    plan = logs.exp()
    v = torch.ones_like(plan[..., :1])
    for _ in range(SWEEPS):
        u = 1 / (plan @ v)
        v = 1 / (plan.mT @ u)
    return logs + u.log() + v.log().mT


def _newton(logs: Tensor) -> Tensor:
    """A step on the dual, sum exp(logs + f + g) - sum f - sum g.

    The damping log(1 + d) / d, where d is the largest change of a log, ensures that the dual decreases (Sun and
    Tran-Dinh 2019, generalized self-concordant functions of order 2).
    """
    plan = logs.exp()
    f, g = solve_marginals(plan, 1 - plan.sum(-1), 1 - plan.sum(-2))
    step = f.unsqueeze(-1) + g.unsqueeze(-2)
    largest = step.abs().amax((-2, -1), keepdim=True).clamp(min=1e-300)
    return logs + step * (largest.log1p() / largest)
