"""What all networks on graphs promise: equivariance, any width, any batch, gradients, clear errors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from graph_cases import NETS, distance, graph, permuted, population, shaken, symmetry
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import coset
from coset.weightspace.graph import NeuralGraph, Wiring, neural_graph
from coset.weightspace.graph_network import GraphNetwork
from coset.weightspace.pna import PNA
from coset.weightspace.relational_transformer import RelationalTransformer
from coset.weightspace.unit_transformer import UnitTransformer

Network = GraphNetwork | UnitTransformer
Make = Callable[..., Network]


def unit(wiring: Wiring, **options: int) -> Network:
    return UnitTransformer(wiring, width=16, depth=2, heads=2, edge_width=8, **options)


def relational(wiring: Wiring, **options: int) -> Network:
    return RelationalTransformer(wiring, width=8, depth=2, **options)


def pna(wiring: Wiring, **options: int) -> Network:
    return PNA(wiring, width=8, depth=2, **options)


MAKERS = pytest.mark.parametrize("make", [unit, relational, pna])


def times(batch: int) -> Tensor:
    return torch.linspace(0.1, 0.9, batch)


@MAKERS
@pytest.mark.parametrize("name", NETS)
def test_a_permuted_network_gets_the_permuted_update(name: str, make: Make) -> None:
    graphs = graph(name, 3)
    net = shaken(make(graphs.wiring))
    plain = net(graphs, times(3))
    features = net.features(graphs, times(3))
    for seed in range(3):
        element = symmetry(name).random(torch.Generator().manual_seed(seed), batch=3)
        image = permuted(graphs, element)
        assert distance(image, graphs) > 0.1
        assert distance(net(image, times(3)), permuted(plain, element)) < 1e-5
        torch.testing.assert_close(net.features(image, times(3)), features, rtol=1e-5, atol=1e-5)


@MAKERS
@pytest.mark.parametrize("name", NETS)
def test_other_widths_than_the_network_was_made_for(name: str, make: Make) -> None:
    net = shaken(make(graph(name).wiring))
    wide = graph(name, 2, width=11)
    out = net(wide, times(2))
    assert {key: x.shape for key, x in out.edges.items()} == {key: x.shape for key, x in wide.edges.items()}
    element = symmetry(name, 11).random(torch.Generator().manual_seed(0), batch=2)
    assert distance(net(permuted(wide, element), times(2)), permuted(out, element)) < 1e-5


@MAKERS
@pytest.mark.parametrize("name", ["mlp:5-6-4-3", "conv", "residual"])
def test_a_batch_is_its_members_one_by_one(name: str, make: Make) -> None:
    graphs = graph(name, 3)
    net = shaken(make(graphs.wiring))
    together = net(graphs, times(3))
    for k in range(3):
        alone = net(_member(graphs, k), times(3)[k : k + 1])
        assert distance(alone, _member(together, k)) < 1e-5


def _member(graphs: NeuralGraph, k: int) -> NeuralGraph:
    nodes = {name: x[k : k + 1] for name, x in graphs.nodes.items()}
    return graphs.with_values(nodes, {name: x[k : k + 1] for name, x in graphs.edges.items()})


@MAKERS
@pytest.mark.parametrize("name", ["mlp:5-6-3", "mlp:5-6-4-3", "conv", "residual"])
def test_every_weight_gets_an_update_that_depends_on_time_and_on_every_parameter(name: str, make: Make) -> None:
    p = population(name, 2)
    graphs = neural_graph(p, symmetry(name))
    net = shaken(make(graphs.wiring))
    out = net(graphs, times(2))
    update = out.state(p)
    assert all(update[key].shape == p[key].shape for key in p)
    assert distance(net(graphs, times(2) / 2), out) > 1e-4
    total = sum((x.square().sum() for x in [*out.nodes.values(), *out.edges.values()]), torch.zeros(()))
    (total + net.features(graphs, times(2)).square().sum()).backward()
    for key, parameter in net.named_parameters():
        if parameter.numel() and not key.startswith("probes") and "embedding.probes" not in key:
            assert parameter.grad is not None and parameter.grad.isfinite().all(), key
            assert parameter.grad.abs().max() > 0, key


@MAKERS
def test_each_weight_reaches_each_update(make: Make) -> None:
    """d update_ij / d w_kl is nowhere all zero: for the hidden matrix of a network with two hidden layers."""
    name = "mlp:5-6-4-3"
    p = {key: x.double() for key, x in population(name, 1).items()}
    wiring = Wiring.of(symmetry(name), p)
    net = shaken(make(wiring)).double()

    def update(weight: Tensor) -> Tensor:
        graphs = neural_graph({**p, "layers.1.weight": weight}, wiring)
        return net(graphs, times(1).double()).state(p)["layers.0.weight"].sum()

    (slope,) = torch.autograd.grad(update(p["layers.1.weight"].requires_grad_()), p["layers.1.weight"])
    assert (slope != 0).all()


@MAKERS
def test_gradients_are_finite_where_all_weights_are_zero(make: Make) -> None:
    graphs = graph("mlp:5-6-4-3")
    zero = graphs.with_values(
        *({k: torch.zeros_like(x) for k, x in part.items()} for part in (graphs.nodes, graphs.edges))
    )
    net = make(graphs.wiring)
    net.features(zero, times(2)).sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in net.parameters())


@MAKERS
def test_conditions_and_probes(make: Make) -> None:
    name = "mlp:5-6-4-3"
    graphs, extra = graph(name, 2), torch.randn(2, 3)
    probe_values = {"layers.0": torch.randn(2, 6, 4), "layers.1": torch.randn(2, 4, 4)}
    net = shaken(make(graphs.wiring, condition=3, probes=4))
    probed = graphs.with_probes(probe_values)
    out = net(probed, times(2), extra)
    assert distance(net(probed, times(2), extra + 1), out) > 1e-3
    assert distance(net(graphs.with_probes({k: x + 1 for k, x in probe_values.items()}), times(2), extra), out) > 1e-3
    element = symmetry(name).random(torch.Generator().manual_seed(0), batch=2)
    assert distance(net(permuted(probed, element), times(2), extra), permuted(out, element)) < 1e-5
    with pytest.raises(coset.ModelError, match="conditions of 3 numbers and gets 0"):
        net(graphs, times(2))
    with pytest.raises(coset.ModelError, match="made for 4 probes and the graph has 2"):
        net(graphs.with_probes({"layers.0": torch.randn(2, 6, 2)}), times(2), extra)
    with pytest.raises(coset.ModelError, match="made for 4 probes and the graph has 0"):
        net(graphs, times(2), extra)
    with pytest.raises(coset.ModelError, match="made for 0 probes and the graph has 4"):
        make(graphs.wiring)(probed, times(2))
    with pytest.raises(coset.ModelError, match="'nowhere'"):
        net(graphs.with_probes({"nowhere": torch.randn(2, 6, 4)}), times(2), extra)
    with pytest.raises(coset.ModelError, match=r"probes of 'layers\.0' have shape \(3, 6, 4\)"):
        net(graphs.with_probes({"layers.0": torch.randn(3, 6, 4)}), times(2), extra)


@MAKERS
def test_times_and_dtypes_are_checked(make: Make) -> None:
    graphs = graph("mlp:5-6-4-3")
    net = make(graphs.wiring)
    for time in (0.5, torch.tensor(0.5), torch.rand(3), torch.rand(2, 1)):
        with pytest.raises(coset.ModelError, match=r"one time for each of the 2 networks"):
            net(graphs, time)
    with pytest.raises(coset.ModelError, match=r"times in torch\.float64"):
        net.features(graphs, times(2).double())
    with pytest.raises(coset.ModelError, match=r"graphs in torch\.float32"):
        make(graphs.wiring).double()(graphs, times(2))


@MAKERS
def test_another_architecture_is_refused(make: Make) -> None:
    net = make(graph("mlp:5-6-4-3").wiring)
    with pytest.raises(coset.ModelError, match=r"they differ in .layers\.1\.outputs."):
        net(graph("mlp:5-6-3"), times(2))


@MAKERS
def test_half_precision_is_near(make: Make) -> None:
    graphs = graph("mlp:5-6-4-3")
    net = make(graphs.wiring)
    with torch.autocast("cpu", torch.bfloat16):
        rough = net(graphs, times(2))
    exact = net(graphs, times(2))
    assert max(float((rough.edges[k].float() - x).detach().abs().max()) for k, x in exact.edges.items()) < 0.1


@pytest.mark.slow
@MAKERS
def test_it_compiles_into_one_graph_and_has_jacobians_both_ways(make: Make) -> None:
    p = {key: x.double() for key, x in population("residual", 1).items()}
    graphs = neural_graph(p, symmetry("residual"))
    net = shaken(make(graphs.wiring)).double()
    time = times(1).double()
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    assert distance(compiled(graphs, time), net(graphs, time)) < 1e-12

    def update(weight: Tensor) -> Tensor:
        return net(neural_graph({**p, "up.0.weight": weight}, graphs.wiring), time).state(p)["down.1.weight"]

    with sdpa_kernel(SDPBackend.MATH):
        forward, reverse = torch.func.jacfwd(update), torch.func.jacrev(update)
        torch.testing.assert_close(forward(p["up.0.weight"]), reverse(p["up.0.weight"]))
