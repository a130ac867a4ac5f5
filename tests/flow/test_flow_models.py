"""Flows of networks that are more than weights: norms, constants, other dtypes, dead units."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import coset
from coset import zoo
from coset.core import state as states
from coset.core.errors import CosetError, ModelError, StateError
from coset.core.progress import Epoch
from coset.data import Split
from coset.flow.coordinates import Geometry, normal_starts, sharing, space
from coset.flow.flow import Flow
from coset.flow.matching import Matching
from coset.flow.velocity_network import Architecture
from coset.populations.population import Population

SMALL = Architecture(width=16, depth=1, heads=2)
QUICK = Matching(epochs=2, batch_size=16, rate=1e-3)


class Scaled(nn.Module):
    """Its own constants, as models that standardise their inputs have."""

    mean: Tensor
    std: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.full((3,), 0.5))
        self.register_buffer("std", torch.full((3,), 2.0))
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(torch.relu(self.first((x - self.mean) / self.std)))
        return out


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def networks(model: nn.Module, n: int = 48) -> dict[str, Tensor]:
    """Networks with other weights and, where those change, statistics."""
    generator = torch.Generator().manual_seed(0)
    members = []
    for _ in range(n):
        own = {}
        for name, x in states.of(model).items():
            noise = torch.randn(x.shape, generator=generator)
            if not x.is_floating_point() or name in ("mean", "std"):
                own[name] = x
            elif name.endswith(("running_var", "1.weight")):
                own[name] = 0.1 + noise.abs()
            else:
                own[name] = noise
        members.append(own)
    return states.stack(members)


@pytest.mark.parametrize("geometry", ["euclidean", "normalized", "geometric"])
@pytest.mark.parametrize("model", [Scaled(), normed()], ids=["scaled", "normed"])
def test_coordinates_keep_the_function(model: nn.Module, geometry: Geometry) -> None:
    population, x = networks(model, 5), torch.randn(6, 3)
    model.eval()
    sym = sharing(coset.symmetry(model, (x,)), ["mean", "std"])
    own = space(sym, {name: value[0] for name, value in population.items()}, geometry)
    decoded = own.decode(own.encode(population))
    for a, b in zip(states.unstack(decoded), states.unstack(population), strict=True):
        assert torch.allclose(states.call(model, a, (x,)), states.call(model, b, (x,)), atol=1e-4)


def test_signs_that_no_path_joins_are_refused() -> None:
    model = nn.Sequential(nn.Linear(1, 4, bias=False), nn.ReLU(), nn.Linear(4, 2))  # a direction is a sign
    sym = coset.symmetry(model, (torch.randn(2, 1),))
    with pytest.raises(StateError, match=r"signs of single weights.*use the euclidean geometry"):
        Flow(sym, "geometric", "independent", architecture=SMALL, align=False).fit(networks(model), QUICK)
    positive = networks(model)
    positive["0.weight"] = positive["0.weight"].abs()
    flow = Flow(sym, "geometric", "independent", architecture=SMALL, align=False).fit(positive, QUICK)
    assert torch.equal(flow.sample(3, 2).states["0.weight"], torch.ones(3, 4, 1))


@pytest.mark.parametrize("geometry", ["euclidean", "geometric"])
def test_constants_of_a_model_stay_what_they_are(geometry: Geometry, tmp_path: Path) -> None:
    model = Scaled()
    sym = coset.symmetry(model, (torch.randn(2, 3),))
    flow = Flow(sym, geometry, "independent", architecture=SMALL).fit(networks(model), QUICK)
    flow.save(tmp_path / "flow.safetensors")
    for one in (flow, Flow.load(tmp_path / "flow.safetensors"), flow.on(sym, states.of(model))):
        samples = one.sample(3, 2).states
        assert torch.equal(samples["std"], torch.full((3, 3), 2.0)) and torch.equal(
            samples["mean"], torch.full((3, 3), 0.5)
        )


def test_variances_stay_positive() -> None:
    model = normed().eval()
    flow = Flow(coset.symmetry(model, (torch.randn(2, 3),)), "euclidean", "independent", architecture=SMALL)
    samples = flow.fit(networks(model), QUICK).sample(64, 2, noise=0.5).states
    assert bool((samples["1.running_var"] >= 0).all()) and bool((samples["1.running_mean"] < 0).any())


def test_what_has_no_derivative_is_refused() -> None:
    model = normed().eval()
    split = Split(torch.randn(20, 3), torch.randint(2, (20,)))
    flow = Flow(coset.symmetry(model, (torch.randn(2, 3),)), "euclidean", "independent", architecture=SMALL)
    with pytest.raises(ModelError, match="fit the flow without a model and data"):
        flow.fit(networks(model), QUICK, model=model, data=split)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_networks_keep_their_dtype(dtype: torch.dtype) -> None:
    model = zoo.build("mlp:3-4-2")
    population = {name: x.to(dtype) for name, x in networks(model).items()}
    split = Split(torch.randn(20, 3, dtype=torch.float64), torch.randint(2, (20,)))
    flow = Flow(coset.symmetry(model, (torch.randn(2, 3),)), "geometric", "ot", architecture=SMALL)
    options = {"model": model.double(), "data": split} if dtype == torch.float64 else {}
    samples = flow.fit(population, QUICK, **options).sample(3, 2).states  # type: ignore[arg-type]
    assert all(x.dtype == dtype and bool(x.isfinite().all()) for x in samples.values())


def test_a_unit_without_weights_is_named_with_a_remedy() -> None:
    model = zoo.build("mlp:3-4-2")
    population = networks(model)
    population["layers.0.weight"][5, 2] = 0
    sym = coset.symmetry(model, (torch.randn(2, 3),))
    with pytest.raises(StateError, match=r"layers\.0.*or use the euclidean geometry"):
        Flow(sym, "geometric", "independent", architecture=SMALL, align=False).fit(population, QUICK)
    Flow(sym, "euclidean", "independent", architecture=SMALL).fit(population, QUICK)


def test_networks_of_another_kind_are_refused() -> None:
    model = zoo.build("mlp:3-4-2")
    sym = coset.symmetry(model, (torch.randn(2, 3),))
    flow = Flow(sym, architecture=SMALL, coupling="independent").fit(networks(model), QUICK)
    for spec in ("mlp:5-4-2", "mlp:3-4-4-2"):
        other = zoo.build(spec)
        with pytest.raises(ModelError, match="another architecture"):
            flow.on(coset.symmetry(other, zoo.example_input(other)), states.of(other))


def test_a_folder_belongs_to_its_data(tmp_path: Path) -> None:
    model = zoo.build("mlp:3-4-2")
    sym = coset.symmetry(model, (torch.randn(2, 3),))
    split = Split(torch.randn(20, 3), torch.randint(2, (20,)))
    flow = Flow(sym, coupling="independent", architecture=SMALL)

    class StoppedError(Exception):
        pass

    def stop(epoch: Epoch) -> None:
        raise StoppedError

    with pytest.raises(StoppedError):
        flow.fit(
            networks(model),
            QUICK,
            model=model,
            data=split,
            out=tmp_path,
            progress=coset.on_epoch(stop),
            checkpoint_seconds=0,
        )
    other = replace(split, inputs=split.inputs + 1)
    with pytest.raises(CosetError, match="another outputs"):
        flow.fit(networks(model), QUICK, model=model, data=other, out=tmp_path)


def test_numbers_that_are_none_are_refused() -> None:
    model = zoo.build("mlp:3-4-2")
    population = Population(networks(model), labels={"q": torch.arange(48.0)})
    flow = Flow(
        coset.symmetry(model, (torch.randn(2, 3),)), coupling="independent", architecture=SMALL, conditions=["q"]
    )
    flow.fit(population, QUICK)
    with pytest.raises(CosetError, match="'q' has NaN"):
        flow.sample(2, condition={"q": float("nan")})
    with pytest.raises(CosetError, match="noise of a sample"):
        flow.sample(2, noise=float("nan"), condition={"q": 1.0})


class Frozen(Scaled):
    """With a gain that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.mean.copy_(torch.tensor([10.0, 20.0, 30.0]))
        self.gain = nn.Parameter(torch.tensor([3.0, 4.0]), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.gain


@pytest.mark.parametrize("std", [None, 0.1])
def test_starts_keep_what_is_not_trained(std: float | None) -> None:
    model = Frozen()
    sym = coset.symmetry(model, (torch.randn(2, 3),))
    starts = normal_starts(model, sym, std)
    split = Split(torch.randn(16, 3), torch.arange(16) % 2)
    for samples in (
        starts.states(64),
        coset.collect(model, split, 8, coset.Collect(epochs=1), draw=starts.states).states,
    ):
        for name, x in (("mean", model.mean), ("std", model.std), ("gain", model.gain)):
            assert bool((samples[name] == x).all()), name
    wide = starts.states(512, torch.Generator().manual_seed(0))["first.weight"].std()
    assert float(wide) == pytest.approx(std or 3**-0.5 / 3**0.5, rel=0.1)  # U(-1, 1) / sqrt(3) has 1 / 3


class Tied(nn.Module):
    """Two layers with one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(torch.relu(self.second(torch.relu(self.first(x)))))
        return out


def test_errors_of_outputs_know_tied_weights() -> None:
    model = Tied()
    sym = coset.symmetry(model, (torch.randn(2, 3),))
    split = Split(torch.randn(32, 3), torch.arange(32) % 2)
    population = coset.collect(model, split, 16, coset.Collect(epochs=1))
    samples = (
        Flow(sym, "euclidean", architecture=SMALL).fit(population, QUICK, model=model, data=split).sample(4, 2).states
    )
    assert samples["first.weight"].equal(samples["second.weight"])
