"""How well Markov chains have mixed: R-hat and effective sample sizes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import rankdata
from torch import Tensor, nn

from coset.core.errors import CosetError
from coset.core.functional import resolve
from coset.core.show import Shown, Table
from coset.solutions.ensemble import Ensemble
from coset.solutions.likelihood import Classification, Likelihood, Regression, log_softmax
from coset.solutions.predictive import BATCH, sample_outputs
from coset.solutions.weighted_samples import weighted_samples

FloatArray = NDArray[np.float64]


def r_hat(x: Tensor) -> Tensor:
    """Whether chains agree: close to 1 if they do; above 1.01 they should run longer.

    The larger of the split R-hat of rank-normalized draws, which sees the location, and of rank-normalized distances to
    the median, which sees the scale (Vehtari et al. 2021, Section 4).

    Args:
        x: Draws (chains, draws, ...) of real numbers, four or more of each chain.

    Returns:
        (...) float64, NaN where nothing ever moves.

    Raises:
        CosetError: If there are too few draws, or some are not finite.

    Example:
        >>> bool(coset.r_hat(torch.randn(4, 200)) < 1.05)
        True
    """
    halves = _split(x)
    median = np.median(halves, (0, 1))
    return _tensor(np.maximum(_r_hat(_ranked(halves)), _r_hat(_ranked(np.abs(halves - median)))), x)


def ess(x: Tensor) -> Tensor:
    """How many independent draws those of chains are worth: bulk-ESS.

    That of the mean of rank-normalized split chains, with autocorrelations summed over Geyer's initial monotone
    sequence (Vehtari et al. 2021, Section 4).

    Args:
        x: Draws (chains, draws, ...) of real numbers, four or more of each chain.

    Returns:
        (...) float64, NaN where nothing ever moves.

    Raises:
        CosetError: If there are too few draws, or some are not finite.

    Example:
        >>> bool(coset.ess(torch.randn(4, 200)) > 300)
        True
    """
    return _tensor(_ess(_ranked(_split(x))), x)


@dataclass(frozen=True, eq=False, repr=False)
class Convergence(Shown):
    """How well chains agree on what they predict.

    Args:
        r_hat: R-hat of each prediction, (n, outputs) float64.
        ess: The effective number of draws for each prediction, (n, outputs) float64.

    Example:
        >>> print(coset.Convergence(torch.ones(2, 3), 50 * torch.ones(2, 3)))
        R-hat up to 1.000, effective sample size from 50
    """

    r_hat: Tensor
    ess: Tensor

    def __str__(self) -> str:
        return f"R-hat up to {float(self.r_hat.max()):.3f}, effective sample size from {float(self.ess.min()):.0f}"

    def _shown(self) -> Table:
        rows = [
            ("R-hat", "up to", round(float(self.r_hat.max()), 4)),
            ("effective sample size", "from", round(float(self.ess.min()))),
        ]
        return Table(f"Convergence of {self.r_hat.numel():,} predictions", rows)


def convergence(
    q: Ensemble,
    model: nn.Module,
    x: Tensor,
    chains: int,
    *,
    batch_size: int = BATCH,
    device: str | torch.device | None = None,
) -> Convergence:
    """R-hat and effective sample size of what the draws of chains predict.

    A prediction is a value, or the probability of a class. Weights themselves would not do: a chain at another
    permutation of the hidden units has the same predictions and other weights.

    Args:
        q: All draws of the first chain, then of the second, and so on, as `SGLD`, `SGHMC` and `HMC` give them.
        model: What the draws are states of.
        x: Inputs (n, ...).
        chains: How many there are.
        batch_size: Inputs that are run at once.
        device: Where to compute; that of the draws when None.

    Returns:
        R-hat and effective sample size of each prediction.

    Raises:
        CosetError: If q is no Ensemble, or not of so many chains of one length.

    Example:
        >>> (q,) = coset.fit(model, digits.train, coset.SGLD(chains=2, epochs=5, burn_in=1))
        >>> coset.convergence(q, model, digits.test.inputs[:5], chains=2).r_hat.shape
        torch.Size([5, 10])
    """
    if not isinstance(q, Ensemble):
        raise CosetError(f"Chains give an Ensemble, and a {type(q).__name__} has no draws to compare.")
    if chains < 1 or len(q) % chains:
        raise CosetError(f"{len(q)} draws are not {chains} chains of equal length: give the number of chains.")
    where = resolve(device, q.mean)
    likelihood: Likelihood = Classification() if q.noise is None else Regression()
    parts: dict[int, list[Tensor]] = {}
    with sample_outputs(
        weighted_samples(q, 1), model, x, likelihood, batch_size=batch_size, generator=None, device=where
    ) as evaluations:
        for rows, _, outputs in evaluations:
            predictions = log_softmax(outputs.double()).exp() if q.noise is None else outputs
            parts.setdefault(rows.start, []).append(predictions)
    values = torch.cat([torch.cat(part, 1) for part in parts.values()])
    by_chain = values.view(chains, -1, *values.shape[1:])
    return Convergence(r_hat(by_chain), ess(by_chain))


def _split(x: Tensor) -> FloatArray:
    """Each chain in two halves, without the middle draw of an odd number: (2 chains, draws // 2, ...)."""
    if x.ndim < 2 or x.shape[1] < 4:
        shape = tuple(x.shape)
        raise CosetError(f"Draws of shape {shape} are too few: give (chains, draws, ...), with four draws or more.")
    if not bool(x.isfinite().all()):
        raise CosetError("The draws have NaN or infinite values: chains that diverged cannot be diagnosed.")
    draws: FloatArray = x.detach().cpu().double().numpy()
    half = draws.shape[1] // 2
    return np.concatenate([draws[:, :half], draws[:, -half:]])


def _ranked(x: FloatArray) -> FloatArray:
    """Normal quantiles of (rank - 3/8) / (size + 1/4), ranks over all chains, ties shared (Vehtari Eq. 14)."""
    ranks = rankdata(x.reshape(-1, *x.shape[2:]), axis=0)
    quantiles: FloatArray = ndtri((ranks - 0.375) / (len(ranks) + 0.25))
    return quantiles.reshape(x.shape)


def _r_hat(x: FloatArray) -> FloatArray:
    """sqrt(((n - 1) / n W + B / n) / W): W the mean variance of a chain, B / n the variance of the means."""
    n = x.shape[1]
    within, between = x.var(1, ddof=1).mean(0), x.mean(1).var(0, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.sqrt((n - 1) / n + between / within))


def _ess(x: FloatArray) -> FloatArray:
    """chains draws / tau, with tau = -1 + 2 sum_k P_k over pairs P_k = rho_2k + rho_2k+1 of autocorrelations.

    rho_t = 1 - (W - mean autocovariance_t) / var+. The pairs are made to fall, up to the first that is not positive,
    of which rho_2k counts once if it is (Vehtari et al. 2021, Eqs. 10 to 13, as in Stan and ArviZ).
    """
    chains, n = x.shape[:2]
    covariance = _autocovariance(x)
    within = covariance[:, 0].mean(0) * n / (n - 1)
    total = within * (n - 1) / n + x.mean(1).var(0, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        rho = 1 - (within - covariance.mean(0)) / total
    rho[0] = 1
    last = max((n - 1) // 2 - 1, 0)
    pairs = rho[: 2 * last + 2].reshape(last + 1, 2, *rho.shape[1:])
    positive = np.minimum.accumulate(pairs.sum(1) > 0, 0)
    positive[last] = False
    falling = np.minimum.accumulate(pairs.sum(1), 0)
    rest = np.take_along_axis(pairs[:, 0], positive.sum(0)[None], 0)[0]
    tau = -1 + 2 * np.where(positive, falling, 0).sum(0) + np.maximum(rest, 0)
    size = chains * n
    return np.where(total > 0, size / np.maximum(tau, 1 / np.log10(size)), np.nan)


def _autocovariance(x: FloatArray) -> FloatArray:
    """(1/n) sum_i (x_i - mean) (x_i+t - mean) of each chain, for every lag t: the shape of x, by a padded FFT."""
    n = x.shape[1]
    spectrum = np.fft.rfft(x - x.mean(1, keepdims=True), 2 * n, axis=1)
    covariance: FloatArray = np.fft.irfft(np.abs(spectrum) ** 2, 2 * n, axis=1)[:, :n] / n
    return covariance


def _tensor(x: FloatArray, like: Tensor) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(x)).to(like.device)
