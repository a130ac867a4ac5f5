"""Random permutations for importance sampling: a proposal f with E_f[prod_i A[i, p(i)] / f(p)] = perm(A)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from coset.assignment.permanent import checked, level
from coset.core.errors import AssignmentError
from coset.core.show import Shown, Table

# More sweeps leave the weights as they are.
SWEEPS = 10
# No entry counts as less, in logs and after leveling: every permutation has a probability, and no row a dead end.
LEAST = -1000.0


@dataclass(frozen=True, repr=False)
class PermutationSample(Shown):
    """Random permutations and how likely they were, as `sample_permutations` returns them; unpacks as the two.

    Args:
        permutations: int64 [..., k, n], the column of each row.
        log_f: [..., k], the logs of their probabilities under the proposal f.

    Example:
        >>> sample = coset.assignment.sample_permutations(torch.zeros(3, 3), 5)
        >>> sample.permutations.shape, sample.log_f.shape
        (torch.Size([5, 3]), torch.Size([5]))
    """

    permutations: Tensor
    log_f: Tensor

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.permutations, self.log_f))

    def _shown(self) -> Table:
        *batch, k, n = self.permutations.shape
        matrices = f" for each of {' x '.join(map(str, batch))} matrices" if batch else ""
        logs = f"{float(self.log_f.min()):.6g} to {float(self.log_f.max()):.6g}" if self.log_f.numel() else "none"
        return Table(f"{k:,} permutations of {n}{matrices}", [("log probability", logs)])


@torch.no_grad()
def sample_permutations(log_a: Tensor, k: int, generator: torch.Generator | None = None) -> PermutationSample:
    """Draw k permutations p for each A >= 0 of shape [..., n, n], given by its logs, nearly in proportion to their
    terms of the permanent, prod_i A[i, p(i)].

    One row after the other takes a column j that is left, with a probability proportional to

        P_ij / sum of P_i'j over the rows i' that come later

    with P the doubly stochastic scaling of A (Sinkhorn). Were the permanent of what is left the product of its column
    sums, up to a factor, this would be exact (Chen, Diaconis, Holmes and Liu 2005 do so for tables). Rows go by the
    entropy of P, the least first: a row with few good columns must not find them taken.

    For 40 and 100 units that overlap (4 dimensions, one standard deviation apart) the log weights have a variance of
    about one. Without the denominator it is 30 and 250, with rows in the order given 20 and 40, and with Bethe beliefs
    for P about two, at a third of the effective sample size.

    The weight of a draw is prod_i A[i, p(i)] / f(p). Its mean is perm(A); the log of a mean of k weights is below
    log perm(A) on average. Entries may be -inf: a draw that meets one has a weight of zero. All is in float64, and
    log_f in the dtype of `log_a`. No gradient flows through.

    Args:
        log_a: The logs of matrices A >= 0, [..., n, n].
        k: How many permutations of each.
        generator: Where random numbers come from.

    Returns:
        The permutations, and the logs of their probabilities.

    Raises:
        AssignmentError: If the matrices are not square, have NaN or inf, or k is not positive.

    Example:
        >>> log_a = torch.randn(5, 5, generator=torch.Generator().manual_seed(0))
        >>> p, log_f = coset.assignment.sample_permutations(log_a, 2000, torch.Generator().manual_seed(0))
        >>> estimate = (log_a[torch.arange(5), p].sum(-1) - log_f).logsumexp(0) - torch.tensor(2000).log()
        >>> bool((estimate - coset.assignment.log_permanent(log_a)).abs() < 0.1)
        True
    """
    if k < 1:
        raise AssignmentError(f"There are {k} permutations to draw, give at least 1.")
    odds, rows = _proposal(checked(log_a))

    def draw(step: int, logs: Tensor) -> Tensor:
        return (logs - torch.empty_like(logs).exponential_(generator=generator).log_()).argmax(-1, keepdim=True)

    columns, log_f = _walk(odds, k, draw)
    permutations = torch.empty_like(columns).scatter_(-1, rows.unsqueeze(-2).expand_as(columns), columns)
    return PermutationSample(permutations, log_f.to(log_a.dtype))


@torch.no_grad()
def log_proposal(log_a: Tensor, permutations: Tensor) -> Tensor:
    """log f(p) of these permutations, as `sample_permutations` would draw them.

    Args:
        log_a: The logs of matrices A >= 0, [..., n, n].
        permutations: int64 [..., k, n], the column of each row.

    Returns:
        The logs [..., k], in the dtype of `log_a`.

    Raises:
        AssignmentError: If the shapes do not fit, or a row is no permutation.

    Example:
        >>> log_a = torch.zeros(3, 3)
        >>> coset.assignment.log_proposal(log_a, torch.tensor([[2, 0, 1]])).exp()
        tensor([0.1667])
    """
    odds, rows = _proposal(checked(log_a))
    n = log_a.shape[-1]
    if permutations.dim() != log_a.dim() or permutations.shape[:-2] != log_a.shape[:-2] or permutations.shape[-1] != n:
        raise AssignmentError(
            f"permutations has shape {tuple(permutations.shape)}, but for log_a of shape {tuple(log_a.shape)} it must "
            f"be {(*log_a.shape[:-2], 'k', n)}."
        )
    ordered = torch.arange(n, device=log_a.device).expand_as(permutations)
    if permutations.dtype != torch.int64 or not torch.equal(permutations.sort(-1).values, ordered):
        raise AssignmentError(f"permutations has a row that is not one, each must hold 0 to {n - 1} once, in int64.")
    columns = permutations.gather(-1, rows.unsqueeze(-2).expand_as(permutations))
    log_f = _walk(odds, permutations.shape[-2], lambda step, _: columns[..., step : step + 1])[1]
    return log_f.to(log_a.dtype)


def _proposal(logs: Tensor) -> tuple[Tensor, Tensor]:
    """The log odds [..., n, n] of the columns for the first row to choose, the second, ...; and these rows [..., n]."""
    logs = level(logs).clamp(min=LEAST)
    for _ in range(SWEEPS):
        logs = logs.log_softmax(-2).log_softmax(-1)
    rows = (logs.exp() * logs).sum(-1).argsort(dim=-1, descending=True, stable=True)
    logs = logs.gather(-2, rows.unsqueeze(-1).expand_as(logs))
    later = logs.flip(-2).logcumsumexp(-2).flip(-2)[..., 1:, :]
    # The last row has no choice: what its odds are does not matter.
    return torch.cat([logs[..., :-1, :] - later, logs[..., -1:, :]], -2), rows


def _walk(odds: Tensor, k: int, choose: Callable[[int, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """The columns taken in each step [..., k, n], and the log of the probability of all [..., k].

    choose
        the columns [..., k, 1], from the step and the logs of the columns' probabilities [..., k, n], -inf if taken
    """
    n = odds.shape[-1]
    free = odds.new_zeros(*odds.shape[:-2], k, n)
    log_f = odds.new_zeros(*odds.shape[:-2], k)
    columns = torch.empty(free.shape, dtype=torch.int64, device=odds.device)
    for step in range(n):
        logs = (odds[..., step : step + 1, :] + free).log_softmax(-1)
        column = choose(step, logs)
        log_f += logs.gather(-1, column).squeeze(-1)
        free.scatter_(-1, column, -torch.inf)
        columns[..., step : step + 1] = column
    return columns, log_f
