"""The volume of the scaling quotient, against Jacobians and against draws."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import coset
from coset import Manifold, log_scales, log_volume, zoo
from coset.core import state as states
from coset.symmetries.verify import generic

State = dict[str, Tensor]


class Squared(nn.Module):
    """A unit's factor leaves it squared: the powers are 1 and -2."""

    def forward(self, x: Tensor) -> Tensor:
        return x.relu() ** 2


def with_norm() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))


def heads() -> nn.Module:
    return zoo.ViT(dim=4, depth=1, heads=2, patch=4, image_size=4, in_channels=1, classes=2)


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "two layers": (lambda: zoo.MLP([3, 2, 2]), (2, 3)),
    "one output": (lambda: zoo.MLP([3, 2, 1]), (2, 3)),
    "three layers": (lambda: zoo.MLP([2, 3, 4, 2]), (2, 2)),
    "no bias": (lambda: zoo.MLP([2, 3, 2], "leaky_relu", bias=False), (2, 2)),
    "squared": (lambda: nn.Sequential(nn.Linear(2, 3), Squared(), nn.Linear(3, 2)), (2, 2)),
    "conv": (lambda: nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(), nn.Conv2d(2, 2, 2)), (2, 1, 4, 4)),
    "batch norm": (with_norm, (2, 1, 3, 3)),
    "heads": (heads, (2, 1, 4, 4)),
}


@functools.cache
def network(name: str) -> tuple[coset.Symmetry, State]:
    torch.manual_seed(0)
    make, shape = NETS[name]
    model = make().double().eval()
    sym = coset.symmetry(model, (torch.randn(shape, dtype=torch.float64),), verify=False)
    return sym, generic(states.of(model), torch.Generator().manual_seed(0))


def frame(m: Manifold, x: Tensor) -> Tensor:
    """[dimension, D]: an orthonormal basis of the tangent space at x."""
    rows = torch.stack([m.tangent(x, e) for e in torch.eye(m.size, dtype=x.dtype)])
    u, s, _ = torch.linalg.svd(rows)
    return u[:, s > 0.5].T


