"""The step that learns a curve, against the same by plain torch."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coset import Bezier, Chain, Dirac, Gaussian, symmetry
from coset.alignment import relaxed
from coset.assignment import project_doubly_stochastic
from coset.core.errors import CosetError
from coset.data import Split
from coset.paths.connect import AlongCurve, Connect, CurveLearner, ends_of
from coset.paths.pam import TIMES, PathObjective, PermutationLearner, ProjectedOptimizer
from coset.solutions.likelihood import likelihood_of
from coset.training.loop import MinibatchRun
from coset.training.network import Randomness, TrainingProblem

CPU = torch.device("cpu")


def clusters(n: int = 40) -> Split:
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(3, (n,), generator=generator)
    return Split(torch.randn(n, 4, generator=generator).double() + 2 * F.one_hot(targets, 4), targets)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double()


def state(seed: int) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    return {name: x.detach().clone() for name, x in net().state_dict().items()}


def gaussian(seed: int) -> Gaussian:
    mean = state(seed)
    return Gaussian(mean, {name: 0.05 + 0.1 * x.abs() for name, x in mean.items()})


def start(learner: AlongCurve, split: Split) -> MinibatchRun:
    ends, randomness = learner.ends, Randomness(0, [(0,)], CPU)
    problem = TrainingProblem(ends.network, ends.mean[:1], split, likelihood_of(split.targets), randomness)
    return MinibatchRun(problem, learner.connect, learner)


def logits(flat: Tensor, x: Tensor) -> Tensor:
    """The net of `net()` by hand."""
    w1, b1, w2, b2 = torch.split(flat, [24, 6, 18, 3])
    return (x @ w1.view(6, 4).T + b1).relu() @ w2.view(3, 6).T + b2


def flat(tensors: dict[str, Tensor]) -> Tensor:
    return torch.cat([x.flatten() for x in tensors.values()])


def test_a_step_is_that_of_the_loss_at_a_point_of_the_curve() -> None:
    split = clusters()
    ends = ends_of(Dirac(state(0)), Dirac(state(1)), net(), CPU)
    settings = Connect("sgd", 0.1, epochs=1, batch_size=len(split), weight_decay=0.01, schedule="constant")
    begin = 0.1 * torch.randn(1, 1, 51, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    run = start(CurveLearner(settings, ends, begin), split)
    ((loss, accuracy),) = run.epoch()
    t = float(run.problem.memory["times"][0])
    assert 0 < t < 1
    control = ((flat(state(0)) + flat(state(1))) / 2 + begin[0, 0]).requires_grad_()
    w = (1 - t) ** 2 * flat(state(0)) + 2 * t * (1 - t) * control + t**2 * flat(state(1))
    by_hand = F.cross_entropy(logits(w, split.inputs), split.targets)
    (gradient,) = torch.autograd.grad(by_hand + 0.005 * w.square().sum(), control)
    assert loss == pytest.approx(float(by_hand.detach()), rel=1e-6)
    assert accuracy == pytest.approx(float((logits(w, split.inputs).argmax(1) == split.targets).double().mean()))
    assert torch.allclose(run.parameters["mean"][0, 0], begin[0, 0] - 0.1 * gradient, atol=1e-9)


def test_the_proximal_term_is_half_the_square_over_the_reach() -> None:
    split = clusters()
    ends = ends_of(Dirac(state(0)), Dirac(state(1)), net(), CPU)
    settings = Connect("sgd", 0.1, epochs=1, batch_size=len(split))
    values = []
    for reach in (math.inf, 3.0):
        run = start(CurveLearner(settings, ends, None, reach), split)
        with torch.no_grad():
            run.parameters["mean"].fill_(0.2)
        values.append(run.objective(split.inputs.unsqueeze(0), split.targets.unsqueeze(0))[0])
    assert float((values[1] - values[0]).detach()) == pytest.approx(51 * 0.2**2 / (2 * 3.0))


def test_the_proximal_term_holds_a_curve_back() -> None:
    split = clusters()
    ends = ends_of(Dirac(state(0)), Dirac(state(1)), net(), CPU)
    settings = Connect("sgd", 0.05, epochs=30, batch_size=20)
    far = []
    for reach in (math.inf, 0.5):
        run = start(CurveLearner(settings, ends, None, reach), split)
        for _ in range(30):
            run.epoch()
        far.append(float(run.parameters["mean"].detach().norm()))
    assert far[1] < 0.9 * far[0]


def test_a_step_between_gaussians_is_that_of_the_elbo_along_the_curve() -> None:
    """One step on half of the examples: minus the ELBO over n of the Gaussian at t, with v = 1 / (n weight_decay)."""
    split = clusters()
    n = len(split)
    a, b = gaussian(0), gaussian(1)
    ends = ends_of(a, b, net(), CPU)
    settings = Connect("sgd", 0.1, epochs=1, batch_size=n // 2, weight_decay=0.02, schedule="constant")
    run = start(CurveLearner(settings, ends), split)
    run.steps = 1  # of the two that an epoch has
    (generator,) = run.problem.randomness.generators
    again = torch.Generator()
    again.set_state(generator.get_state())
    half = slice(0, n // 2)
    t = 0.3
    run.problem.memory["times"].fill_(t)
    objective, _, _ = run.objective(split.inputs[half].unsqueeze(0), split.targets[half].unsqueeze(0))
    noise = torch.empty(51, dtype=torch.float64).normal_(generator=again)
    m, r = (torch.zeros(51, dtype=torch.float64, requires_grad=True) for _ in range(2))
    bump = 2 * t * (1 - t)
    mean = (1 - t) * flat(a.mean) + t * flat(b.mean) + bump * m
    log_std = (1 - t) * flat(a.std).log() + t * flat(b.std).log() + bump * r
    v = 1 / (n * 0.02)
    q = torch.distributions.Normal(mean, log_std.exp())
    kl = torch.distributions.kl_divergence(q, torch.distributions.Normal(torch.zeros(51).double(), math.sqrt(v))).sum()
    loss = F.cross_entropy(logits(mean + log_std.exp() * noise, split.inputs[half]), split.targets[half])
    by_hand = torch.autograd.grad(loss + kl / n, [m, r])
    gradients = torch.autograd.grad(objective.sum(), [run.parameters["mean"], run.parameters["log_std"]])
    assert torch.allclose(gradients[0][0, 0], by_hand[0], atol=1e-9)
    assert torch.allclose(gradients[1][0, 0], by_hand[1], atol=1e-9)


def test_the_noise_of_a_regression_goes_from_one_end_to_the_other() -> None:
    split = Split(clusters().inputs, clusters().inputs[:, :3].sin())
    ends = ends_of(Dirac(state(0), 0.2), Dirac(state(1), 0.6), net(), CPU)
    run = start(CurveLearner(Connect(batch_size=len(split), weight_decay=0), ends), split)
    run.problem.memory["times"].fill_(0.25)
    _, loss, _ = run.objective(split.inputs.unsqueeze(0), split.targets.unsqueeze(0))
    w = 0.75 * flat(state(0)) + 0.25 * flat(state(1))
    q = torch.distributions.Normal(logits(w, split.inputs), 0.3)
    assert float(loss.detach()) == pytest.approx(-float(q.log_prob(split.targets).sum(1).mean()), rel=1e-9)
    value = PathObjective(Connect(weight_decay=0), ends.network, split, ends.noise)(
        ends.mean, {}, torch.zeros(1, 1, 51)
    )
    expected = 0.0
    for k in range(TIMES):
        t = (k + 0.5) / TIMES
        w = (1 - t) * flat(state(0)) + t * flat(state(1))
        q = torch.distributions.Normal(logits(w, split.inputs), 0.2 + 0.4 * t)
        expected -= float(q.log_prob(split.targets).sum(1).mean()) / TIMES
    assert value == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("curve", "kind"), [("bezier", Bezier), ("chain", Chain)])
@pytest.mark.parametrize("make", [lambda k: Dirac(state(k)), gaussian], ids=["dirac", "gaussian"])
def test_the_point_that_is_trained_lies_on_the_curve(curve: str, kind: type, make: type) -> None:
    split = clusters()
    ends = ends_of(make(0), make(1), net(), CPU)
    settings = Connect("adam", 0.05, epochs=4, batch_size=8, curve=curve, bends=3)  # type: ignore[arg-type]
    run = start(CurveLearner(settings, ends), split)
    for _ in range(2):
        run.epoch()
    learner = run.learner
    assert isinstance(learner, CurveLearner)
    curve = learner.curve(run.parameters)
    assert type(curve) is kind and len(curve.points) == 5
    for k in range(run.steps):
        t = run.problem.memory["times"][k : k + 1]
        at = curve(float(t))
        mean = learner.point(t, ends.mean, run.parameters["mean"])[0]
        assert torch.allclose(mean, ends.network.flatten(at.mean), atol=1e-9)
        if isinstance(at, Gaussian):
            assert ends.log_std is not None
            log_std = learner.point(t, ends.log_std, run.parameters["log_std"])[0]
            assert torch.allclose(log_std.exp(), ends.network.flatten(at.std), atol=1e-9)


@pytest.mark.parametrize("times", ["stratified", "uniform"])
def test_times_are_uniform_and_one_in_each_part_if_stratified(times: str) -> None:
    split = clusters()
    ends = ends_of(Dirac(state(0)), Dirac(state(1)), net(), CPU)
    settings = Connect(epochs=50, batch_size=4, times=times)  # type: ignore[arg-type]
    run = start(CurveLearner(settings, ends), split)
    epochs = []
    for _ in range(50):
        run.epoch()
        epochs.append(run.problem.memory["times"].sort().values.clone())
        if times == "stratified":
            assert ((run.problem.memory["times"] * 10).long().sort().values == torch.arange(10)).all()
    times = torch.cat(epochs)
    assert abs(float(times.mean()) - 0.5) < 0.05 and float(times.min()) >= 0 and float(times.max()) < 1
    if times == "uniform":
        assert any(((row * 10).long() != torch.arange(10)).any() for row in epochs)


def test_the_objective_is_the_mean_of_the_loss_along_the_curve() -> None:
    split = clusters()
    ends = ends_of(Dirac(state(0)), Dirac(state(1)), net(), CPU)
    settings = Connect(weight_decay=0.01)
    deviation = 0.2 * torch.randn(1, 1, 51, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    value = PathObjective(settings, ends.network, split, None)(ends.mean, ends.buffers, deviation)
    curve = ends.curve("bezier", deviation[0], None)
    expected = 0.0
    for k in range(TIMES):
        w = ends.network.flatten(curve((k + 0.5) / TIMES).mean)
        expected += float(F.cross_entropy(logits(w, split.inputs), split.targets) + 0.005 * w.square().sum()) / TIMES
    assert value == pytest.approx(expected, rel=1e-9)


def test_the_objective_uses_the_statistics_of_the_batch_and_changes_nothing() -> None:
    split = Split(clusters().inputs.float(), clusters().targets)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 3))
    ends = ends_of(Dirac(dict(model.state_dict())), Dirac(dict(model.state_dict())), model, CPU)
    objective = PathObjective(Connect(weight_decay=0), ends.network, split, None)
    before = {name: x.clone() for name, x in ends.network.model.named_buffers()}
    values = [objective(ends.mean, ends.buffers, ends.mean.new_zeros(1, 1, ends.mean.shape[1])) for _ in range(2)]
    h = model[0](split.inputs)
    normed = F.batch_norm(h, None, None, model[1].weight, model[1].bias, training=True)
    expected = F.cross_entropy(model[4](normed.relu()), split.targets)
    assert values[0] == values[1] == pytest.approx(float(expected.detach()), rel=1e-5)
    assert all(torch.equal(x, before[name]) for name, x in ends.network.model.named_buffers())


def test_permutations_in_the_relaxed_problem_are_those_of_the_symmetry() -> None:
    split = clusters()
    ends = ends_of(Dirac(state(0)), Dirac(state(1)), net(), CPU)
    sym = symmetry(net(), (split.inputs[:2],))
    deviation = 0.2 * torch.randn(1, 1, 51, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    settings = Connect("sgd", 0.1, epochs=1, batch_size=len(split), weight_decay=0.01)
    run = start(PermutationLearner(settings, ends, sym, deviation, 5.0), split)
    element = sym.random(torch.Generator().manual_seed(2))
    name = sym.groups[0].name
    with torch.no_grad():
        run.trained[0].copy_(relaxed.matrix_of(element, name).double().unsqueeze(0))
    run.problem.memory["times"].fill_(0.3)
    value, loss, _ = run.objective(split.inputs.unsqueeze(0), split.targets.unsqueeze(0))
    image = sym.act(element, ends.last)
    w = ends_of(ends.first, image, net(), CPU).curve("bezier", deviation[0], None)(0.3)
    at = ends.network.flatten(w.mean)
    by_hand = F.cross_entropy(logits(at, split.inputs), split.targets)
    permuted = int((element[name] != torch.arange(6)).sum())
    assert float(loss.detach()) == pytest.approx(float(by_hand), rel=1e-9)
    assert float(value.detach()) == pytest.approx(float(by_hand + 0.005 * at.square().sum()) + permuted / 5.0, rel=1e-9)


def test_relaxed_blocks_stay_doubly_stochastic() -> None:
    split = clusters()
    ends = ends_of(Dirac(state(0)), Dirac(state(1)), net(), CPU)
    sym = symmetry(net(), (split.inputs[:2],))
    settings = Connect("sgd", 0.5, epochs=5, batch_size=10)
    run = start(PermutationLearner(settings, ends, sym, ends.mean.new_zeros(1, 1, 51), 1e6), split)
    run.optimizer = ProjectedOptimizer(run.optimizer, run.trained)
    for _ in range(5):
        run.epoch()
    (relaxed_block,) = run.parameters.values()
    block = project_doubly_stochastic(relaxed_block[0].detach())
    ones = torch.ones(6, dtype=torch.float64)
    assert torch.allclose(block.sum(0), ones) and torch.allclose(block.sum(1), ones) and float(block.min()) >= 0
    assert float((block - torch.eye(6, dtype=torch.float64)).abs().max()) > 0.05
    assert float((block - relaxed_block[0].detach()).abs().max()) < 1e-3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bends": 0}, "1 to 32 bends"),
        ({"bends": 70}, "1 to 32 bends"),
        ({"weight_decay": -1.0}, "weight_decay must be finite and not negative"),
        ({"weight_decay": math.inf}, "weight_decay must be finite and not negative"),
        ({"noise": 0.1}, "that of its ends"),
        ({"curve": "spline"}, "curve must be bezier or chain"),
        ({"epochs": 0}, "epochs must be positive"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(CosetError, match=message):
        Connect(**settings)  # type: ignore[arg-type]


def test_a_gaussian_without_deviation_is_refused() -> None:
    with pytest.raises(CosetError, match="positive standard deviations"):
        ends_of(gaussian(0), Dirac(state(1)), net(), CPU)


def test_a_frozen_parameter_is_trained_only_where_the_ends_differ() -> None:
    model = net()
    for p in model.parameters():
        p.requires_grad_(False)
    a, b = state(0), state(1)
    b["0.weight"] = a["0.weight"]
    ends = ends_of(Dirac(a), Dirac(b), model, CPU)
    assert ends.network.names == ["0.bias", "2.weight", "2.bias"]
    assert not any(p.requires_grad for p in model.parameters())
    curve = ends.curve("bezier", torch.ones(1, 27, dtype=torch.float64), None)
    assert torch.allclose(curve(0.4).mean["0.weight"], a["0.weight"], rtol=1e-12)
