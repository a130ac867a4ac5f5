"""Flows at their edges: few inputs, circles, floors, constants, and conditions as long as the population."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import coset
from coset import Architecture, normal_starts, zoo
from coset.core import state as states
from coset.core.errors import CosetError, StateError
from coset.core.progress import Event, Progress
from coset.flow.coordinates import measured_base, space
from coset.populations.population import Population

SMALL = Architecture(width=16, depth=1, heads=2)
BRIEF = coset.Matching(epochs=2, batch_size=16, warm_up=2)


def seeded(k: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(k)


@pytest.mark.parametrize("inputs", [1, 2, 30])
def test_the_base_is_where_most_networks_begin(inputs: int) -> None:
    """Of two inputs b / |w| has an infinite variance, of one also its mean is none; of many it is nearly normal."""
    model = zoo.build(f"mlp:{inputs}-8-2")
    sym = coset.symmetry(model, zoo.example_input(model))
    own = space(sym, states.of(model), "geometric")
    x = own.encode(normal_starts(model, sym).states(4000, seeded()))
    base = measured_base(own, x)
    samples, starts = (own.ends.state(y, own.template) for y in (base.draw(4000, seeded(1)), x))
    for name in own.ends.chart.shapes:
        ours, theirs = (each[name].abs().median() for each in (samples, starts))
        assert float(ours / theirs) == pytest.approx(1, abs=0.15), name
    # Whoever has to reach all networks is as wide as the farthest make it.
    covering = measured_base(own, x, covers=True)
    decoded = own.ends.state(x.double(), {name: y.double() for name, y in own.template.items()})
    assert covering.stds["layers.0.bias"] == pytest.approx(float(decoded["layers.0.bias"].std(correction=0)), rel=1e-6)


class Two(nn.Module):
    """A unit of two weights and no bias: its direction lies on a circle."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2, 1, bias=False), nn.Linear(1, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(self.first(x).relu())
        return result


def test_end_points_on_circles_have_no_density() -> None:
    model = Two()
    sym = coset.symmetry(model, (torch.randn(3, 2),))
    ends = {name: 1 + 0.3 * torch.randn(64, *x.shape, generator=seeded()) for name, x in states.of(model).items()}

    def flow(predict: str) -> coset.Flow:
        one = coset.Flow(sym, "geometric", "independent", architecture=SMALL, predict=predict)  # type: ignore[arg-type]
        return one.fit(Population(ends), BRIEF)

    with pytest.raises(CosetError, match="lie on circles"):
        flow("endpoint").log_prob(ends, 2)
    assert bool(flow("endpoint").sample_with_log_prob(4, 2)[1].isfinite().all())
    assert bool(flow("velocity").log_prob(ends, 2).isfinite().all())


