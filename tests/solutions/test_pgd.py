"""The projected gradient attack: against a plain loop, a closed form, and its own bounds."""

import copy
import json
from collections.abc import Callable
from dataclasses import asdict

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import coset
from coset import zoo
from coset.core import state as states
from coset.core.errors import CosetError, DataError
from coset.data import DataSet, Split, Standardization, load
from coset.solutions.pgd import perturb
from coset.training.network import Network


def images(n: int = 12, seed: int = 0) -> Split:
    """Raw pixels of two channels, in float64, where no gradient is zero by rounding."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 2, 4, 4, generator=generator, dtype=torch.float64)
    return Split(x, torch.randint(3, (n,), generator=generator))


def net() -> nn.Module:
    torch.manual_seed(1)
    layers = nn.Conv2d(2, 5, 3), nn.BatchNorm2d(5), nn.Tanh(), nn.Flatten(), nn.Linear(20, 3)
    return nn.Sequential(*layers).double()


def plain(model: Callable[[Tensor], Tensor], split: Split, attack: coset.PGD, noise: Tensor) -> Tensor:
    """The attack as one writes it for raw inputs."""
    start = split.inputs
    x = (start + attack.epsilon * noise).clamp(0, 1)
    for _ in range(attack.steps):
        x.requires_grad_()
        (gradient,) = torch.autograd.grad(F.cross_entropy(model(x), split.targets), x)
        image = x.detach() + attack.step * gradient.sign()
        x = torch.min(torch.max(image, start - attack.epsilon), start + attack.epsilon).clamp(0, 1)
    return x


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def noise_like(x: Tensor) -> Tensor:
    return torch.empty_like(x).uniform_(-1, 1, generator=seeded())


@pytest.mark.parametrize("random_start", [True, False])
def test_as_a_plain_loop(random_start: bool) -> None:
    model, split = net().eval(), images()
    attack = coset.PGD(0.1, 7, 0.03, random_start)
    noise = noise_like(split.inputs)
    expected = plain(model, split, attack, noise if random_start else torch.zeros_like(noise))

    def loss(x: Tensor) -> Tensor:
        return F.cross_entropy(model(x[0]), split.targets, reduction="none")

    result = perturb(attack, loss, split.inputs[None], [seeded()])
    assert torch.equal(result[0], expected) and not result.requires_grad
    assert (expected - split.inputs).abs().max() > 0.09


def test_units_of_the_model() -> None:
    """Standardized by channel, as images and flattened, the attack is that on raw inputs."""
    model, split = net().eval(), images()
    mean, std = torch.tensor([0.3, 0.6]), torch.tensor([0.2, 0.4])
    attack = coset.PGD(0.1, 7, 0.03, mean=mean.tolist(), std=std.tolist())
    shape = mean.double().view(2, 1, 1), std.double().view(2, 1, 1)
    scale = Standardization(*shape)
    expected = plain(model, split, attack, noise_like(split.inputs))

    def loss(x: Tensor) -> Tensor:
        raw = scale.invert(x[0].reshape(-1, 2, 4, 4))
        return F.cross_entropy(model(raw), split.targets, reduction="none")

    for standardized in (scale.apply(split.inputs), scale.apply(split.inputs).flatten(1)):
        result = perturb(attack, loss, standardized[None], [seeded()])[0].view_as(split.inputs)
        assert torch.allclose(scale.invert(result), expected, rtol=0, atol=1e-6)


def test_rows_are_attacked_alone() -> None:
    """As many networks as there are rows, each with its own random starts."""
    weights, targets = torch.randn(3, 6, 4, generator=seeded()), torch.tensor([0, 1, 2, 3, 0])
    inputs = torch.rand(3, 5, 6, generator=seeded())
    attack = coset.PGD(0.2, 5, 0.1)

    def loss(x: Tensor, w: Tensor) -> Tensor:
        return F.cross_entropy((x @ w).flatten(0, 1), targets.repeat(len(x)))

    def generators() -> list[torch.Generator]:
        return [torch.Generator().manual_seed(row) for row in range(3)]

    together = perturb(attack, lambda x: loss(x, weights), inputs, generators())
    for row, generator in enumerate(generators()):
        alone = perturb(attack, lambda x, r=row: loss(x, weights[r]), inputs[row, None], [generator])  # type: ignore[misc]
        assert torch.equal(together[row], alone[0])


@settings(deadline=None, max_examples=60)
@given(
    st.floats(0, 0.5),
    st.integers(1, 6),
    st.floats(1e-3, 2.0),
    st.booleans(),
    st.sampled_from([(0.0, 1.0), (None, 1.0), (0.0, None), (None, None)]),
    st.floats(-1, 1),
    st.floats(0.1, 3),
)
def test_it_stays_in_the_ball_and_the_range(
    epsilon: float,
    steps: int,
    step: float,
    start: bool,
    bounds: tuple[float | None, float | None],
    mean: float,
    std: float,
) -> None:
    """However long or often the steps; and a step longer than the ball ends on its border."""
    attack = coset.PGD(epsilon, steps, step, start, *bounds, mean=(mean,), std=(std,))
    raw = images().inputs
    scale = Standardization(torch.tensor(mean).double(), torch.tensor(std).double())
    weights = torch.randn(raw[0].numel(), generator=seeded(), dtype=torch.float64)
    result = perturb(attack, lambda x: x.flatten(2) @ weights, scale.apply(raw)[None], [seeded()])[0]
    image = scale.invert(result)
    assert (image - raw).abs().max() <= epsilon + 1e-6
    low, high = bounds
    assert low is None or image.min() >= low - 1e-6
    assert high is None or image.max() <= high + 1e-6
    if step * steps >= 2 * epsilon and bounds == (None, None):
        assert torch.allclose((image - raw).abs(), torch.full_like(raw, epsilon), atol=1e-6)


def test_the_best_attack_on_a_linear_classifier_is_found() -> None:
    """For two classes with weights w_0, w_1 it is x - epsilon sign(w_y - w_other), cut to the range."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Linear(20, 2)
    x, y = torch.rand(50, 20, generator=generator), torch.randint(2, (50,), generator=generator)
    state = states.of(model)
    attack = coset.PGD(0.125, steps=10, step=0.03)
    result = attack.on(model, state, x, y, batch_size=16)
    away = (state["weight"][y] - state["weight"][1 - y]).sign()
    best = (x - 0.125 * away).clamp(0, 1)
    assert torch.equal(result, best)
    many = torch.rand(200, 50, 20, generator=generator)
    others = (x + 0.125 * (2 * many - 1)).clamp(0, 1)
    with torch.no_grad():
        worst = F.cross_entropy(model(best), y, reduction="none")
        tried = F.cross_entropy(model(others).flatten(0, 1), y.repeat(200), reduction="none").view(200, 50)
    assert bool((tried <= worst + 1e-6).all())


