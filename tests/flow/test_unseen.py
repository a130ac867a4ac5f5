"""Networks that are left out of the learning, to see how well it carries over."""

import json
from pathlib import Path

import pytest
import torch

import coset
from coset import zoo
from coset.core.errors import CosetError
from coset.core.progress import Epoch
from coset.data import Split
from coset.flow.flow import Flow
from coset.flow.matching import Matching
from coset.flow.velocity_network import Architecture
from coset.populations.population import Population

SMALL = Architecture(width=32, depth=2, heads=2)
MODEL = zoo.build("mlp:3-4-2")
SYM = coset.symmetry(MODEL, zoo.example_input(MODEL))
SPLIT = Split(torch.randn(64, 3, generator=torch.Generator().manual_seed(2)), torch.arange(64) % 2)


def networks(n: int) -> Population:
    """Networks three times as large as their starts."""
    generator = torch.Generator().manual_seed(0)
    starts = {name: torch.randn(n, *x.shape, generator=generator) for name, x in MODEL.state_dict().items()}
    return Population({name: 3 * x for name, x in starts.items()}, starts)


@pytest.mark.parametrize("coupling", ["training", "ot", "independent"])
def test_nothing_is_learned_from_them(coupling: str) -> None:
    """Without alignment, which is to the first network: the flow is that of the others, bit for bit."""
    result = []
    for population, unseen in ((networks(72), 8), (networks(72)[:64], 0)):
        flow = Flow(SYM, "geometric", coupling, architecture=SMALL, align=False)  # type: ignore[arg-type]
        flow.fit(population, Matching(epochs=2, batch_size=32, unseen=unseen), model=MODEL, data=SPLIT)
        result.append(flow.sample(4, 4, generator=torch.Generator().manual_seed(0)).states)
    assert all(torch.equal(x, result[1][name]) for name, x in result[0].items())


def test_the_error_is_that_of_the_velocity(tmp_path: Path) -> None:
    """Of a Euclidean flow in the last epoch, with the weights that samples are drawn with."""
    population, count = networks(80), 16
    rows: list[Epoch] = []
    flow = Flow(SYM, "euclidean", architecture=SMALL)
    flow.fit(
        population, Matching(epochs=3, batch_size=32, unseen=count), progress=coset.on_epoch(rows.append), out=tmp_path
    )
    fitted = flow.sampler
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    starts, ends = (fitted.encode(x)[64:][order] for x in (population.starts or {}, population.states))
    time = (torch.arange(count) + 0.5) / count
    at = time.unsqueeze(-1)
    with torch.no_grad():
        error = fitted.field((1 - at) * starts + at * ends, time) - (ends - starts)
    expected = (error / coset.flow.velocity_network.units(fitted.space, fitted.field.standardize)).square().mean()
    assert rows[-1].more["unseen"] == pytest.approx(float(expected), rel=1e-4)
    lines = (tmp_path / "flow" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["unseen"] for line in lines] == [epoch.more["unseen"] for epoch in rows]


def test_it_shows_that_few_networks_are_learned_by_heart() -> None:
    ratios = []
    for n, epochs in ((528, 20), (48, 200)):
        rows: list[Epoch] = []
        flow = Flow(SYM, "euclidean", architecture=SMALL)
        flow.fit(networks(n), Matching(epochs=epochs, batch_size=32, unseen=16), progress=coset.on_epoch(rows.append))
        ratios.append(rows[-1].more["unseen"] / rows[-1].loss)
    assert ratios[0] < 3 < 10 < ratios[1]


def test_without_them_nothing_is_told() -> None:
    rows: list[Epoch] = []
    Flow(SYM, "euclidean", architecture=SMALL).fit(
        networks(32), Matching(epochs=1), progress=coset.on_epoch(rows.append)
    )
    assert rows[0].more == {}


def test_some_are_left_to_learn_from() -> None:
    with pytest.raises(CosetError, match="leaves none of 32 networks"):
        Flow(SYM, "euclidean", architecture=SMALL).fit(networks(32), Matching(epochs=1, unseen=32))
    with pytest.raises(CosetError, match="unseen must be finite and not negative"):
        Matching(unseen=-1)


def same_flow(one: Population, unseen: int, other: Population, conditions: list[str]) -> bool:
    """Whether a flow that leaves some of the first out is that of the second, bit for bit."""
    result = []
    for population, count in ((one, unseen), (other, 0)):
        flow = Flow(SYM, "euclidean", architecture=SMALL, conditions=conditions, align=False)
        flow.fit(population, Matching(epochs=2, batch_size=16, unseen=count))
        condition = dict.fromkeys(conditions, 0.5)
        result.append(flow.sample(4, 4, condition=condition, generator=torch.Generator().manual_seed(0)).states)
    return all(torch.equal(x, result[1][name]) for name, x in result[0].items())


def labelled(n: int, **labels: torch.Tensor) -> Population:
    population = networks(n)
    return Population(population.states, population.starts, labels)


def test_whole_runs_are_left_out() -> None:
    """Other iterations of a run are nearly the same network."""
    runs = torch.arange(32).float() // 4
    population = labelled(32, run=runs)
    assert same_flow(population, 4, population[runs != 4], [])
    assert same_flow(population, 3, population[runs != 4], [])
    assert same_flow(population, 5, population[(runs != 2) & (runs != 6)], [])
    with pytest.raises(CosetError, match="leaves none of 8 runs"):
        Flow(SYM, "euclidean", architecture=SMALL).fit(population, Matching(epochs=1, unseen=29))


def test_runs_of_populations_that_were_joined_are_not_confused() -> None:
    runs = torch.tensor([0.0, 0.0, 1.0, 1.0]).repeat(4)
    population = labelled(16, run=runs)
    assert same_flow(population, 2, population[torch.arange(16) // 2 != 4], [])


def test_one_run_loses_its_last_networks() -> None:
    population = labelled(32, run=torch.zeros(32))
    assert same_flow(population, 4, population[:28], [])


def test_every_condition_is_learned() -> None:
    """Tasks one after the other, as those of joined populations lie."""
    tasks = torch.arange(32).float() // 16
    population = labelled(32, task=tasks, run=torch.arange(32).float())
    out = torch.isin(torch.arange(32), torch.tensor([4, 12, 20, 28]))
    others = population[~out]
    assert others.labels["task"].mean() == tasks.mean()  # so that conditions have the same units
    assert same_flow(population, 4, others, ["task"])


def test_few_may_be_left_out_of_many_conditions() -> None:
    tasks = torch.arange(64).float() % 4
    flow = Flow(SYM, "euclidean", "ot", architecture=SMALL, conditions=["task"], align=False)
    flow.fit(labelled(64, task=tasks), Matching(epochs=1, batch_size=16, unseen=4))
