"""Coordinates of networks in the three geometries, and the base densities on them."""

import math

import pytest
import torch
from torch import Tensor

import coset
from coset import zoo
from coset.core import state as states
from coset.core.errors import CosetError
from coset.flow.coordinates import BaseDistribution, Geometry, Space, initial_base, measured_base, space
from coset.weightspace import sphere

GEOMETRIES: tuple[Geometry, ...] = ("euclidean", "normalized", "geometric")


def room(spec: str, geometry: Geometry) -> Space:
    model = zoo.build(spec)
    return space(coset.symmetry(model, zoo.example_input(model)), states.of(model), geometry)


def population(spec: str, n: int = 5) -> dict[str, Tensor]:
    return states.stack([states.of(zoo.build(spec)) for _ in range(n)])


@pytest.mark.parametrize("spec", ["mlp:6-5-3", "mlp:6-5-4-3"])
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_networks_come_back_from_their_coordinates_with_the_same_function(spec: str, geometry: Geometry) -> None:
    torch.manual_seed(0)
    own, networks, x = room(spec, geometry), population(spec), torch.randn(7, 6)
    decoded = own.decode(own.encode(networks))
    model = zoo.build(spec)
    for a, b in zip(states.unstack(decoded), states.unstack(networks), strict=True):
        assert torch.allclose(states.call(model, a, (x,)), states.call(model, b, (x,)), atol=1e-5)
    if geometry == "euclidean":
        assert states.allclose(decoded, networks)


@pytest.mark.parametrize("geometry", ["normalized", "geometric"])
def test_rescaled_networks_have_the_same_coordinates(geometry: Geometry) -> None:
    torch.manual_seed(1)
    own, networks = room("mlp:6-5-3", geometry), population("mlp:6-5-3")
    scaled = {name: x.clone() for name, x in networks.items()}
    factors = torch.rand(5, 5) + 0.5
    scaled["layers.0.weight"] *= factors[..., None]
    scaled["layers.0.bias"] *= factors
    scaled["layers.1.weight"] /= factors[:, None]
    assert torch.allclose(own.encode(scaled), own.encode(networks), atol=1e-5)


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_many_networks_are_looked_at_some_at_a_time(geometry: Geometry, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(2)
    own, networks = room("mlp:6-5-3", geometry), population("mlp:6-5-3", 7)
    x = own.encode(networks)
    base = measured_base(own, x)
    monkeypatch.setattr("coset.flow.coordinates.COORDINATES", 3 * own.ends.size)
    assert own.at_once == 3
    assert torch.equal(own.encode(networks), x)
    again, population_at_x = measured_base(own, x), own.ends.state(x.double(), own.template)
    for name in own.ends.chart.shapes:
        assert again.means[name] == pytest.approx(base.means[name], rel=1e-12, abs=1e-12)
        assert again.stds[name] == pytest.approx(base.stds[name], rel=1e-12)
        assert again.means[name] == pytest.approx(float(population_at_x[name].mean()), abs=1e-6)
        assert again.stds[name] == pytest.approx(float(population_at_x[name].std(correction=0)), rel=1e-5)
    assert own.encode({name: y[:0] for name, y in networks.items()}).shape == (0, own.ends.size)


def test_an_unknown_geometry_is_refused() -> None:
    with pytest.raises(CosetError, match="euclidean or normalized or geometric, not 'flat'"):
        room("mlp:6-5-3", "flat")  # type: ignore[arg-type]


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_draws_have_the_moments_of_each_tensor(geometry: Geometry) -> None:
    own = room("mlp:20-8-4", geometry)
    names = list(own.ends.chart.shapes)
    stds = dict(zip(names, (0.3, 0.2, 0.5, 0.1), strict=True))
    base = BaseDistribution(own, {"layers.1.bias": 2.0}, stds)
    samples = base.states(4000, torch.Generator().manual_seed(0))
    for name in names:
        if name == "layers.0.weight" and geometry != "euclidean":
            assert torch.allclose(samples[name].norm(dim=-1), torch.ones(4000, 8), atol=1e-5)
            assert samples[name].mean((0, 1)).abs().max() < 0.01
        else:
            assert samples[name].std() == pytest.approx(stds[name], rel=0.03)
            assert samples[name].mean() == pytest.approx(2.0 if name == "layers.1.bias" else 0.0, abs=0.02)


def test_the_density_of_the_base_is_that_of_its_parts() -> None:
    own = room("mlp:3-2-2", "geometric")
    base = BaseDistribution(own, {"layers.0.bias": 0.5}, dict.fromkeys(own.ends.chart.shapes, 0.7))
    x = base.draw(6, torch.Generator().manual_seed(0))
    decoded = own.decode(x)
    normal = torch.distributions.Normal(0.0, 0.7)
    shifted = torch.distributions.Normal(0.5, 0.7)
    expected = (
        shifted.log_prob(decoded["layers.0.bias"]).sum(1)
        + normal.log_prob(decoded["layers.1.weight"]).sum((1, 2))
        + normal.log_prob(decoded["layers.1.bias"]).sum(1)
        - 2 * math.log(4 * math.pi)  # two spheres in R^3
    )
    assert torch.allclose(base.log_prob(x), expected, atol=1e-5)
    assert sphere.log_area(3) == pytest.approx(math.log(4 * math.pi))


def test_a_normalized_flow_has_no_density() -> None:
    own = room("mlp:3-2-2", "normalized")
    base = BaseDistribution(own, {}, dict.fromkeys(own.ends.chart.shapes, 1.0))
    with pytest.raises(CosetError, match="has no density"):
        base.log_prob(base.draw(2))


def test_a_base_without_deviations_is_refused() -> None:
    own = room("mlp:3-2-2", "euclidean")
    with pytest.raises(CosetError, match=r"positive deviation for 'layers\.0\.weight'"):
        BaseDistribution(own, {}, {})


def test_a_measured_base_is_that_of_the_networks() -> None:
    own = room("mlp:30-6-4", "euclidean")
    stds = dict(zip(own.ends.chart.shapes, (0.3, 0.2, 0.5, 0.1), strict=True))
    base = BaseDistribution(own, {"layers.0.bias": -1.0}, stds)
    result = measured_base(own, base.draw(3000, torch.Generator().manual_seed(0)))
    assert result.stds == pytest.approx(stds, rel=0.03)
    assert result.means["layers.0.bias"] == pytest.approx(-1.0, abs=0.02)


def test_the_initial_base_has_the_spread_of_fresh_models() -> None:
    model = zoo.build("mlp:50-20-10")
    own = space(coset.symmetry(model, zoo.example_input(model)), states.of(model), "euclidean")
    result = initial_base(model, own)
    looks = population("mlp:50-20-10", 30)
    for name, x in looks.items():
        assert result.stds[name] == pytest.approx(float(x.std()), rel=0.15)


def test_draws_on_the_same_generator_are_the_same_and_of_another_width_fit() -> None:
    own, wide = room("mlp:6-5-3", "geometric"), room("mlp:6-9-3", "geometric")
    base = BaseDistribution(own, {}, dict.fromkeys(own.ends.chart.shapes, 1.0))
    one, two = (base.draw(3, torch.Generator().manual_seed(7)) for _ in range(2))
    assert torch.equal(one, two)
    assert base.on(wide).states(3)["layers.0.weight"].shape == (3, 9, 6)
