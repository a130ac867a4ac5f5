"""Errors of velocities, measured by what they do to outputs."""

import copy

import pytest
import torch

import coset
from coset import zoo
from coset.core import state as states
from coset.data import Split
from coset.flow.coordinates import BaseDistribution, Geometry, space
from coset.flow.output_loss import OutputLoss


@pytest.mark.parametrize("geometry", ["euclidean", "geometric"])
@pytest.mark.parametrize("classes", [True, False])
def test_it_is_the_second_order_change_of_the_predictions(geometry: Geometry, classes: bool) -> None:
    torch.manual_seed(0)
    model = zoo.build("mlp:4-3-2").double()
    template = states.of(model)
    own = space(coset.symmetry(model, (torch.randn(2, 4, dtype=torch.float64),)), template, geometry)
    base = BaseDistribution(own, {}, dict.fromkeys(own.ends.chart.shapes, 1.0))
    inputs = torch.randn(9, 4, dtype=torch.float64)
    ends = base.draw(5).double()
    error = own.manifold.tangent(ends, torch.randn(ends.shape, dtype=torch.float64))
    measure = OutputLoss(copy.deepcopy(model).float(), own, inputs.float(), classes, 9)
    step = 1e-4

    def outputs(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([states.call(model, s, (inputs,)) for s in states.unstack(own.manifold.state(x, template))])

    before, after = outputs(ends), outputs(own.manifold.exp(ends, step * error))
    if classes:
        p, q = before.log_softmax(-1), after.log_softmax(-1)
        expected = 2 * (p.exp() * (p - q)).sum(-1).mean(1) / step**2  # KL = e^T G e / 2
    else:
        expected = (after - before).square().mean((1, 2)) / step**2
    assert measure(ends.float(), error.float(), inputs.float()).tolist() == pytest.approx(expected.tolist(), rel=1e-2)


def test_the_whole_velocity_counts_as_one() -> None:
    torch.manual_seed(0)
    model = zoo.build("mlp:4-3-2")
    own = space(coset.symmetry(model, zoo.example_input(model)), states.of(model), "euclidean")
    base = BaseDistribution(own, {}, dict.fromkeys(own.ends.chart.shapes, 1.0))
    starts, ends = base.draw(30), base.draw(30)
    split = Split(torch.randn(40, 4), torch.randint(2, (40,)))
    measure = OutputLoss.along(model, own, split, starts, ends)
    points = torch.lerp(starts, ends, torch.linspace(0, 1, 30)[:, None])
    assert float(measure(points, ends - starts, split.inputs).mean()) == pytest.approx(1.0, rel=1e-4)
    assert float(measure(points, 0.5 * (ends - starts), split.inputs).mean()) == pytest.approx(0.25, rel=1e-4)


def test_gradients_reach_the_error_and_not_the_network() -> None:
    torch.manual_seed(0)
    model = zoo.build("mlp:4-3-2")
    own = space(coset.symmetry(model, zoo.example_input(model)), states.of(model), "euclidean")
    base = BaseDistribution(own, {}, dict.fromkeys(own.ends.chart.shapes, 1.0))
    ends, error = base.draw(3), base.draw(3).requires_grad_()
    inputs = torch.randn(6, 4)
    OutputLoss(model, own, inputs, True, 6)(ends, error, inputs).sum().backward()  # type: ignore[no-untyped-call]
    assert error.grad is not None and bool((error.grad != 0).any())
    assert all(p.grad is None for p in model.parameters())
