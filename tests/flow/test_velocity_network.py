"""The field of velocities: equivariant, tangent, and in units of the weights."""

import pytest
import torch
from torch import Tensor

import coset
from coset import zoo
from coset.core import state as states
from coset.flow.coordinates import BaseDistribution, Geometry, Space, space
from coset.flow.velocity_network import Architecture, Prediction, Standardize, VelocityNetwork, units
from coset.weightspace.graph import Wiring, neural_graph


def room(spec: str, geometry: Geometry) -> Space:
    model = zoo.build(spec)
    return space(coset.symmetry(model, zoo.example_input(model)), states.of(model), geometry)


def network_of(own: Space, predict: Prediction = "velocity", kind: str = "units") -> tuple[VelocityNetwork, Tensor]:
    """A field with weights that are not those of the start, where most say nothing, and points to look at."""
    wiring = Wiring.of(own.sym, own.template)
    base = BaseDistribution(
        own, {"layers.0.bias": 0.3}, {name: 0.2 + 0.1 * k for k, name in enumerate(own.ends.chart.shapes)}
    )
    x = base.draw(4, torch.Generator().manual_seed(0))
    standardize = Standardize(wiring)
    standardize.measure(neural_graph(own.decode(base.draw(500)), wiring))
    network = Architecture(kind, 16, 2, 2).build(wiring, 0)  # type: ignore[arg-type]
    with torch.no_grad():
        for p in network.parameters():
            p.add_(0.05 * torch.randn(p.shape))
    return VelocityNetwork(own, network, standardize, predict), x


@pytest.mark.parametrize("spec", ["mlp:6-5-3", "mlp:6-5-4-3"])
@pytest.mark.parametrize("geometry", ["euclidean", "normalized", "geometric"])
@pytest.mark.parametrize("predict", ["velocity", "endpoint"])
@torch.no_grad()
def test_velocities_permute_with_the_units_and_are_tangent(spec: str, geometry: Geometry, predict: Prediction) -> None:
    torch.manual_seed(0)
    own = room(spec, geometry)
    field, x = network_of(own, predict)
    time = torch.tensor([0.0, 0.3, 0.8, 1.0])
    v = field(x, time)
    assert v.isfinite().all()
    assert torch.allclose(own.manifold.tangent(x, v), v, atol=1e-5 * float(v.abs().max()))
    g = own.sym.random(torch.Generator().manual_seed(1), batch=4)
    g = own.sym.element(g.permutations)
    chart = own.manifold.chart

    def image(y: Tensor) -> Tensor:
        return chart.velocity(own.sym.act(g, chart.state(y, own.template)))

    assert torch.allclose(field(image(x), time), image(v), rtol=1e-4, atol=1e-4 * float(v.abs().max()))


@torch.no_grad()
def test_an_end_point_and_its_velocity_belong_together() -> None:
    torch.manual_seed(0)
    for predict in ("velocity", "endpoint"):
        for geometry in ("euclidean", "geometric"):
            own = room("mlp:6-5-3", geometry)  # type: ignore[arg-type]
            field, x = network_of(own, predict)  # type: ignore[arg-type]
            time = torch.full((4,), 0.6)
            end = field.endpoint(x, time)
            assert torch.allclose(own.manifold.log(x, end), 0.4 * field(x, time), atol=1e-5)


@torch.no_grad()
def test_a_field_takes_networks_of_another_width() -> None:
    torch.manual_seed(0)
    field, _ = network_of(room("mlp:6-5-3", "geometric"))
    wide = room("mlp:6-11-3", "geometric")
    base = BaseDistribution(wide, {}, dict.fromkeys(wide.ends.chart.shapes, 1.0))
    v = field.on(wide)(base.draw(3), torch.rand(3))
    assert v.shape == (3, wide.manifold.size)
    assert v.isfinite().all()


def test_standardised_graphs_have_mean_zero_and_deviation_one() -> None:
    torch.manual_seed(0)
    own = room("mlp:6-5-3", "euclidean")
    wiring = Wiring.of(own.sym, own.template)
    base = BaseDistribution(
        own, {"layers.0.bias": 3.0}, {name: 0.2 + 0.1 * k for k, name in enumerate(own.ends.chart.shapes)}
    )
    graph = neural_graph(base.states(2000), wiring)
    standardize = Standardize(wiring)
    standardize.measure(graph)
    result = standardize(graph)
    for x in (*result.nodes.values(), *result.edges.values()):
        if x.numel():
            assert x.mean() == pytest.approx(0.0, abs=1e-3)
            assert x.std() == pytest.approx(1.0, rel=1e-3)
    back = standardize.spread(graph.with_values(dict(result.nodes), dict(result.edges)))
    assert torch.allclose(back.edges["layers.0.weight"], graph.edges["layers.0.weight"], atol=0.05)


def test_statistics_of_many_networks_are_taken_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    own = room("mlp:6-5-3", "euclidean")
    wiring = Wiring.of(own.sym, own.template)
    graph = neural_graph({name: 1 + torch.randn(50, *x.shape) for name, x in own.template.items()}, wiring)
    whole, parts = Standardize(wiring), Standardize(wiring)
    whole.measure(graph)
    monkeypatch.setattr("coset.flow.velocity_network.NUMBERS", 100)
    parts.measure(graph)
    for (name, one), other in zip(whole.named_parameters(), parts.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=1e-6), name


def test_numbers_of_a_fixed_place_have_their_own_deviation_and_units_share_theirs() -> None:
    own = room("mlp:3-2-2", "euclidean")
    wiring = Wiring.of(own.sym, own.template)
    networks = {name: torch.randn(4000, *x.shape) for name, x in own.template.items()}
    networks["layers.0.weight"] *= torch.tensor([1.0, 2.0, 4.0])  # by input
    standardize = Standardize(wiring)
    standardize.measure(neural_graph(networks, wiring))
    result = own.manifold.chart.state(units(own, standardize), own.template)["layers.0.weight"]
    assert torch.allclose(result, torch.tensor([1.0, 2.0, 4.0]).expand(2, 3), rtol=0.05)


def test_constants_do_not_become_large() -> None:
    own = room("mlp:3-2-2", "euclidean")
    wiring = Wiring.of(own.sym, own.template)
    networks = {name: torch.randn(50, *x.shape) for name, x in own.template.items()}
    networks["layers.0.weight"][..., 0] = 1.0
    networks["layers.0.bias"] = torch.full((50, 2), 0.25)
    standardize = Standardize(wiring)
    standardize.measure(neural_graph(networks, wiring))
    graph = standardize(neural_graph(networks, wiring))
    assert all(x.abs().max() < 100 for x in (*graph.nodes.values(), *graph.edges.values()) if x.numel())


@pytest.mark.parametrize("kind", ["relational", "pna"])
@torch.no_grad()
def test_other_networks_on_graphs_work_as_well(kind: str) -> None:
    torch.manual_seed(0)
    field, x = network_of(room("mlp:6-5-3", "geometric"), kind=kind)
    assert field(x, torch.rand(4)).shape == x.shape
