"""Factors that hold with running statistics only are told apart, and networks are moved by the others alone."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from oracle import deviation
from torch import Tensor, nn

import coset
from coset import Symmetry, SymmetryError, zoo
from coset.alignment.repair import recompute_norms


class OwnNorm(nn.Module):
    """A norm of running statistics that torch does not know."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.register_buffer("variance", torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        variance = x.var(0) if self.training else self.variance
        return self.gain * x / (variance + 0.1).sqrt()


class Frozen(nn.Module):
    """A batch norm by constants, as detectors have."""

    def __init__(self, width: int) -> None:
        super().__init__()
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(name, torch.rand(width) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        scale = self.weight * self.running_var.rsqrt()
        return x * scale + (self.bias - self.running_mean * scale)


def mlp(norm: Callable[[int], nn.Module]) -> tuple[nn.Module, Tensor]:
    layers = [nn.Linear(3, 6), norm(6), nn.ReLU(), nn.Linear(6, 5), norm(5), nn.ReLU(), nn.Linear(5, 2)]
    return nn.Sequential(*layers), torch.randn(40, 3)


def cnn(norm: Callable[[int], nn.Module]) -> tuple[nn.Module, Tensor]:
    layers = [nn.Conv2d(3, 6, 3), norm(6), nn.ReLU(), nn.Conv2d(6, 5, 2), norm(5), nn.LeakyReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(45, 2)), torch.randn(20, 3, 6, 6)


NETS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "batch norm": lambda: mlp(nn.BatchNorm1d),
    "large epsilon": lambda: cnn(lambda width: nn.BatchNorm2d(width, eps=0.5)),
    "no gain": lambda: mlp(lambda width: nn.BatchNorm1d(width, affine=False)),
    "synchronised": lambda: cnn(nn.SyncBatchNorm),
    "instance norm": lambda: cnn(lambda width: nn.InstanceNorm2d(width, affine=True, track_running_stats=True)),
    "group norm": lambda: cnn(lambda width: nn.GroupNorm(1, width)),
    "own": lambda: mlp(OwnNorm),
    "frozen": lambda: mlp(Frozen),
    "resnet": lambda: (zoo.ResNet(1, 0.25, "bn", 3, 2), torch.randn(12, 3, 8, 8)),
}
BOTH_MODES = {"batch norm": 2, "no gain": 0, "frozen": 6, "group norm": 2}


@functools.cache
def network(name: str) -> tuple[nn.Module, Tensor, Symmetry]:
    torch.manual_seed(0)
    model, x = NETS[name]()
    model, x = model.double().eval(), x.double()
    with torch.no_grad():
        for parameter in model.parameters():
            # So small that epsilons count, as with weight decay.
            parameter.mul_(0.05).add_(0.02 * torch.randn_like(parameter))
    model.load_state_dict(recompute_norms(model, model.state_dict(), (x, x)))
    # A rule tells which factors move running statistics; only those of a norm of one's own are told by running it.
    return model, x, coset.symmetry(model, x, verify=name == "own")


def trained_output(model: nn.Module, state: dict[str, Tensor], x: Tensor) -> Tensor:
    """In training mode, by the statistics of the batch."""
    model.train()
    output: Tensor = torch.func.functional_call(model, {name: t.clone() for name, t in state.items()}, x)
    model.eval()
    return output.detach()


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] if n == "resnet" else []) for n in NETS])
def test_moved_networks_survive_new_statistics(name: str) -> None:
    model, x, sym = network(name)
    own = {key: t.clone() for key, t in model.state_dict().items()}
    noisy = {key: t + 0.01 * torch.randn_like(t) if t.is_floating_point() else t for key, t in own.items()}
    noisy = {key: t.abs() if "var" in key else t for key, t in noisy.items()}
    moved = {
        "canonical": coset.canonicalize(own, sym).state,
        "aligned": sym.act(coset.align(noisy, own, sym, scale=True).element, own),
        "random": sym.act(sym.random(torch.Generator().manual_seed(0), scalings=True), own),
    }
    before = recompute_norms(model, own, (x, x))
    for what, state in moved.items():
        assert deviation(model, (x,), state) < 1e-9, what
        after = recompute_norms(model, state, (x, x))
        outputs = [coset.state.call(model, one, x).detach() for one in (before, after)]
        assert torch.allclose(*outputs, rtol=1e-9, atol=1e-9 * float(outputs[0].abs().max())), what
        trained = [trained_output(model, one, x) for one in (own, state)]
        assert torch.allclose(*trained, rtol=1e-9, atol=1e-9 * float(trained[0].abs().max())), what


@pytest.mark.parametrize("name", BOTH_MODES)
def test_how_many_hold_in_both_modes(name: str) -> None:
    sym = network(name)[2]
    assert sum(s.in_both_modes and s.kind == "scaling" for s in sym.scalings) == BOTH_MODES[name]
    assert Symmetry.from_json(sym.to_json()).scalings == sym.scalings


def test_factors_of_running_statistics_are_exact_in_evaluation() -> None:
    model, x, sym = network("batch norm")
    some = [s for s in sym.scalings if s.evaluation_only]
    assert len(some) == 4 and all(s.exact and not s.in_both_modes for s in some)
    for scaling in some:
        factors = torch.linspace(0.5, 2, scaling.size, dtype=torch.float64)
        image = sym.act(sym.element(scales={scaling.name: factors}), model.state_dict())
        assert deviation(model, (x,), image) < 1e-9
        assert (
            float((trained_output(model, image, x) - trained_output(model, dict(model.state_dict()), x)).abs().max())
            > 1e-6
        )


def test_a_norm_of_ones_own_is_caught_by_running_it() -> None:
    """No rule tells that its variance is measured; training mode does."""
    model, x, sym = network("own")
    assert any(s.evaluation_only for s in sym.scalings)
    claimed = replace(sym, scalings=tuple(replace(s, evaluation_only=False) for s in sym.scalings))
    with pytest.raises(SymmetryError, match="hold in evaluation only"):
        claimed.verify(model, x)
    assert sym.verify(model, x) < 1e-6