def test_on_a_state() -> None:
    """In evaluation mode, in batches, from a generator's seed; neither model nor state is changed."""
    model, split = net().train(), images()
    state = {name: x + 0.1 if x.is_floating_point() else x for name, x in states.of(model).items()}
    before, own = copy.deepcopy(state), states.of(model)
    attack = coset.PGD(0.1, 5, 0.04, random_start=False)
    result = attack.on(model, state, split.inputs, split.targets, batch_size=5)
    other = copy.deepcopy(model)
    other.load_state_dict(state)
    assert torch.equal(result, plain(other.eval(), split, attack, torch.zeros_like(split.inputs)))
    assert model.training and states.allclose(state, before, 0, 0) and states.allclose(states.of(model), own, 0, 0)
    random = coset.PGD(0.1, 1, 0.01)

    def samples(generator: torch.Generator | None) -> Tensor:
        return random.on(model, state, split.inputs, split.targets, generator=generator)

    first, again, third = (samples(generator) for generator in (None, None, seeded()))
    assert torch.equal(first, again) and not torch.equal(first, third)
    assert torch.equal(third, samples(seeded()))


def test_outputs_aside_leave_running_statistics_alone() -> None:
    model, split = net().train(), images()
    network, before = Network(model), states.of(model)
    flat = network.flatten(before).unsqueeze(0)
    aside = network.aside(flat, split.inputs.unsqueeze(0))
    assert states.allclose(states.of(model), before, 0, 0)
    assert torch.equal(network(flat, split.inputs.unsqueeze(0)), aside)
    assert not states.allclose(states.of(model), before)


