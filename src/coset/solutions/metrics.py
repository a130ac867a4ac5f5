"""How good predictions are: classes, with log-probabilities (n, ..., classes) and targets (n, ...), and values."""

import torch
from torch import Tensor

BINS = 15


def accuracy(log_probs: Tensor, targets: Tensor) -> float:
    """The share of examples whose most probable class is the target."""
    return float((log_probs.argmax(-1) == targets).double().mean())


def brier(log_probs: Tensor, targets: Tensor) -> float:
    """mean_i sum_c (p_i(c) - [y_i = c])^2, from 0 to 2 (Brier 1950)."""
    probs = log_probs.exp()
    truth = torch.nn.functional.one_hot(targets, probs.shape[-1])
    return float((probs - truth).square().sum(-1).mean())


def ece(log_probs: Tensor, targets: Tensor, bins: int = BINS) -> float:
    """Expected calibration error: sum_b |mean confidence - mean accuracy| share(b) (Guo et al. 2017, Eq. 3).

    Bins of confidence are equally wide and open below: (0, 1/15], (1/15, 2/15], ...
    """
    confidence, guess = log_probs.exp().flatten(0, -2).max(-1)
    gap = confidence - (guess == targets.flatten()).to(confidence)
    which = (confidence * bins).ceil().long().clamp(1, bins) - 1
    sums = torch.zeros(bins, dtype=gap.dtype, device=gap.device).index_add_(0, which, gap)
    return float(sums.abs().sum()) / len(gap)


def rmse(mean: Tensor, targets: Tensor) -> float:
    """sqrt(mean_ik (mean_ik - y_ik)^2) of predicted values (n, k)."""
    return float((mean - targets).square().mean().sqrt())
