"""Curve layers compute what coset's curves do, with the same gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from bench.curve_layers import CurveNet
from coset import Bezier, Dirac, zoo
from coset.core import state
from coset.core.errors import ModelError
from coset.data import Split
from coset.paths.connect import Connect, CurveLearner, ends_of
from coset.solutions.likelihood import likelihood_of
from coset.training.loop import MinibatchRun
from coset.training.network import Randomness, TrainingProblem

CPU = torch.device("cpu")
SHAPES = {"mlp:6-5-4-3": (6,), "tinyten:classes=3": (3, 16, 16), "resnet20:classes=3,width=0.25": (3, 8, 8)}


def points(spec: str, count: int) -> list[nn.Module]:
    """Networks in float64 whose norms differ too."""
    torch.manual_seed(0)
    models = [zoo.build(spec).double() for _ in range(count)]
    with torch.no_grad():
        for p in (p for model in models for p in model.parameters()):
            p.add_(0.1 * torch.randn_like(p))
    return models


def examples(spec: str) -> Split:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(8, *SHAPES[spec], generator=generator, dtype=torch.float64)
    return Split(inputs, torch.arange(8) % 3)


@pytest.mark.parametrize("spec", SHAPES)
@pytest.mark.parametrize("t", [0.15, 0.7])
def test_outputs_gradients_and_statistics_are_those_of_learning_a_curve(spec: str, t: float) -> None:
    first, control, last = points(spec, 3)
    split, decay = examples(spec), 0.03
    ends = ends_of(Dirac(state.of(first)), Dirac(state.of(last)), first, CPU)
    start = ends.network.flatten(state.of(control)) - ends.mean.mean(0)
    problem = TrainingProblem(
        ends.network, ends.mean[:1], split, likelihood_of(split.targets), Randomness(0, [(0,)], CPU)
    )
    settings = Connect(epochs=1, batch_size=len(split), weight_decay=decay)
    run = MinibatchRun(problem, settings, CurveLearner(settings, ends, start.view(1, 1, -1)))
    run.problem.memory["times"].fill_(t)
    ends.network.model.train()
    ours, _, logits = run.objective(split.inputs.unsqueeze(0), split.targets.unsqueeze(0))
    (expected,) = torch.autograd.grad(ours.sum(), run.parameters["mean"])

    net = CurveNet([first, control, last]).double().train()
    outputs = net(split.inputs, torch.tensor(t, dtype=torch.float64))
    theirs = nn.functional.cross_entropy(outputs, split.targets) + decay / 2 * net.squares()
    parameters = [p for p in net.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(theirs, parameters)

    assert torch.allclose(outputs, logits[0], rtol=1e-6, atol=1e-8)
    assert theirs.item() == pytest.approx(ours.item(), rel=1e-7)
    assert torch.allclose(torch.cat([g.flatten() for g in gradients]), expected.flatten(), rtol=1e-5, atol=1e-8)
    buffers = {name.removeprefix("net."): x for name, x in net.named_buffers() if name.startswith("net.")}
    assert dict(ends.network.model.named_buffers()).keys() == buffers.keys()
    for name, x in ends.network.model.named_buffers():
        assert torch.allclose(buffers[name].double(), x.double(), rtol=1e-6), name


def test_more_bends_and_evaluation() -> None:
    spec = "tinyten:classes=3"
    models = points(spec, 4)
    inputs, t = examples(spec).inputs, 0.4
    models[0].train()(inputs)
    for model in models[1:]:
        model.load_state_dict(dict(models[0].named_buffers()), strict=False)
    net = CurveNet(models).double().eval()
    point = Bezier(*[state.of(model) for model in models])(t).mean
    with torch.no_grad():
        expected: Tensor = state.call(models[0].eval(), point, (inputs,))
        assert torch.allclose(net(inputs, torch.tensor(t, dtype=torch.float64)), expected, rtol=1e-6)
        assert not torch.allclose(net(inputs, torch.tensor(0.5, dtype=torch.float64)), expected, rtol=1e-3)


def test_only_inner_control_points_are_learned_and_the_models_stay() -> None:
    models = points("tinyten:classes=3", 3)
    net = CurveNet(models)
    learned = {name for name, p in net.named_parameters() if p.requires_grad}
    assert learned == {name for name, _ in net.named_parameters() if name.endswith("_1")}
    assert sum(p.numel() for p in net.parameters()) == 3 * sum(p.numel() for p in models[0].parameters())
    assert not any(p.data_ptr() == q.data_ptr() for p in net.parameters() for m in models for q in m.parameters())


@pytest.mark.parametrize("layer", [nn.LayerNorm(4), nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular")])
def test_other_layers_are_refused(layer: nn.Module) -> None:
    model = nn.Sequential(nn.ReLU(), layer)
    with pytest.raises(ModelError, match=f"no curve layer for '1', a {type(layer).__name__}"):
        CurveNet([model, model, model])
