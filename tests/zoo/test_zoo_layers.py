"""Norm layers against the same formulas in NumPy."""

import numpy as np
import pytest
import torch
from torch import nn

from coset.core.errors import ModelError
from coset.zoo import ChannelLayerNorm, FilterResponseNorm, ThresholdedLinearUnit, make_activation, make_norm


@pytest.fixture
def x() -> torch.Tensor:
    return 3 * torch.randn(4, 6, 5, 7, generator=torch.Generator().manual_seed(0)) + 1


def _randomize(module: nn.Module) -> dict[str, np.ndarray]:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
    return {name: p.detach().double().numpy()[:, None, None] for name, p in module.named_parameters()}


def test_filter_response_norm_equals_numpy(x: torch.Tensor) -> None:
    norm = FilterResponseNorm(6, eps=0.5)  # large, so that a wrong place for it shows
    p = _randomize(norm)
    a = x.double().numpy()
    expected = np.empty_like(a)
    for n in range(a.shape[0]):
        for c in range(a.shape[1]):
            expected[n, c] = a[n, c] / np.sqrt(np.sum(a[n, c] ** 2) / 35 + 0.5)
    expected = p["weight"] * expected + p["bias"]
    np.testing.assert_allclose(norm(x).detach().numpy(), expected, atol=2e-6)


def test_filter_response_norm_starts_with_unit_mean_square(x: torch.Tensor) -> None:
    y = FilterResponseNorm(6)(x)
    torch.testing.assert_close(y.square().mean((2, 3)), torch.ones(4, 6))


def test_thresholded_unit_is_a_maximum_and_starts_as_relu(x: torch.Tensor) -> None:
    unit = ThresholdedLinearUnit(6)
    torch.testing.assert_close(unit(x), x.relu())
    tau = _randomize(unit)["tau"]
    np.testing.assert_allclose(unit(x).detach().numpy(), np.maximum(x.double().numpy(), tau), rtol=1e-6, atol=1e-6)


def test_channel_layer_norm_equals_numpy(x: torch.Tensor) -> None:
    norm = ChannelLayerNorm(6, eps=0.5)
    p = _randomize(norm)
    a = x.double().numpy()
    expected = (a - a.mean(1, keepdims=True)) / np.sqrt(a.var(1, keepdims=True) + 0.5)
    expected = p["weight"] * expected + p["bias"]
    np.testing.assert_allclose(norm(x).detach().numpy(), expected, atol=2e-6)


@pytest.mark.parametrize(
    ("kind", "norm", "activation"),
    [
        ("bn", nn.BatchNorm2d, nn.ReLU),
        ("frn", FilterResponseNorm, ThresholdedLinearUnit),
        ("ln", ChannelLayerNorm, nn.ReLU),
        ("gn", nn.GroupNorm, nn.ReLU),
        ("none", nn.Identity, nn.ReLU),
    ],
)
def test_kinds(kind: str, norm: type[nn.Module], activation: type[nn.Module], x: torch.Tensor) -> None:
    layer = make_norm(kind, 6)
    assert type(layer) is norm
    assert type(make_activation(kind, 6)) is activation
    assert layer(x).shape == x.shape


@pytest.mark.parametrize(("channels", "groups"), [(16, 8), (12, 4), (6, 2), (5, 1)])
def test_group_norm_takes_a_divisor_of_eight_groups(channels: int, groups: int) -> None:
    norm = make_norm("gn", channels)
    assert isinstance(norm, nn.GroupNorm) and norm.num_groups == groups


@pytest.mark.parametrize("make", [make_norm, make_activation])
def test_unknown_kind(make: object) -> None:
    assert callable(make)
    with pytest.raises(ModelError, match="kind must be one of bn, frn, ln, gn, none, got 'batch'"):
        make("batch", 4)
