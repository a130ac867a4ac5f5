"""The manifold of canonical states: coordinates and back, its geometry, its base densities."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from torch import Tensor, nn

import coset
from coset import Manifold, zoo
from coset.core import state as states
from coset.symmetries.verify import generic
from coset.weightspace import sphere

State = dict[str, Tensor]
law = settings(deadline=None, derandomize=True, max_examples=25, suppress_health_check=list(HealthCheck))
seeds = st.integers(0, 1000)


def conv_net() -> nn.Module:
    layers = [nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(12, 4), nn.ReLU(), nn.Linear(4, 2))


NETS = {
    "mlp": (lambda: zoo.MLP([3, 4, 5, 2]), (2, 3)),
    "tanh": (lambda: zoo.MLP([3, 4, 2], "tanh"), (2, 3)),
    "conv": (conv_net, (2, 2, 4, 4)),
    "vit": (lambda: zoo.ViT(dim=8, depth=1, heads=2, patch=4, image_size=8, classes=3), (2, 3, 8, 8)),
}


@functools.cache
def network(name: str) -> tuple[coset.Symmetry, State]:
    """The symmetry of a net, and a canonical population of 3."""
    torch.manual_seed(0)
    make, shape = NETS[name]
    model = make().double().eval()
    sym = coset.symmetry(model, (torch.randn(shape, dtype=torch.float64),), verify=False)
    samples = [generic(states.of(model), torch.Generator().manual_seed(k)) for k in range(3)]
    return sym, coset.canonicalize(states.stack(samples), sym).state


def points(m: Manifold, seed: int, n: int) -> tuple[Tensor, ...]:
    samples = m.random(n, torch.Generator().manual_seed(seed), dtype=torch.float64)
    return tuple(samples)


def small(polar: bool = False) -> Manifold:
    sym, population = network("mlp")
    return coset.manifold(sym, population, polar=polar)


@pytest.mark.parametrize("polar", [False, True])
@pytest.mark.parametrize("name", NETS)
def test_coordinates_and_back(name: str, polar: bool) -> None:
    sym, population = network(name)
    one = {key: x[0] for key, x in population.items()}
    m = coset.manifold(sym, one, polar=polar)
    x = m.coordinates(population)
    assert x.shape == (3, m.size)
    assert torch.equal(m.coordinates(one), x[0])
    assert torch.allclose(m.project(x), x, atol=1e-14)
    tolerance = 1e-14 if polar or len(m.chart.pinned) else 0.0
    assert states.allclose(m.state(x, population), population, rtol=tolerance, atol=tolerance)
    assert states.allclose(m.state(x[0], one), one, rtol=tolerance, atol=tolerance)
    assert torch.allclose(m.coordinates(m.state(x, population)), x, rtol=1e-13, atol=1e-14)


def test_counts() -> None:
    """3-4-5-2: the rows of two layers are directions; 5 + 4 biases, 10 weights and 2 biases of the last are flat."""
    m, polar = small(), small(polar=True)
    assert [(s.name, s.count, s.size) for s in m.spheres] == [("layers.0", 4, 3), ("layers.1", 5, 4)]
    assert (m.size, m.flat, m.dimension) == (12 + 20 + 21, 21, 8 + 15 + 21)
    # The last layer has 10 weights, 9 of direction and the logarithm of its norm.
    assert [(s.name, s.count, s.size) for s in polar.spheres][2:] == [("layers.2.weight", 1, 10)]
    assert (polar.size, polar.flat, polar.dimension) == (12 + 20 + 10 + 12, 12, 8 + 15 + 9 + 12)


def test_dimension_is_that_of_the_quotient() -> None:
    """Weights minus factors that hold in both modes."""
    for name in NETS:
        sym, population = network(name)
        entries = sum(x[0].numel() for x in population.values() if x.is_floating_point())
        factors = sum(s.copies * s.size for s in sym.scalings if s.in_both_modes and s.kind == "scaling")
        assert coset.manifold(sym, population).dimension == entries - factors
        assert coset.manifold(sym, population, polar=True).dimension == entries - factors


def test_without_a_state() -> None:
    sym, population = network("conv")
    assert torch.equal(
        coset.manifold(sym).coordinates(population), coset.manifold(sym, population).coordinates(population)
    )


def test_the_last_norm_is_a_coordinate() -> None:
    _, population = network("mlp")
    x = small(polar=True).coordinates(population)
    assert torch.allclose(x[:, -1], population["layers.2.weight"].flatten(1).norm(dim=1).log())


def test_float32_and_devices_of_the_state() -> None:
    sym, population = network("conv")
    narrow = states.to(population, dtype=torch.float32)
    m = coset.manifold(sym, narrow)
    x = m.coordinates(narrow)
    assert x.dtype == torch.float32
    assert states.allclose(m.state(x, narrow), narrow, rtol=1e-6, atol=1e-6)
    again = m.state(x[:2], {name: t[0] for name, t in narrow.items()})
    assert again["1.num_batches_tracked"].shape == (2,)


def test_any_state_serves_as_the_like_of_another() -> None:
    """Of the weights and variances that are no coordinates only the sign is taken, and no variance is below zero."""
    sym, population = network("conv")
    one = {name: x[0] for name, x in population.items()}
    m = coset.manifold(sym, one)
    other = sym.act(sym.random(torch.Generator().manual_seed(1), scalings=True), one)
    assert not torch.allclose(other["1.running_var"], one["1.running_var"])
    assert states.allclose(m.state(m.coordinates(one), other), one, rtol=1e-12)
    nothing = {name: torch.zeros_like(x) for name, x in one.items()}
    assert torch.allclose(m.state(m.coordinates(one), nothing)["1.running_var"], one["1.running_var"], rtol=1e-12)


def test_changes_of_tensors_are_those_of_coordinates() -> None:
    sym, population = network("conv")
    one = {name: x[0] for name, x in population.items()}
    m = coset.manifold(sym, one)
    x, v = m.coordinates(population), torch.randn(3, m.size, dtype=torch.float64)
    chart, single = m.chart, one | {"constant": torch.ones(2)}
    image, before, after = chart.change(v, single), chart.state(x, single), chart.state(x + v, single)
    assert image.keys() == single.keys() and not image["constant"].any() and image["constant"].shape == (3, 2)
    for name, y in before.items():
        assert torch.allclose(after[name].double() - y.double(), image[name].double(), atol=1e-12), name
    assert torch.equal(chart.velocity(image), v)


def test_the_sign_of_a_single_weight_is_kept() -> None:
    model = zoo.MLP([1, 4, 2], bias=False).double()
    sym = coset.symmetry(model, (torch.randn(3, 1, dtype=torch.float64),), verify=False)
    given = generic(states.of(model), torch.Generator().manual_seed(0))
    result = coset.canonicalize(given, sym).state
    m = coset.manifold(sym, given)
    like = {name: 3 * x for name, x in result.items()}
    assert states.allclose(m.state(m.coordinates(result), like), result, rtol=1e-12)
    with pytest.raises(coset.StateError, match=r"'layers\.0\.weight' is -?3 instead of 1 or -1"):
        m.coordinates(like)


def test_one_output_has_a_direction_too() -> None:
    """3-4-1: the last layer is one matrix of 4 weights, and with one hidden unit it is a number."""
    for widths, sizes in (([3, 4, 1], [4]), ([3, 1, 1], [])):
        model = zoo.MLP(widths).double()
        sym = coset.symmetry(model, (torch.randn(2, 3, dtype=torch.float64),), verify=False)
        m = coset.manifold(sym, states.of(model), polar=True)
        assert [block.size for block in m.chart.polar] == sizes


def test_offsets_are_part_of_a_direction() -> None:
    """Two variances share a factor: (s + 0.5, t + 0.5) has norm one."""
    sym = coset.Symmetry.from_json(
        """{"groups": {"h": 3}, "tensors": {"s": ["h"], "t": ["h"], "v": [2, "h"]}, "scalings": {"c": {"units": "h",
        "members": [["s", 0, 2.0, 0.5, 0], ["t", 0, 2.0, 0.5, 0], ["v", 1, -1.0]]}}}"""
    )
    given = {"s": torch.rand(3).double(), "t": torch.rand(3).double(), "v": torch.randn(2, 3).double()}
    result = coset.canonicalize(given, sym).state
    m = coset.manifold(sym)
    x = m.coordinates(result)
    pair = torch.stack([result["s"] + 0.5, result["t"] + 0.5], 1)
    assert torch.allclose(x[:6].reshape(3, 2), pair)
    assert torch.allclose(pair.norm(dim=1), torch.ones(3).double())
    assert states.allclose(m.state(x, given), result, rtol=1e-14)


def test_refusals() -> None:
    _, population = network("mlp")
    m = small()
    with pytest.raises(coset.StateError, match=r"'layers\.0' have norm 2 instead of 1"):
        m.coordinates({**population, "layers.0.weight": 2 * population["layers.0.weight"]})
    with pytest.raises(coset.StateError, match="is zero"):
        small(polar=True).coordinates({**population, "layers.2.weight": 0 * population["layers.2.weight"]})
    with pytest.raises(coset.StateError, match=r"Missing 'layers\.2\.bias'"):
        m.coordinates({name: x for name, x in population.items() if name != "layers.2.bias"})
    with pytest.raises(coset.CosetError, match="53 coordinates"):
        m.exp(torch.zeros(52), torch.zeros(52))


def test_populations_have_one_size() -> None:
    sym, population = network("mlp")
    m = small()
    x, bias = m.coordinates(population), "layers.0.bias"
    with pytest.raises(coset.StateError, match=r"3 in 'layers\.0\.weight', 2 in 'layers\.0\.bias'"):
        m.coordinates({**population, bias: population[bias][:2]})
    for points in (x[0], x[:2]):
        with pytest.raises(coset.StateError, match="population of 3 networks"):
            m.state(points, like=population)
    with pytest.raises(coset.StateError, match=r"Missing 'layers\.0\.weight'"):
        coset.manifold(sym, {})
    with pytest.raises(coset.StateError, match="holds whole numbers"):
        coset.manifold(sym, {name: x.long() for name, x in population.items()})


@law
@given(seeds, st.booleans())
def test_geometry_of_the_product(seed: int, polar: bool) -> None:
    m = small(polar)
    x, y, z = points(m, seed, 3)
    v = m.log(x, y)
    assert torch.allclose(m.exp(x, v), y, atol=1e-10)
    assert float(m.dist(x, y)) == pytest.approx(float(m.inner(x, v, v)) ** 0.5, rel=1e-10)
    assert float(m.dist(x, y)) == pytest.approx(float(m.dist(y, x)), rel=1e-10)
    assert float(m.dist(x, z)) <= float(m.dist(x, y) + m.dist(y, z)) + 1e-10
    noise = torch.randn(2, m.size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    a, b = m.tangent(x, noise[0]), m.tangent(x, noise[1])
    assert torch.allclose(m.tangent(x, a), a, atol=1e-12)
    image = m.transport(x, y, a), m.transport(x, y, b)
    assert float(m.inner(y, *image)) == pytest.approx(float(m.inner(x, a, b)), abs=1e-9)
    assert torch.allclose(m.transport(x, y, v), -m.log(y, x), atol=1e-9)
    for t in (0.0, 0.3, 1.0):
        assert torch.allclose(m.geodesic(x, y, t), m.exp(x, t * v), atol=1e-10)
        assert torch.allclose(m.velocity(x, y, t), m.transport(x, m.geodesic(x, y, t), v), atol=1e-8)


def test_geodesics_in_batches() -> None:
    m = small()
    x, y = m.random(4, dtype=torch.float64), m.random(4, dtype=torch.float64)
    t = torch.tensor([0.0, 0.2, 0.7, 1.0], dtype=torch.float64)
    for function in (m.geodesic, m.velocity):
        result = function(x, y, t)
        assert torch.allclose(result, torch.stack([function(x[k], y[k], float(t[k])) for k in range(4)]))
        assert function(x[0], y[0], t).shape == (4, m.size)
    step = 1e-6
    speed = (m.geodesic(x, y, t + step) - m.geodesic(x, y, t - step)) / (2 * step)
    assert torch.allclose(m.velocity(x, y, t), speed, atol=1e-7)
    assert m.dist(x[:, None], y[None]).shape == (4, 4)


def test_gradients_go_through() -> None:
    m = small(polar=True)
    x, y = m.random(2, torch.Generator().manual_seed(0)).requires_grad_(), m.random(2).requires_grad_()
    for target in (y, x.detach().clone().requires_grad_()):
        loss = m.dist(x, target).sum() + m.log(x, target).sum() + m.exp(x, m.log(x, target)).square().sum()
        for gradient in torch.autograd.grad(loss, (x, target)):
            assert gradient.isfinite().all()


def test_base_density_integrates_to_one() -> None:
    """Draws of one sigma weigh those of another: E[q / p] = 1, with its standard error."""
    m = small()
    x = m.random(20000, torch.Generator().manual_seed(0), sigma=1.0, dtype=torch.float64)
    ratio = (m.log_prob(x, sigma=0.9) - m.log_prob(x, sigma=1.0)).exp()
    assert abs(float(ratio.mean()) - 1) < 4 * float(ratio.std()) / math.sqrt(len(x))
    flat = -x[:, m.size - m.flat :].square().sum(-1) / 2 - m.flat / 2 * math.log(2 * math.pi)
    areas = 4 * math.log(4 * math.pi) + 5 * math.log(2 * math.pi**2)
    assert torch.allclose(m.log_prob(x), flat - areas)


def test_uniform_directions() -> None:
    m = small()
    x = m.random(20000, torch.Generator().manual_seed(0), sigma=0.5, dtype=torch.float64)
    rows = x[:, :12].unflatten(-1, (4, 3))
    assert torch.allclose(rows.norm(dim=-1), torch.ones(20000, 4, dtype=torch.float64))
    # E[u u^T] = I / d, and the flat rest has its standard deviation.
    second = torch.einsum("nki,nkj->kij", rows, rows) / len(x)
    assert float((second - torch.eye(3) / 3).abs().max()) < 0.015
    assert float(x[:, -m.flat :].std()) == pytest.approx(0.5, rel=0.01)


@pytest.mark.parametrize("sigma", [0.05, 0.3])
def test_wrapped_gaussian(sigma: float) -> None:
    """Draws around one point weigh those around another near it: E[q / p] = 1."""
    m = small()
    mean = m.random(1, torch.Generator().manual_seed(1), dtype=torch.float64)[0]
    other = m.exp(mean, m.tangent(mean, 0.03 * sigma * torch.ones_like(mean)))
    x = m.wrapped(mean.expand(20000, -1), sigma, torch.Generator().manual_seed(2))
    assert torch.allclose(m.project(x), x, atol=1e-12)
    ratio = (m.wrapped_log_prob(x, other, sigma) - m.wrapped_log_prob(x, mean, sigma)).exp()
    assert abs(float(ratio.mean()) - 1) < 4 * float(ratio.std()) / math.sqrt(len(x))
    blocks = [sphere.wrapped_log_prob(b, a, sigma) for a, b in zip(m._blocks(mean), m._blocks(x), strict=True)]
    normal = torch.distributions.Normal(mean[-m.flat :], sigma).log_prob(x[:, -m.flat :]).sum(-1)
    assert torch.allclose(m.wrapped_log_prob(x, mean, sigma), normal + sum(b.sum(-1) for b in blocks))


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.inf])
def test_densities_need_a_deviation(sigma: float) -> None:
    m = small()
    x = m.random(1, torch.Generator().manual_seed(1))
    for density in (lambda: m.log_prob(x, sigma), lambda: m.wrapped_log_prob(x, x, sigma)):
        with pytest.raises(coset.CosetError, match="positive and finite deviation"):
            density()
