"""The local reparameterisation trick: for one example the same distribution as that of drawn weights."""

import pytest
import torch
from inference_problems import clusters
from torch import Tensor, nn
from torch.func import functional_call, vmap

import coset
from coset.training.network import Network

DRAWS = 20_000

NETS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "linear": (nn.Linear(3, 2), (3,)),
    "no bias": (nn.Linear(3, 2, bias=False), (3,)),
    "conv": (nn.Conv2d(2, 3, 2, stride=2, padding=1), (2, 4, 4)),
    "circular": (nn.Conv1d(2, 2, 3, padding=1, padding_mode="circular"), (2, 4)),
    "mlp": (nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), (3,)),
}


def made(name: str) -> tuple[Network, Tensor, Tensor, Tensor]:
    """A network, means and standard deviations (1, p), and one input."""
    net, shape = NETS[name]
    generator = torch.Generator().manual_seed(0)
    network = Network(net)
    mean = torch.randn((1, network.size), generator=generator)
    std = torch.rand((1, network.size), generator=generator) + 0.1
    return network, mean, std, torch.randn(shape, generator=generator)


def by_weights(network: Network, mean: Tensor, std: Tensor, x: Tensor) -> Tensor:
    """Outputs (draws, ...) of one input for weights that are drawn anew each time."""
    drawn = mean + std * torch.randn(DRAWS, network.size)
    return vmap(lambda w: functional_call(network.model, network.unflatten(w), (x[None],))[0])(drawn)


def by_layers(network: Network, mean: Tensor, std: Tensor, x: Tensor) -> Tensor:
    return network.local(mean, std, x.expand(1, DRAWS, *x.shape))[0]


@pytest.mark.parametrize("name", list(NETS))
def test_mean_and_variance_of_outputs(name: str) -> None:
    torch.manual_seed(0)
    network, mean, std, x = made(name)
    a, b = by_weights(network, mean, std, x), by_layers(network, mean, std, x)
    scale = a.std(0)
    assert a.shape == b.shape and ((a.mean(0) - b.mean(0)).abs() < 5 * scale * (2 / DRAWS) ** 0.5).all()
    assert torch.allclose(b.std(0), scale, rtol=0.05)


def test_the_variance_of_a_linear_layer_is_known() -> None:
    torch.manual_seed(0)
    network, mean, std, x = made("linear")
    variance = network.unflatten(std[0])["weight"].square() @ x.square() + network.unflatten(std[0])["bias"].square()
    assert torch.allclose(by_layers(network, mean, std, x).var(0), variance, rtol=0.05)


@pytest.mark.parametrize("name", ["linear", "conv", "mlp"])
def test_gradients_agree_in_expectation(name: str) -> None:
    torch.manual_seed(0)
    network, mean, std, x = made(name)
    leaves = [mean.requires_grad_(), std.requires_grad_()]

    def gradient(outputs: Tensor) -> Tensor:
        """Of a sum of outputs one by one, as places of a convolution are independent only in this way."""
        return torch.cat(torch.autograd.grad(outputs.sin().mean(0).sum(), leaves), 1)

    a, b = gradient(by_weights(network, mean, std, x)), gradient(by_layers(network, mean, std, x))
    assert a.norm() > 0.5 and (a - b).norm() < 0.1 * a.norm()


class Scaled(nn.Module):
    """A parameter that is no layer's, used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.scale * self.linear(x), self.scale.expand(len(x), 3)], 1)


def test_another_parameter_is_drawn_once_for_all_examples() -> None:
    torch.manual_seed(0)
    network = Network(Scaled())
    mean = network.flatten(dict(network.model.named_parameters()))
    std = torch.cat([torch.full((3,), 0.5), torch.full((15,), 1e-6)])
    x = torch.randn(5, 4)
    out = network.local(mean[None], std[None], x[None])[0]
    scale = out[0, 3:]
    assert torch.equal(out[:, 3:], scale.expand(5, 3)) and (scale - 1).abs().min() > 1e-3
    assert isinstance(network.model, Scaled)
    assert torch.allclose(out[:, :3], scale * network.model.linear(x), atol=1e-3)
    draws = torch.stack([network.local(mean[None], std[None], x[None])[0, 0, 3:] for _ in range(300)])
    assert torch.allclose(draws.mean(0), torch.ones(3), atol=0.12) and torch.allclose(draws.std(0), std[:3], rtol=0.2)


def test_frozen_parts_have_no_noise() -> None:
    net = nn.Linear(3, 2)
    net.bias.requires_grad_(False)
    network, x = Network(net), torch.zeros(1, 4, 3)
    out = network.local(torch.ones(1, 6), torch.ones(1, 6), x)
    assert torch.allclose(out, net.bias.expand_as(out), atol=1e-6)
    net.bias.requires_grad_(True)
    net.weight.requires_grad_(False)
    out = Network(net).local(torch.zeros(1, 2), torch.ones(1, 2), x)
    assert torch.equal(out[0, 0], out[0, 1]) and (out != 0).all()


def test_networks_side_by_side_see_other_noise() -> None:
    network, mean, std, x = made("mlp")
    two = network.local(mean.expand(2, -1), std.expand(2, -1), x.expand(2, 3, 3))
    assert two.shape == (2, 3, 2) and not torch.isclose(two[0], two[1]).any()


@pytest.mark.parametrize("net", [Scaled(), nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 3, 4), nn.Flatten())])
def test_it_learns(net: nn.Module) -> None:
    split = clusters(100)
    method = coset.VI(epochs=20, batch_size=20, rate=0.02, reparameterization="local")
    for q in coset.fit(net, split, method, replicas=2):
        assert isinstance(q, coset.Gaussian) and coset.evaluate(q, net, split).accuracy > 0.85