def check(sym: coset.Symmetry, network_state: State, polar: bool) -> None:
    """log |det d state / d (orthonormal coordinates at x, log r)|, by differentiation."""
    result = coset.canonicalize(network_state, sym)
    m = coset.manifold(sym, network_state, polar=polar)
    x, logs = m.coordinates(result.state), log_scales(m, result.element)
    basis = frame(m, x)
    sizes = [v.numel() for v in logs.values()]
    floats = [name for name, t in network_state.items() if t.is_floating_point()]

    def state(z: Tensor) -> Tensor:
        parts = z[len(basis) :].split(sizes)
        factors = {n: part.reshape(logs[n].shape).exp() for n, part in zip(logs, parts, strict=True)}
        image = sym.act(sym.element(scales=factors), m.state(m.exp(x, z[: len(basis)] @ basis), result.state))
        return torch.cat([image[n].flatten() for n in floats])

    start = torch.cat([torch.zeros(len(basis), dtype=x.dtype), *(v.flatten() for v in logs.values())])
    # At x the state is the given one with its units in order, but for signs: the factors lead back.
    ordered = sym.act(sym.element(result.element.permutations), network_state)
    expected = torch.cat([ordered[n].flatten() for n in floats])
    assert torch.allclose(state(start).abs(), expected.abs(), rtol=1e-10, atol=1e-12)
    jacobian = torch.func.jacrev(state)(start)
    assert jacobian.shape[0] == jacobian.shape[1]
    volume = torch.linalg.slogdet(jacobian)[1]
    assert float(log_volume(m, x, logs)) == pytest.approx(float(volume), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("polar", [False, True])
@pytest.mark.parametrize("name", NETS)
def test_against_the_jacobian(name: str, polar: bool) -> None:
    sym, network_state = network(name)
    check(sym, network_state, polar)


def test_powers_other_than_one() -> None:
    """Two factors a unit: w takes a^2 b, u takes b^-3, and v the rest."""
    sym = coset.Symmetry.from_json(
        """{"groups": {"h": 3}, "tensors": {"w": ["h", 2], "u": ["h", 2], "v": [2, "h"]}, "scalings": {
        "a": {"units": "h", "members": [["w", 0, 2.0], ["v", 1, -1.0]]},
        "b": {"units": "h", "members": [["w", 0, 1.0], ["u", 0, -3.0], ["v", 1, 0.5]]}}}"""
    )
    generator = torch.Generator().manual_seed(0)
    shapes = {"w": (3, 2), "u": (3, 2), "v": (2, 3)}
    network_state = {
        name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()
    }
    check(sym, network_state, polar=False)
    m = coset.manifold(sym)
    # Three units, and the conditions on w and u: |det ((2, 1), (0, -3))| = 6.
    assert float(log_volume(m, torch.zeros(m.size), {})) == pytest.approx(3 * math.log(6))


def test_a_relu_unit_by_hand() -> None:
    """3 incoming weights, a bias and 2 outgoing ones: (3 + 1 - 2) log r for each unit."""
    sym, network_state = network("two layers")
    m = coset.manifold(sym, network_state)
    logs = {"layers.0.scaling.0": torch.tensor([[0.3, -0.1], [1.0, 2.0]])}
    assert torch.allclose(log_volume(m, torch.zeros(2, m.size), logs), torch.tensor([0.4, 6.0]))
    assert torch.allclose(log_volume(m, torch.zeros(2, m.size), {}), torch.zeros(2))
    with pytest.raises(coset.CosetError, match="none of this manifold's"):
        log_volume(m, torch.zeros(2, m.size), {"layers.7": torch.zeros(2, 2)})
    for shape in ((2,), (3, 2), (2, 3)):
        with pytest.raises(coset.CosetError, match=r"2 factors .* not shape"):
            log_volume(m, torch.zeros(2, m.size), {"layers.0.scaling.0": torch.zeros(shape)})
    with pytest.raises(coset.CosetError, match="coordinates, not shape"):
        log_volume(m, torch.zeros(2, 3), {})


def test_the_marginal_over_the_scale_against_draws() -> None:
    """A unit with 2 incoming weights, a bias b and an outgoing weight v, all N(0, 1).

    Of canonical networks, the density of (b, v) is 2 pi times that of (u, b, v), integrated over log r by quadrature.
    Its integral over a box is the share of drawn networks whose canonical form lies there.
    """
    model = zoo.MLP([2, 1, 1]).double()
    sym = coset.symmetry(model, (torch.zeros(1, 2, dtype=torch.float64),), verify=False)
    n = 40000
    generator = torch.Generator().manual_seed(0)
    samples = {k: torch.randn(n, *v.shape, generator=generator, dtype=v.dtype) for k, v in states.of(model).items()}
    result = coset.canonicalize(samples, sym)
    m = coset.manifold(sym, samples)
    b, v = result.state["layers.0.bias"][:, 0], result.state["layers.1.weight"][:, 0, 0]
    share = float(((b > 0) & (b < 0.5) & (v > -1) & (v < 0.2)).double().mean())

    step = 0.05
    r = torch.arange(-8, 3, step, dtype=torch.float64)
    grid = [(torch.arange(30, dtype=torch.float64) + 0.5) / 30 * (hi - lo) + lo for lo, hi in ((0, 0.5), (-1, 0.2))]
    at = torch.cartesian_prod(*grid)
    x = torch.zeros(len(at), m.size, dtype=torch.float64)
    like = {name: t[0] for name, t in samples.items()}
    x[:, :2] = torch.tensor([0.6, 0.8])
    x[:, 2], x[:, 3] = at[:, 0], at[:, 1]
    total = torch.zeros(len(at), dtype=torch.float64)
    for log_r in r:
        logs = {"layers.0.scaling.0": log_r.expand(len(at), 1)}
        image = sym.act(sym.element(scales={k: s.exp() for k, s in logs.items()}), m.state(x, like))
        # The bias of the output is zero here and no part of the question.
        values = torch.cat([image[k].flatten(1) for k in list(image)[:3]], 1)
        log_prior = -values.square().sum(-1) / 2 - values.shape[1] / 2 * math.log(2 * math.pi)
        total += (log_prior + log_volume(m, x, logs)).exp() * step
    expected = float((2 * math.pi * total).mean() * 0.5 * 1.2)
    assert abs(share - expected) < 4 * math.sqrt(share * (1 - share) / n)
