"""What generated networks are worth as draws of a posterior: importance weights."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from coset.errors import CosetError


@dataclass(frozen=True, eq=False)
class Importance:
    """n draws x of q, weighted as draws of a target p known up to a constant Z: w = p(x) / q(x).

    log_weights
        [n] float64, self-normalised: their exponentials sum to one
    ess
        (sum w)^2 / sum w^2: how many independent draws of the target these are worth
    log_evidence, log_evidence_error
        log Z by log mean w, and its standard error by the delta method; both mean nothing where `ess` is small, as the
        weights that matter have then not been drawn
    """

    log_weights: Tensor
    ess: float
    log_evidence: float
    log_evidence_error: float

    def resample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """[n] numbers of draws, each as often as n times its weight, rounded up or down (systematic resampling)."""
        device = self.log_weights.device if generator is None else generator.device
        offset = torch.rand((), generator=generator, device=device, dtype=torch.float64).to(self.log_weights.device)
        places = (torch.arange(n, device=self.log_weights.device) + offset) / n
        edges = self.log_weights.exp().cumsum(0)
        return torch.searchsorted(edges, places * edges[-1], right=True).clamp(max=len(edges) - 1)


def importance(log_target: Tensor, log_q: Tensor) -> Importance:
    """Weights of n draws from their log densities [n], that of the target up to a constant.

    The relative error of mean w is sqrt(var w / n) / mean w = sqrt((n / ess - 1) / (n - 1)).
    """
    if log_target.shape != log_q.shape or log_q.dim() != 1 or not len(log_q):
        shapes = f"{tuple(log_target.shape)} and {tuple(log_q.shape)}"
        raise CosetError(f"Importance weights need two log densities of each draw, (n,), not {shapes}.")
    logs = log_target.double() - log_q.double()
    if bool((logs.isnan() | (logs == math.inf)).any()) or bool((logs == -math.inf).all()):
        raise CosetError("The log densities give weights that are NaN, infinite or all zero: leave such draws out.")
    n, total = len(logs), logs.logsumexp(0)
    weights = logs - total
    size = float((-(2 * weights).logsumexp(0)).exp())
    error = math.sqrt(max(n / size - 1, 0.0) / (n - 1)) if n > 1 else math.inf
    return Importance(weights, size, float(total) - math.log(n), error)
