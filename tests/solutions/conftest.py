"""Small nets and solutions."""

import pytest
import torch
from torch import Tensor, nn

import coset
from coset.core import state as states


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def net() -> nn.Module:
    """With a batch norm: statistics that are not random, and an integer tensor."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 4))


@pytest.fixture
def gaussian(net: nn.Module, generator: torch.Generator) -> coset.Gaussian:
    mean = states.of(net)
    std = {name: 0.1 + 0.3 * torch.rand(p.shape, generator=generator) for name, p in net.named_parameters()}
    return coset.Gaussian(mean, std)


@pytest.fixture
def batch(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(30, 3, generator=generator), torch.randint(4, (30,), generator=generator)
