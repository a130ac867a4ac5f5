"""A regression whose posterior is known, and what chains say about it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import coset
from coset.data import Split

NOISE, VARIANCE = 0.5, 2.0


class Linear:
    """y = w x + b + noise with w ~ N(0, v), b ~ N(0, v): the posterior is N(mean, precision^-1), in float64."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(3)
        inputs = torch.randn(50, 2, generator=generator)
        inputs[:, 1] += 0.5 * inputs[:, 0]
        targets = inputs @ torch.tensor([[1.0], [-2.0]]) + 0.3 + NOISE * torch.randn(50, 1, generator=generator)
        self.split, self.net = Split(inputs, targets), nn.Linear(2, 1)
        design = torch.cat([inputs, torch.ones(50, 1)], 1).double()
        self.precision = design.mT @ design / NOISE**2 + torch.eye(3).double() / VARIANCE
        self.covariance = self.precision.inverse()
        self.mean = self.covariance @ design.mT @ targets.double().squeeze(1) / NOISE**2


def draws(q: coset.Ensemble, chains: int) -> Tensor:
    """The weights and the bias, (chains, draws, 3) float64."""
    flat = torch.cat([q.population["weight"].flatten(1), q.population["bias"]], 1)
    return flat.double().view(chains, -1, 3)


def assert_moments(x: Tensor, mean: Tensor, covariance: Tensor, *, within: float) -> None:
    """Draws (chains, draws, p) have the mean and the covariance, to five standard errors, which are small.

    The errors come from the spread over chains, which are independent. within: the largest relative one.
    """
    moved = x - mean
    squares = torch.einsum("cni,cnj->cij", moved, moved) / x.shape[1]
    error = squares.std(0) / len(x) ** 0.5
    scale = covariance.diagonal().sqrt()
    assert (error / torch.outer(scale, scale)).max() < within
    assert ((squares.mean(0) - covariance).abs() < 5 * error).all(), squares.mean(0) / covariance
    averages = moved.mean(1)
    assert (averages.mean(0).abs() < 5 * averages.std(0) / len(x) ** 0.5).all(), averages.mean(0) / scale
