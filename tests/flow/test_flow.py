"""Flows as a user sees them: fit, sample, density, conditions, widths, files, and being stopped."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import coset
from coset import zoo
from coset.core import state as states
from coset.core.errors import CosetError, StateError
from coset.core.progress import Epoch
from coset.data import Split
from coset.flow.flow import Flow
from coset.flow.guidance import Guidance
from coset.flow.matching import Matching
from coset.flow.velocity_network import Architecture
from coset.populations.population import Population
from coset.populations.scores import scores

SMALL = Architecture(width=32, depth=2, heads=2)
QUICK = Matching(epochs=2, batch_size=32, rate=1e-3, warm_up=2)
MODEL = zoo.build("mlp:3-4-2")
SYM = coset.symmetry(MODEL, zoo.example_input(MODEL))


def draw(n: int, seed: int, scale: float = 1.0, spec: str = "mlp:3-4-2") -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {name: x.shape for name, x in states.of(zoo.build(spec)).items()}
    return {name: scale * torch.randn(n, *shape, generator=generator) for name, shape in shapes.items()}


def trained(n: int = 128, seed: int = 0, spec: str = "mlp:3-4-2") -> Population:
    """Starts, and networks that are three times as large."""
    starts = draw(n, seed, spec=spec)
    label = torch.arange(n).float() % 2
    return Population({name: 3 * x for name, x in starts.items()}, starts, {"task": label, "pair": torch.rand(n, 2)})


def test_a_flow_learns_where_training_leads() -> None:
    flow = Flow(SYM, "euclidean", architecture=SMALL)
    flow.fit(trained(512), Matching(epochs=60, batch_size=128, warm_up=20, average=0.98))
    starts = draw(64, 9)
    samples = flow.sample(64, 8, starts=starts).states
    off = sum(float((samples[name] - 3 * x).square().sum()) for name, x in starts.items())
    whole = sum(float((2 * x).square().sum()) for x in starts.values())
    assert off < 0.05 * whole


@pytest.mark.parametrize("geometry", ["euclidean", "normalized", "geometric"])
@pytest.mark.parametrize("coupling", ["training", "ot", "independent"])
def test_every_plan_gives_finite_networks_of_the_right_shapes(geometry: str, coupling: str) -> None:
    flow = Flow(SYM, geometry, coupling, architecture=SMALL, predict="endpoint")  # type: ignore[arg-type]
    settings = replace(QUICK, times="beta", noise=0.01)
    samples = flow.fit(trained(64), settings).sample(5, 4, generator=torch.Generator().manual_seed(0)).states
    assert {name: tuple(x.shape) for name, x in samples.items()} == {
        name: (5, *x.shape) for name, x in states.of(MODEL).items()
    }
    assert all(x.isfinite().all() for x in samples.values())
    if geometry != "euclidean":
        assert torch.allclose(samples["layers.0.weight"].norm(dim=-1), torch.ones(5, 4), atol=1e-5)


def test_the_same_seed_gives_the_same_flow_and_another_seed_another() -> None:
    one, two, other = (
        Flow(SYM, "euclidean", architecture=SMALL)
        .fit(trained(64), QUICK, seed=seed)
        .sample(4, 3, generator=_seeded(1))
        .states
        for seed in (3, 3, 4)
    )
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not states.allclose(one, other)


@pytest.mark.parametrize("geometry", ["euclidean", "geometric"])
def test_the_density_belongs_to_the_samples_and_knows_no_order(geometry: str) -> None:
    flow = Flow(SYM, geometry, "independent", architecture=SMALL).fit(trained(64), QUICK)  # type: ignore[arg-type]
    population, logs = flow.sample_with_log_prob(4, 16, divergence="exact", generator=_seeded(0))
    again = flow.log_prob(population, 16, divergence="exact")
    assert torch.allclose(logs, again, atol=1e-3)
    g = SYM.element(SYM.random(_seeded(2), batch=4).permutations)
    of_images = flow.log_prob(SYM.act(g, population.states), 16, divergence="exact")
    assert torch.allclose(of_images, again, atol=1e-3)


def test_samples_can_be_asked_for_by_condition() -> None:
    starts = draw(512, 0)
    task = (torch.arange(512) % 2).float()
    ends = {name: x + 4 * (task - 0.5).view(-1, *[1] * (x.dim() - 1)) for name, x in starts.items()}
    flow = Flow(SYM, "euclidean", architecture=SMALL, conditions=["task"])
    flow.fit(Population(ends, starts, {"task": task}), Matching(epochs=40, batch_size=128, warm_up=20))
    low, high = (flow.sample(64, 8, condition={"task": value}, generator=_seeded(0)).states for value in (0.0, 1.0))
    for name in low:
        assert float((high[name] - low[name]).mean()) == pytest.approx(4.0, abs=0.6)
    each = flow.sample(64, 8, condition={"task": torch.ones(64)}, generator=_seeded(0)).states
    assert states.allclose(each, high, atol=1e-5)
    with pytest.raises(CosetError, match="conditioned on 'task': give a value"):
        flow.sample(3)
    with pytest.raises(CosetError, match="needs 1 numbers for each of 3"):
        flow.sample(3, condition={"task": torch.ones(4)})


def test_errors_of_outputs_are_counted_where_there_are_data() -> None:
    split = Split(torch.randn(40, 3), torch.randint(2, (40,)))
    losses: dict[bool, float] = {}
    for with_outputs in (False, True):
        flow = Flow(SYM, "euclidean", architecture=SMALL)
        epochs: list[Epoch] = []
        options = {"model": MODEL, "data": split} if with_outputs else {}
        flow.fit(trained(64), QUICK, progress=coset.on_epoch(epochs.append), **options)  # type: ignore[arg-type]
        losses[with_outputs] = epochs[0].loss
    assert losses[True] > losses[False]
    with pytest.raises(CosetError, match="need both, a model and data"):
        Flow(SYM, "euclidean", architecture=SMALL).fit(trained(64), QUICK, model=MODEL)


def test_networks_of_another_width_are_sampled_and_learned() -> None:
    wide = zoo.build("mlp:3-7-2")
    wide_sym = coset.symmetry(wide, zoo.example_input(wide))
    flow = Flow(SYM, "euclidean", architecture=SMALL)
    flow.fit(trained(64), QUICK, more=[(wide_sym, trained(96, 1, "mlp:3-7-2"))])
    samples = flow.on(wide_sym, states.of(wide)).sample(3, 4).states
    assert samples["layers.0.weight"].shape == (3, 7, 3)
    assert flow.sample(3, 4).states["layers.0.weight"].shape == (3, 4, 3)
    with pytest.raises(CosetError, match="one model"):
        split = Split(torch.randn(40, 3), torch.randint(2, (40,)))
        flow.fit(trained(64), QUICK, more=[(wide_sym, trained(64, 1, "mlp:3-7-2"))], model=MODEL, data=split)


def test_guidance_lowers_the_loss() -> None:
    flow = Flow(SYM, "euclidean", architecture=SMALL).fit(trained(64), QUICK)
    generator = torch.Generator().manual_seed(3)
    split = Split(torch.randn(80, 3, generator=generator), torch.randint(2, (80,), generator=generator))
    losses = []
    for strength in (0.0, 5.0):
        samples = flow.sample(16, 16, guidance=Guidance(MODEL, split, strength), generator=_seeded(0))
        losses.append(scores(samples, MODEL, split).losses.mean)
    assert losses[1] < 0.8 * losses[0]


def test_a_flow_comes_back_from_its_file(tmp_path: Path) -> None:
    flow = Flow(SYM, "geometric", "independent", architecture=SMALL, conditions=["task", "pair"])
    flow.fit(trained(64), QUICK)
    flow.save(tmp_path / "flow.safetensors")
    again = Flow.load(tmp_path / "flow.safetensors")
    assert again.plan == flow.plan
    condition = {"task": 1.0, "pair": torch.tensor([0.2, 0.7])}
    one, two = (f.sample(3, 4, condition=condition, generator=_seeded(0)).states for f in (flow, again))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_other_files_are_refused(tmp_path: Path) -> None:
    trained(4).save(tmp_path / "population.safetensors")
    with pytest.raises(StateError, match="holds no flow"):
        Flow.load(tmp_path / "population.safetensors")
    flow = Flow(SYM, "euclidean", architecture=SMALL).fit(trained(64), QUICK)
    with pytest.raises(StateError, match=r"must end in \.safetensors"):
        flow.save(tmp_path / "flow.pt")
    flow.save(tmp_path / "flow.safetensors")
    whole = (tmp_path / "flow.safetensors").read_bytes()
    (tmp_path / "half.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StateError):
        Flow.load(tmp_path / "half.safetensors")
    (tmp_path / "odd.safetensors").write_bytes(whole.replace(b'\\"units\\"', b'\\"onions\\"', 1))
    with pytest.raises(StateError):
        Flow.load(tmp_path / "odd.safetensors")


class _KilledError(Exception):
    pass


def _killing(after: int) -> Callable[[Epoch], None]:
    def progress(epoch: Epoch) -> None:
        if epoch.epoch == after:
            raise _KilledError

    return progress


@pytest.mark.parametrize("coupling", ["training", "ot"])
def test_a_flow_that_was_stopped_after_every_epoch_comes_out_the_same(tmp_path: Path, coupling: str) -> None:
    settings = replace(QUICK, epochs=4, noise=0.01, level=True)
    plain = Flow(SYM, "geometric", coupling, architecture=SMALL).fit(trained(64), settings)  # type: ignore[arg-type]
    flow = Flow(SYM, "geometric", coupling, architecture=SMALL)  # type: ignore[arg-type]
    for after in (1, 2, 3):
        with pytest.raises(_KilledError):
            flow.fit(
                trained(64), settings, out=tmp_path, progress=coset.on_epoch(_killing(after)), checkpoint_seconds=0
            )
    flow.fit(trained(64), settings, out=tmp_path, checkpoint_seconds=0)
    one, two = (f.sample(3, 3, generator=_seeded(0)).states for f in (plain, flow))
    assert all(torch.equal(one[name], two[name]) for name in one)
    with pytest.raises(CosetError, match="holds a run with another rate"):
        flow.fit(trained(64), replace(settings, rate=2e-3), out=tmp_path)


def test_what_cannot_be_is_refused_in_one_sentence() -> None:
    with pytest.raises(CosetError, match="has not been fitted"):
        Flow(SYM).sample(1)
    with pytest.raises(CosetError, match="geometry must be euclidean or normalized or geometric"):
        Flow(SYM, "round")  # type: ignore[arg-type]
    with pytest.raises(CosetError, match="leave align out"):
        Flow(SYM, align=True)
    with pytest.raises(CosetError, match="multiple of heads"):
        Architecture(width=30, heads=4)
    with pytest.raises(CosetError, match="needs to know where each network began"):
        Flow(SYM, "euclidean", architecture=SMALL).fit(draw(16, 0), QUICK)
    with pytest.raises(CosetError, match="no label 'loss'"):
        Flow(SYM, "euclidean", architecture=SMALL, conditions=["loss"]).fit(trained(16), QUICK)
    flow = Flow(SYM, "euclidean", architecture=SMALL).fit(trained(64), QUICK)
    with pytest.raises(CosetError, match="There are 5 starts for 3"):
        flow.sample(3, starts=draw(5, 0))
    with pytest.raises(CosetError, match="above zero, not 0"):
        flow.sample(0)
    with pytest.raises(CosetError, match="has no conditions"):
        flow.sample(2, condition={"task": 1.0})
    bad = trained(16)
    bad.states["layers.0.weight"][3] = torch.nan
    with pytest.raises(StateError, match="NaN"):
        Flow(SYM, "euclidean", architecture=SMALL).fit(bad.states, QUICK)


def test_a_flow_that_diverges_says_so() -> None:
    with pytest.raises(CosetError, match="The flow diverged in epoch"):
        Flow(SYM, "euclidean", architecture=SMALL).fit(trained(64), replace(QUICK, rate=1e30, epochs=5, warm_up=0))


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_populations_and_flows_do_not_pass_for_networks(tmp_path: Path) -> None:
    trained(4).save(tmp_path / "population.safetensors")
    Flow(SYM, "euclidean", architecture=SMALL).fit(trained(64), QUICK).save(tmp_path / "flow.safetensors")
    for name in ("population", "flow"):
        with pytest.raises(StateError, match=f"holds a {name} and not one network"):
            coset.load(tmp_path / f"{name}.safetensors")


@pytest.mark.parametrize("coupling", ["training", "ot", "independent"])
def test_a_flow_begins_where_training_did_if_that_is_known(coupling: str) -> None:
    starts = draw(64, 0, scale=0.1)
    population = Population({name: 3 * x for name, x in starts.items()}, starts)
    flow = Flow(SYM, "euclidean", coupling, architecture=SMALL).fit(population, QUICK)  # type: ignore[arg-type]
    assert flow.sampler.base.stds == pytest.approx(dict.fromkeys(starts, 0.1), rel=0.25)
    if coupling != "training":
        unknown = Flow(SYM, "euclidean", coupling, architecture=SMALL).fit(population.states, QUICK)  # type: ignore[arg-type]
        assert unknown.sampler.base.stds == pytest.approx(dict.fromkeys(starts, 0.3), rel=0.25)


@pytest.mark.slow
@pytest.mark.parametrize("geometry", ["euclidean", "geometric"])
def test_a_compiled_flow_is_the_same(geometry: str) -> None:
    split = Split(torch.randn(64, 3, generator=_seeded(0)), torch.arange(64) % 2)
    samples = []
    for compiled in (False, True):
        flow = Flow(SYM, geometry, architecture=SMALL)  # type: ignore[arg-type]
        flow.fit(trained(64), replace(QUICK, compile=compiled), model=MODEL, data=split)
        samples.append(flow.sample(8, 4, generator=_seeded(0)).states)
    for name, x in samples[0].items():
        assert torch.allclose(samples[1][name], x, rtol=1e-4, atol=1e-4), name


def test_few_starts_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    own = draw(8, 0)
    starts = {name: x.repeat_interleave(5, 0) for name, x in own.items()}
    population = Population(draw(40, 1), starts)
    for coupling, heard in (("ot", False), ("training", True)):
        Flow(SYM, "geometric", coupling, architecture=SMALL).fit(population, QUICK)  # type: ignore[arg-type]
        assert ("these 40 networks have 8 different starts" in caplog.text) == heard


def test_samples_say_where_they_began_and_how_they_were_made() -> None:
    flow = Flow(SYM, "euclidean", architecture=SMALL, conditions=["task", "pair"]).fit(trained(64), QUICK)
    starts = draw(6, 9)
    pair = torch.tensor([0.2, 0.7])
    samples = flow.sample(6, 3, "euler", noise=0.1, condition={"task": 1, "pair": pair}, starts=starts, batch_size=4)
    assert samples.starts is not None and states.allclose(samples.starts, starts)
    assert samples.labels["task"].tolist() == [1.0] * 6 and torch.equal(samples.labels["pair"], pair.expand(6, 2))
    assert samples.about["flow"] == {"geometry": "euclidean", "coupling": "training", "predict": "velocity"}
    assert (samples.about["steps"], samples.about["method"], samples.about["noise"]) == (3, "euler", 0.1)
    assert samples.about["guidance"] is None
    condition = {"task": 0.0, "pair": pair}
    fresh, logs = flow.sample_with_log_prob(3, 2, condition=condition, generator=_seeded(0))
    assert fresh.starts is not None and states.allclose(fresh.starts, flow.sampler.base.states(3, _seeded(0)))
    assert fresh.about["divergence"] == "hutchinson" and logs.shape == (3,)
    again = Flow(SYM, "euclidean", architecture=SMALL).fit(samples, QUICK)  # whose starts are known
    assert again.sampler.about == samples.about


def test_samples_that_diverge_are_refused() -> None:
    flow = Flow(SYM, "euclidean", architecture=SMALL).fit(trained(64), QUICK)
    split = Split(torch.randn(8, 3), torch.randint(2, (8,)))
    guidance = Guidance(MODEL, split, -1e38, scale="gradient")
    with pytest.raises(
        StateError, match="of 4 samples have NaN or infinite weights: take more steps, or less guidance"
    ):
        flow.sample(4, 16, guidance=guidance, generator=_seeded(0))
