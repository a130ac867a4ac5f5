"""Problems for tests of methods, without `fit` around them."""

from collections.abc import Sequence

import torch
from torch import nn

from coset.data import Split
from coset.solutions.likelihood import likelihood_of
from coset.training.network import Network, Randomness, TrainingProblem


def problem(net: nn.Module, split: Split, rows: Sequence[int] = (0,)) -> TrainingProblem:
    """Networks that start around the net's own parameters."""
    network = Network(net)
    randomness = Randomness(0, [(row,) for row in rows], torch.device("cpu"))
    at = network.flatten(dict(net.named_parameters()))
    start = torch.stack([at * (1 + 0.1 * row) for row in rows])
    return TrainingProblem(network, start, split, likelihood_of(split.targets), randomness)


def clusters(n: int = 60, seed: int = 0) -> Split:
    """Three noisy clusters."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(3, (n,), generator=generator)
    centres = 3 * torch.randn(3, 4, generator=generator)
    return Split(centres[targets] + torch.randn(n, 4, generator=generator), targets)


def line(n: int = 64, noise: float = 0.3) -> Split:
    """y = x w + noise e, in float64."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    x[:, 1] += x[:, 0]
    weights = torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64)
    return Split(x, x @ weights + noise * torch.randn(n, 1, generator=generator, dtype=torch.float64))


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