def cut(mean: list[float], std: list[float], *shape: int) -> DataSet:
    """A data set of ones whose units are these, by channel."""
    scale = Standardization(*(torch.tensor(x).view(-1, 1, 1).expand(len(x), 4, 4).reshape(shape) for x in (mean, std)))
    split = Split(torch.ones(2, *shape), torch.tensor([0, 1]))
    return DataSet("ones", split, split, ("a", "b"), scale)


@pytest.mark.parametrize(
    ("dataset", "means"),
    [
        (cut([0.5, 0.25, 0.25], [1.0, 1.0, 1.0], 3, 4, 4), [0.5, 0.25, 0.25]),
        (cut([0.5, 0.25, 0.25], [1.0, 1.0, 1.0], 48), [0.5, 0.25, 0.25]),
        (cut([0.5, 0.5], [1.0, 0.5], 2, 4, 4), [0.5, 0.5]),
        (cut([0.25, 0.25], [0.5, 0.5], 2, 4, 4), [0.25]),
    ],
)
def test_units_from_a_data_set(dataset: DataSet, means: list[float]) -> None:
    """The fewest numbers that give every value its own mean and std."""
    attack = coset.PGD(epsilon=0.5).in_units_of(dataset)
    assert attack.epsilon == 0.5 and attack.mean == tuple(means)
    scale = attack.scale(dataset.train.inputs[0])
    assert torch.equal(scale.mean, dataset.input_scale.mean) and torch.equal(scale.std, dataset.input_scale.std)
    assert coset.PGD(**json.loads(json.dumps(asdict(attack)))) == attack


def test_units_of_known_data() -> None:
    assert coset.PGD().in_units_of(load("digits")) == coset.PGD().in_units_of(load("digits", flatten=True))
    assert (
        len(coset.PGD().in_units_of(load("digits")).mean) == 1
        and len(coset.PGD().in_units_of(load("breast-cancer")).mean) == 30
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"epsilon": -0.1}, "epsilon must be finite and not negative, not -0.1"),
        ({"epsilon": float("nan")}, "epsilon"),
        ({"steps": 0}, "steps must be positive, not 0"),
        ({"step": 0.0}, "step must be positive and finite"),
        ({"low": 1.0}, "low must be below high"),
        ({"high": float("inf")}, "high must be finite, or None"),
        ({"mean": (0.5,)}, "1 means need as many stds, not 0"),
        ({"mean": (0.5,), "std": (0.0,)}, "stds positive"),
    ],
)
def test_bad_settings(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(CosetError, match=message):
        coset.PGD(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("attack", "inputs", "targets", "message"),
    [
        (coset.PGD(), torch.rand(4, 6), torch.rand(4, 1), "targets are values, but attacks are on classifications"),
        (coset.PGD(), torch.ones(4, 6, dtype=torch.int64), torch.zeros(4).long(), "inputs are torch.int64"),
        (coset.PGD(), torch.rand(4, 6) - 0.5, torch.zeros(4).long(), r"PGD\.in_units_of\(dataset\)"),
        (coset.PGD(low=None), torch.rand(4, 6) + 1, torch.zeros(4).long(), "between -inf and 1.0"),
        (coset.PGD(mean=[0.0] * 4, std=[1.0] * 4), torch.rand(4, 6), torch.zeros(4).long(), "4 means do not divide"),
        (coset.PGD(), torch.rand(4, 6), torch.full((4,), 3), "classes 0 to 2"),
    ],
    ids=["values", "integers", "range", "one bound", "parts", "classes"],
)
def test_what_cannot_be_attacked(attack: coset.PGD, inputs: Tensor, targets: Tensor, message: str) -> None:
    model = zoo.build("mlp:6-5-3")
    with pytest.raises(DataError, match=message):
        attack.on(model, states.of(model), inputs, targets)


def test_an_attack_shows_itself_in_one_line() -> None:
    attack = coset.PGD(steps=3)
    assert repr(attack.in_units_of(load("digits"))) == (
        "PGD(epsilon=0.03137, steps=3, step=0.007843, random_start=True, low=0, high=1, mean=(0.3051), std=(0.3762))"
    )
    assert repr(attack.in_units_of(load("breast-cancer"))).endswith("mean=(30 numbers), std=(30 numbers))")
    assert "PGD(epsilon=" in attack._repr_html_()