class Normed(nn.Module):
    """With running variances, and a constant that is no weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)
        self.register_buffer("constant", torch.tensor([2.0]))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(self.norm(self.first(x)).relu()) * self.get_buffer("constant")
        return result


@pytest.fixture(scope="module")
def normed() -> tuple[coset.Flow, dict[str, Tensor]]:
    model = Normed().eval()
    sym = coset.symmetry(model, (torch.randn(5, 3),))
    networks = {name: x.expand(32, *x.shape).clone() for name, x in states.of(model).items()}
    for name in ("first.weight", "first.bias", "norm.weight", "norm.bias", "last.weight", "last.bias"):
        networks[name] = torch.randn(networks[name].shape, generator=seeded())
    networks["norm.running_mean"] = torch.randn(32, 4, generator=seeded(1))
    networks["norm.running_var"] = torch.rand(32, 4, generator=seeded(2)) ** 4
    flow = coset.Flow(sym, "euclidean", "independent", architecture=SMALL).fit(Population(networks), BRIEF)
    return flow, networks


def test_networks_that_are_brought_back_are_told(
    normed: tuple[coset.Flow, dict[str, Tensor]], caplog: pytest.LogCaptureFixture
) -> None:
    flow, _ = normed
    with caplog.at_level(logging.WARNING):
        samples, _ = flow.sample_with_log_prob(64, 2, generator=seeded())
    clamped = int((samples.states["norm.running_var"] == 0).any(1).sum())
    assert 0 < clamped < 64
    assert f"{clamped} of 64 networks had" in caplog.text and "norm.running_var" in caplog.text


def test_other_constants_are_refused(normed: tuple[coset.Flow, dict[str, Tensor]]) -> None:
    flow, networks = normed
    other = {**networks, "constant": 5 * networks["constant"]}
    with pytest.raises(StateError, match="'constant' differs"):
        flow.log_prob(other, 2)
    with pytest.raises(StateError, match="'constant' differs"):
        flow.sample(32, 2, starts=other)
    assert bool(flow.log_prob(networks, 2).isfinite().all())


@pytest.mark.parametrize("n", [1, 2, 3])
def test_one_condition_for_all_networks(n: int) -> None:
    model = zoo.build("mlp:3-4-2")
    sym = coset.symmetry(model, zoo.example_input(model))
    networks = normal_starts(model, sym).states(16, seeded())
    population = Population(networks, networks, {"pair": torch.rand(16, 2, generator=seeded())})
    flow = coset.Flow(sym, architecture=SMALL, conditions=["pair"]).fit(population, BRIEF)
    pair = torch.tensor([0.1, 0.2])
    one, each = (flow.sample(n, 2, condition={"pair": x}, generator=seeded()).states for x in (pair, pair.expand(n, 2)))
    assert all(torch.equal(one[name], each[name]) for name in one)
    with pytest.raises(CosetError, match="whole numbers above zero"):
        flow.sample(2.5, 2, condition={"pair": pair})  # type: ignore[arg-type]


def small_population(n: int = 32, **labels: Tensor) -> tuple[coset.Symmetry, Population]:
    model = zoo.build("mlp:4-3-2")
    networks = normal_starts(model, sym := coset.symmetry(model, zoo.example_input(model))).states(n, seeded())
    return sym, Population(networks, networks, labels)


def test_conditions_are_measured_over_all_populations() -> None:
    sym, narrow = small_population(16, width=torch.full((16,), 3.0))
    _, wide = small_population(16, width=torch.full((16,), 7.0))
    flow = coset.Flow(sym, "euclidean", architecture=SMALL, conditions=["width"]).fit(narrow, BRIEF, more=[(sym, wide)])
    conditions = flow.sampler.conditions
    assert conditions is not None and (float(conditions.mean), float(conditions.std)) == (5.0, 2.0)
    with pytest.raises(CosetError, match="'width' has more numbers in one population"):
        _, odd = small_population(16, width=torch.ones(16, 2))
        coset.Flow(sym, "euclidean", architecture=SMALL, conditions=["width"]).fit(narrow, BRIEF, more=[(sym, odd)])


def test_conditions_far_from_all_that_was_learned_are_told(caplog: pytest.LogCaptureFixture) -> None:
    sym, population = small_population(32, loss=torch.linspace(0, 1, 32))
    flow = coset.Flow(sym, "euclidean", architecture=SMALL, conditions=["loss"]).fit(population, BRIEF)
    with caplog.at_level(logging.WARNING):
        flow.sample(2, 1, condition={"loss": 1.5})
        assert "deviations from the mean" not in caplog.text
        flow.sample(2, 1, condition={"loss": 1e9})
    assert "the condition 'loss' is" in caplog.text and "deviations from the mean" in caplog.text


def test_a_flow_without_density_says_so_at_once() -> None:
    sym, population = small_population()
    flow = coset.Flow(sym, "normalized", architecture=SMALL).fit(population, BRIEF)
    calls: list[Callable[[Progress], object]] = [
        lambda events: flow.sample_with_log_prob(2, progress=events),
        lambda events: flow.log_prob(population.states, progress=events),
    ]
    events: list[Event] = []
    for call in calls:
        with pytest.raises(CosetError, match="A normalized flow has no density"):
            call(events.append)
    assert not events


def test_fractions_are_no_numbers_of_things() -> None:
    for name in ("epochs", "batch_size", "unseen"):
        with pytest.raises(CosetError, match=f"Matching: {name} must be a whole number, not 2.5"):
            coset.Matching(**{name: 2.5})
    sym, population = small_population()
    flow = coset.Flow(sym, "euclidean", architecture=SMALL).fit(population, BRIEF)
    with pytest.raises(CosetError, match=r"cannot be followed in 2.5 steps"):
        flow.sample(2, 2.5)  # type: ignore[arg-type]


def test_densities_are_those_of_the_networks_that_it_knows() -> None:
    sym, population = small_population()
    flow = coset.Flow(sym, "euclidean", architecture=SMALL).fit(population, BRIEF)
    with pytest.raises(StateError, match="'extra'"):
        flow.log_prob({**population.states, "extra": torch.zeros(32)})
