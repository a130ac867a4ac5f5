"""`coset flow` on the digits and breast cancer: what it finds, what it refuses, and how it goes on."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from command_results import refuses, report
from rich.console import Console
from torch import Tensor
from typer.testing import Result

import coset
from coset import Architecture, data, zoo
from coset.cli.commands.flow.sample import read_conditions
from coset.cli.console import Display, PartsListener, open_display
from coset.core import state as states
from coset.core.checkpoint import save_state
from coset.core.resume import Stage
from coset.data import DataSet, Split
from coset.flow.coordinates import initial_base, space
from coset.populations.diversity import diversity
from coset.populations.model_averages import model_averages
from coset.populations.novelty import novelty
from coset.populations.pair_barriers import pair_barriers
from coset.populations.scores import scores

Run = Callable[..., Result]
NET = "mlp:30-4-2"
NETS, FLOW, SAMPLES = "nets.safetensors", "flow.safetensors", "samples.safetensors"
SMALL = ("--width", 16, "--depth", 1, "--heads", 2, "--epochs", 2, "--batch-size", 8)


def collect(run: Run, *more: object, output: str = NETS) -> Result:
    words = ("--model", NET, "--data", "breast-cancer", "--runs", 12, "--epochs", 1, "-o", output, "--overwrite")
    return run("flow", "collect", *words, *more)


def fit(run: Run, *more: object) -> Result:
    return run("flow", "fit", NETS, "-o", FLOW, "--overwrite", *SMALL, *more)


def sample(run: Run, *more: object) -> Result:
    return run("flow", "sample", FLOW, "-n", 6, "-o", SAMPLES, "--overwrite", "--steps", 2, *more)


def evaluate(run: Run, *more: object) -> Result:
    return run("flow", "evaluate", SAMPLES, "--data", "breast-cancer", *more)


def population(count: int = 12, seed: int = 0, spec: str = NET) -> coset.Population:
    """Random networks, with starts and labels, that say of which model they are."""
    generator = torch.Generator().manual_seed(seed)
    like = states.of(zoo.build(spec))
    tensors = [{name: torch.randn(count, *x.shape, generator=generator) for name, x in like.items()} for _ in range(2)]
    labels = {"loss": torch.rand(count, generator=generator), "pair": torch.rand(count, 2, generator=generator)}
    return coset.Population(*tensors, labels, {"model": spec, "arguments": None, "inputs": []})


@pytest.fixture(scope="module")
def learned() -> coset.Flow:
    """A flow of almost nothing, with a condition of one number and one of two."""
    flow = coset.Flow(symmetry(), architecture=Architecture(width=16, depth=1, heads=2), conditions=["loss", "pair"])
    return flow.fit(population(), coset.Matching(epochs=1, batch_size=8))


@pytest.fixture
def nets(folder: Path) -> coset.Population:
    networks = population()
    networks.save(folder / NETS)
    return networks


@pytest.fixture
def flow(learned: coset.Flow, folder: Path) -> coset.Flow:
    learned.save(folder / FLOW)
    return learned


@cache
def symmetry() -> coset.Symmetry:
    model = zoo.build(NET)
    return coset.symmetry(model, zoo.example_input(model))


@pytest.fixture(scope="module")
def hostile(learned: coset.Flow, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a population and a flow, and files that are not what a command wants."""
    folder, nets = tmp_path_factory.mktemp("hostile"), population()
    nets.save(folder / NETS)
    learned.save(folder / FLOW)
    save_state(states.of(zoo.build(NET)), folder / "net.safetensors")
    population(spec="mlp:30-5-2").save(folder / "other.safetensors")
    nets[:0].save(folder / "none.safetensors")
    coset.Population(nets.states, nets.starts).save(folder / "nameless.safetensors")
    coset.Population(nets.states, None, nets.labels, nets.about).save(folder / "startless.safetensors")
    (folder / "broken.safetensors").write_bytes((folder / NETS).read_bytes()[:-8])
    nets.states["layers.0.bias"][0, 0] = torch.nan  # after it was checked
    nets.save(folder / "nan.safetensors")
    return folder


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_four_commands_give_what_the_library_gives(run: Run, folder: Path) -> None:
    trained = report(collect(run, "--seed", 3, "--chunk", 8, "--json"))
    model, sets = zoo.build(NET), data.load("breast-cancer")
    sym = symmetry()
    starts = initial_base(model, space(sym, states.of(model), "euclidean")).states
    ours = coset.collect(model, sets.train, 12, coset.Collect(epochs=1, chunk=8), draw=starts, seed=3)
    theirs = coset.Population.load(folder / NETS)
    assert same(ours.states, theirs.states) and same(ours.starts or {}, theirs.starts or {})
    assert theirs.about["model"] == NET and theirs.about["data"] == "breast-cancer" and theirs.about["seed"] == 3
    assert theirs.about["data_digest"] == ours.about["data"] and theirs.about["settings"] == trained["settings"]
    assert (trained["networks"], trained["left_out"], trained["first_epoch"]) == (12, 0, 1)
    assert trained["labels"]["loss"]["mean"] == pytest.approx(float(ours.labels["loss"].double().mean()))

    learned = report(fit(run, "--data", "breast-cancer", "--geometry", "geometric", "--seed", 1, "--json"))
    plan = coset.Flow(sym, "geometric", architecture=Architecture(width=16, depth=1, heads=2))
    plan.fit(ours, coset.Matching(epochs=2, batch_size=8), model=model, data=sets.train, seed=1)
    expected = coset.Flow.load(folder / FLOW).sample(6, 2, generator=torch.Generator().manual_seed(4)).states
    assert same(expected, plan.sample(6, 2, generator=torch.Generator().manual_seed(4)).states)
    assert learned["plan"]["geometry"] == "geometric" and learned["settings"]["epochs"] == 2
    assert (learned["networks"], learned["first_epoch"], learned["model"]) == (12, 1, NET)

    record = report(sample(run, "--seed", 4, "--json"))
    samples = coset.Population.load(folder / SAMPLES)
    assert same(samples.states, expected) and samples.starts is None and samples.labels == {}
    assert (record["networks"], record["method"], record["log_prob"]) == (6, "heun", None)

    collect(run, "--seed", 5, output="fresh.safetensors")
    fresh = coset.Population.load(folder / "fresh.safetensors")
    record = report(evaluate(run, "--against", NETS, "--fresh", "fresh.safetensors", "--seed", 2, "--json"))
    task = (samples.states, model, sets.test)
    mine = record["populations"]["samples"]
    assert {name: mine[name] for name in ("loss", "accuracy")} == json.loads(scores(*task).to_json())
    assert mine["averages"] == json.loads(model_averages(*task, seed=2).to_json())
    assert mine["diversity"] == json.loads(diversity(*task, seed=2).to_json())
    barriers = pair_barriers(samples.states, sym, model, sets.test, pairs=256, seed=2)
    assert mine["barriers"] == json.loads(barriers.to_json())
    news = novelty(samples.states, ours.states, sym, model, sets.test, fresh.states, seed=2)
    assert record["novelty"] == json.loads(news.to_json())
    assert [one["networks"] for one in record["populations"].values()] == [6, 12, 12]
    assert (record["model"], record["evaluated_on"]) == (NET, "test")


def test_tables(run: Run, folder: Path) -> None:
    table = collect(run).stdout
    assert (
        "Population(12 networks of 134 weights" in table and "training accuracy" in table and f"wrote {NETS}" in table
    )
    table = fit(run, "--set", "warm_up=1").stdout
    assert "geometric flow, coupling training" in table and "2 epochs" in table and f"wrote {FLOW}" in table
    assert "not learned from" not in table
    assert "on 2 networks that it has not learned from: " in fit(run, "--set", "unseen=2").stdout
    assert json.loads(fit(run, "--set", "unseen=2", "--json").stdout)["unseen"] > 0
    table = sample(run, "--log-prob").stdout
    assert "Population(6 networks of 134 weights, labels log_prob)" in table and "log density: mean" in table
    table = evaluate(run, "--against", NETS, "--fresh", NETS, "--html", "page.html", "--count", 4).stdout
    lines = {line.split()[0]: line.split() for line in table.splitlines()[2:5]}
    assert [lines[name][1] for name in ("samples", "training", "fresh")] == ["4", "4", "4"]
    assert "midpoints of aligned training networks" in table and "closest 1% of fresh runs" in table
    assert "data:image/svg+xml" in (folder / "page.html").read_text()
    assert "aligned" in evaluate(run, "--model", NET).stdout  # samples of a flow do not know their model


def test_starts(run: Run, folder: Path) -> None:
    model = zoo.build(NET)
    collect(run, "--start", "model", "--runs", 3)
    ours = coset.collect(model, data.load("breast-cancer").train, 3, coset.Collect(epochs=1))
    assert same(coset.Population.load(folder / NETS).starts or {}, ours.starts or {})
    collect(run, "--start-std", 0.5, "--runs", 200, "--set", "schedule=constant", "--every", 1)
    networks = coset.Population.load(folder / NETS)
    assert len(networks) > 200 and networks.about["settings"]["schedule"] == "constant"
    assert all(float(x.std()) == pytest.approx(0.5, rel=0.1) for x in (networks.starts or {}).values())


def test_a_stopped_collection_goes_on(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("--chunk", 4, "--start", "model", "--work", "work")
    collect(run, *words[:4], output="whole.safetensors")
    epoch = coset.populations.chunk.Chunk.epoch
    calls: list[int] = []

    def stopped(self: Any) -> list[tuple[float, float | None]]:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return epoch(self)

    with monkeypatch.context() as patch:
        patch.setattr("coset.populations.chunk.Chunk.epoch", stopped)
        result = collect(run, *words)
    assert result.exit_code == 130 and result.stdout == "" and "Traceback" not in result.stderr
    assert "stopped: the same command goes on in --work" in result.stderr and not (folder / NETS).exists()
    result = collect(run, *words)
    assert "part 2 of 3, epoch 1 of 1, step 1 of 3, resumed" in result.stderr
    one, two = (coset.Population.load(folder / name) for name in ("whole.safetensors", NETS))
    assert same(one.states, two.states) and same(one.labels, two.labels)
    assert report(collect(run, *words, "--json"))["first_epoch"] is None
    refuses(collect(run, *words, "--seed", 1), "work", "another seed (0, not 1)")


def test_a_stopped_fit_goes_on(run: Run, folder: Path, nets: coset.Population, monkeypatch: pytest.MonkeyPatch) -> None:
    fit(run, "--epochs", 3)
    whole = coset.Flow.load(folder / FLOW).sample(2, 2, generator=torch.Generator().manual_seed(0)).states
    (folder / FLOW).unlink()
    log = coset.core.resume.Stage.log

    def stopped(self: Any, line: dict[str, Any]) -> None:
        if line["epoch"] == 3:
            raise KeyboardInterrupt
        log(self, line)

    words = ("--epochs", 3, "--work", "work", "--checkpoint-seconds", 0)
    with monkeypatch.context() as patch:
        patch.setattr("coset.core.resume.Stage.log", stopped)
        result = fit(run, *words)
    assert result.exit_code == 130 and not (folder / FLOW).exists()
    assert "stopped: the same command goes on in --work" in result.stderr
    result = fit(run, *words)
    assert "epoch 3 of 3, resumed" in result.stderr
    again = coset.Flow.load(folder / FLOW).sample(2, 2, generator=torch.Generator().manual_seed(0)).states
    assert same(whole, again)
    refuses(fit(run, *words, "--rate", 1), "work", "another rate")


def test_whoever_stops_without_a_folder_hears_of_one(
    run: Run, folder: Path, nets: coset.Population, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("coset.flow.flow.learn", stopped)
    result = fit(run)
    assert result.exit_code == 130 and "stopped: with --work FOLDER it could go on" in result.stderr


def test_steps_of_long_epochs_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[tuple[str, float]] = []
    notes: list[str] = []

    class Recorder(Display):
        def show(self, text: str, done: float = 0.0, total: float | None = None) -> None:
            events.append((text, done))
            assert total == 6

        def note(self, text: str) -> None:
            notes.append(text)

    watch = PartsListener(Recorder(), 2, 3)
    watch(coset.Event(2, 24, "step"))
    watch(coset.Event(3, 24, "step"))  # too soon to be seen
    monkeypatch.setattr("coset.cli.console.MOMENT", 0.0)
    watch(coset.Event(3, 24, "step"))
    watch(coset.Event(1, 3, "epoch", epoch=coset.Epoch(0, 1, 3, 0.5, None, 1.0)))
    watch(coset.Event(18, 24, "step"))
    assert notes == ["part 1 of 2, epoch 1 of 3, step 2 of 4, resumed"]
    assert events == [
        ("part 1 of 2, epoch 1 of 3, step 2 of 4", 0.5),
        ("part 1 of 2, epoch 1 of 3, step 3 of 4", 0.75),
        ("part 1 of 2, epoch 1 of 3, loss 0.5000", 1),
        ("part 2 of 2, epoch 2 of 3, step 2 of 4, loss 0.5000", 4.5),
    ]


@pytest.mark.parametrize("more", [("--noise", 0.1), ("--log-prob",), ("--guide", "breast-cancer")])
def test_a_stopped_sampling_goes_on(
    run: Run, folder: Path, nets: coset.Population, monkeypatch: pytest.MonkeyPatch, more: tuple[object, ...]
) -> None:
    monkeypatch.setattr("coset.cli.network_sampler.ON_CPU", 4)
    fit(run)
    report(sample(run, *more, "-n", 10, "--json"))
    whole = coset.Population.load(folder / SAMPLES)
    (folder / SAMPLES).unlink()
    finish, work = Stage.finish, ("--work", "work", *more)

    def stopped(self: Stage, write: Callable[[Path], object]) -> None:
        if self.result == "samples-00002.safetensors":
            raise KeyboardInterrupt
        finish(self, write)

    with monkeypatch.context() as patch:
        patch.setattr(Stage, "finish", stopped)
        result = sample(run, *work, "-n", 10)
    assert result.exit_code == 130 and not (folder / SAMPLES).exists()
    assert "stopped: the same command goes on in --work" in result.stderr
    assert "8 networks sampled before" in sample(run, *work, "-n", 10).stdout
    networks = coset.Population.load(folder / SAMPLES)
    assert same(networks.states, whole.states) and same(networks.labels, whole.labels)
    assert report(sample(run, *work, "-n", 10, "--json"))["networks_per_second"] is None
    assert report(sample(run, *work, "-n", 17, "--json"))["networks_read"] == 8  # the third batch had fewer networks
    assert same(coset.Population.load(folder / SAMPLES)[:8].states, whole[:8].states)


def test_batches_of_other_samples_are_refused(run: Run, folder: Path, nets: coset.Population) -> None:
    fit(run)
    work = ("--work", "work", "--json")
    report(sample(run, *work))
    refuses(sample(run, *work, "--seed", 1), "work", "another seed (0, not 1)", "choose another folder")
    refuses(sample(run, *work, "--steps", 3), "work", "another steps (2, not 3)")
    fit(run, "--seed", 1)
    refuses(sample(run, *work), "work", "another flow")
    (part,) = (folder / "work").glob("*.safetensors")
    fit(run)
    nets.save(part)
    refuses(sample(run, *work), part.name, "no samples of this command")
    part.write_bytes(part.read_bytes()[:100])
    refuses(sample(run, *work), part.name)
    (folder / "work" / "samples.json").unlink()
    refuses(sample(run, *work), part.name, "of no run")
    (folder / "file").write_text("")
    refuses(sample(run, "--work", "file", "--json"), "file")


def test_samples_are_asked_for(run: Run, folder: Path, flow: coset.Flow) -> None:
    words = ("--condition", "loss=0.5", "--condition", "pair=0.25,-1e-1")
    record = report(sample(run, *words, "--method", "euler", "--noise", 0.1, "--json"))
    assert record["condition"] == {"loss": [0.5], "pair": [0.25, -0.1]}
    conditions = {"loss": 0.5, "pair": torch.tensor([0.25, -0.1])}
    ours = flow.sample(6, 2, "euler", noise=0.1, condition=conditions, generator=torch.Generator().manual_seed(0))
    assert states.allclose(coset.Population.load(folder / SAMPLES).states, ours.states)
    refuses(sample(run, "--condition", "loss=0.5"), "'loss', 'pair'")
    for word in ("loss", "loss=", "loss=a", "=1", "loss=nan", "loss=1,,2"):
        refuses(sample(run, "--condition", word), repr(word), "NAME=NUMBER")
    refuses(sample(run, "--condition", "loss=1", "--condition", "loss=2"), "twice")
    assert read_conditions(["a=1", "b=2,3"]) == {"a": [1.0], "b": [2.0, 3.0]}


def test_densities_guidance_and_widths(run: Run, folder: Path, nets: coset.Population) -> None:
    fit(run)
    record = report(sample(run, "--log-prob", "--exact", "--json"))
    networks = coset.Population.load(folder / SAMPLES)
    ours = coset.Flow.load(folder / FLOW).log_prob(networks.states, 2, divergence="exact")
    # Two steps lead back only nearly to the start.
    assert torch.allclose(networks.labels["log_prob"], ours, rtol=0.02) and record["method"] == "rk4"
    assert record["log_prob"]["mean"] == pytest.approx(float(networks.labels["log_prob"].mean()))

    train = data.load("breast-cancer").train
    losses = []
    for strength in (0, 3):
        words = ("--guide", "breast-cancer", "--strength", strength, "--json")
        assert report(sample(run, *words))["strength"] == strength
        losses.append(scores(coset.Population.load(folder / SAMPLES).states, zoo.build(NET), train).losses.mean)
    assert losses[1] < 0.9 * losses[0]
    assert report(evaluate(run, "--json"))["model"] == NET

    wide = "mlp:30-7-2"
    assert report(sample(run, "--width-of", wide, "--json"))["model"] == wide
    assert coset.Population.load(folder / SAMPLES).states["layers.0.weight"].shape == (6, 7, 30)
    assert report(evaluate(run, "--json"))["model"] == wide


def test_a_single_network_and_a_regression(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.linspace(-2, 2, 40).unsqueeze(1)
    split = Split(x, (3 * x).sin())
    sets = DataSet("snelson", split, split, None, None, None)
    monkeypatch.setattr("coset.data.load", lambda *args, **kwargs: sets)
    words = ("--model", "mlp:1-3-1", "--data", "snelson", "--runs", 1, "--epochs", 1)
    table = run("flow", "collect", *words, "-o", NETS).stdout
    assert "training loss" in table and "accuracy" not in table.replace("labels run, loss, accuracy", "")
    record = report(run("flow", "evaluate", NETS, "--data", "snelson", "--noise", 0.5, "--json"))
    one = record["populations"]["samples"]
    assert (one["accuracy"], one["diversity"], one["barriers"]) == (None, None, None)
    ours = scores(coset.Population.load(folder / NETS).states, zoo.build("mlp:1-3-1"), split, 0.5)
    assert one["loss"]["mean"] == pytest.approx(ours.losses.mean)
    assert "accuracy" not in run("flow", "evaluate", NETS, "--data", "snelson").stdout


def test_a_model_of_my_own(run: Run, folder: Path) -> None:
    (folder / "cli_own.py").write_text("from torch import nn\ndef make(n):\n    return nn.Linear(30, n)\n")
    words = ("--model", "cli_own:make", "--args", '{"n": 2}', "--input", "2x30", "--data", "breast-cancer")
    refuses(run("flow", "collect", *words[:4], *words[6:], "--runs", 3, "-o", NETS), "--input")
    assert run("flow", "collect", *words, "--runs", 3, "--epochs", 1, "-o", NETS).exit_code == 0
    refuses(run("flow", "evaluate", NETS, *words[6:]), NETS, "cli_own:make", "--model")  # its code may be anybody's
    record = report(run("flow", "evaluate", NETS, *words, "--json"))
    assert record["model"] == "cli_own:make" and record["populations"]["samples"]["networks"] == 3


def test_a_bar_counts_the_epochs_of_all_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(
        "coset.cli.console.Console", lambda **kwargs: Console(file=screen, force_terminal=True, width=100, **kwargs)
    )
    with open_display() as display:
        PartsListener(display, 2, 4)(coset.Event(3, 4, "epoch", epoch=coset.Epoch(1, 3, 4, 0.5, None, 0.1)))
    assert "part 2 of 2, epoch 3 of 4, resumed" in screen.getvalue()
    assert "loss 0.5000" in screen.getvalue() and " 88%" in screen.getvalue()  # seven of eight


COLLECT = ("collect", "--model", NET, "--data", "breast-cancer", "--runs", 2, "-o", "new.safetensors", "--work", "new")
FIT = ("fit", NETS, "-o", "new.safetensors", "--work", "new", *SMALL)
SAMPLE = ("sample", FLOW, "-o", "new.safetensors", "-n", 3, "--steps", 1)
ASKED = (*SAMPLE, "--condition", "loss=1", "--condition", "pair=1,1")
EVALUATE = ("evaluate", NETS, "--data", "breast-cancer")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ((*COLLECT, "--model", "mlpp:30-4-2"), ["'mlpp:30-4-2'"]),
        ((*COLLECT, "--model", "mlp:31-4-2"), ["(2, 30)"]),
        ((*COLLECT, "--model", "mlp:30-4-1"), ["0 to 1", "0 to 0"]),
        ((*COLLECT, "--data", "breast"), ["'breast'"]),
        ((*COLLECT, "--optimizer", "adm"), ["adam or sgd", "did you mean adam?"]),
        ((*COLLECT, "--epochs", 0), ["epochs", "positive"]),
        ((*COLLECT, "--skip", 1), ["every"]),
        ((*COLLECT, "--set", "warm=1"), ["warm", "collect has no such setting"]),
        ((*COLLECT, "--start", "zero"), ["--start", "'zero'"]),
        ((*COLLECT, "--start-std", 0), ["--start-std", "positive"]),
        ((*COLLECT, "--start", "model", "--start-std", 1), ["--start-std", "leave it out"]),
        ((*COLLECT, "--rate", 1e30), ["diverged"]),
        ((*COLLECT, "--device", "meta"), ["--device meta"]),
        ((*COLLECT, "-o", "new.pt"), ["new.pt", ".safetensors"]),
        ((*COLLECT, "-o", "no/new.safetensors"), ["no folder no"]),
        (("fit", "absent.safetensors", *FIT[2:]), ["absent.safetensors"]),
        (("fit", "net.safetensors", *FIT[2:]), ["net.safetensors", "no population", "coset flow collect"]),
        (("fit", FLOW, *FIT[2:]), [FLOW, "a flow and not a population"]),
        (("fit", "broken.safetensors", *FIT[2:]), ["broken.safetensors", "not a complete safetensors file"]),
        (("fit", "nan.safetensors", *FIT[2:]), ["nan.safetensors", "layers.0.bias", "1 NaN"]),
        (("fit", "none.safetensors", *FIT[2:]), ["none.safetensors", "without any network"]),
        (("fit", "nameless.safetensors", *FIT[2:]), ["--model"]),
        ((*FIT, "-o", NETS), [NETS, "never overwritten"]),
        ((*FIT, "--model", "mlp:30-5-2"), [NETS, "layers.0.weight", "(4, 30)", "(5, 30)"]),
        ((*FIT, "--data", "digits"), ["(2, 1, 8, 8)"]),
        ((*FIT, "--args", "{}"), ["--model"]),
        ((*FIT, "--geometry", "round"), ["--geometry", "geometric", "'round'"]),
        ((*FIT, "--coupling", "otter"), ["--coupling", "'otter'"]),
        ((*FIT, "--network", "mlp"), ["--network", "relational", "'mlp'"]),
        ((*FIT, "--predict", "start"), ["--predict", "'start'"]),
        ((*FIT, "--width", 9), ["width", "heads"]),
        ((*FIT, "--conditions", "loss,task"), ["'task'", "'loss'", "'pair'"]),
        ((*FIT, "--rate", "0"), ["rate", "positive"]),
        (("fit", "startless.safetensors", *FIT[2:]), ["'training'", "'ot'"]),
        (("sample", NETS, *SAMPLE[2:]), [NETS, "a population and not a flow", "coset flow fit"]),
        (("sample", "net.safetensors", *SAMPLE[2:]), ["net.safetensors", "no flow"]),
        (("sample", "absent.safetensors", *SAMPLE[2:]), ["absent.safetensors"]),
        (SAMPLE, ["conditioned on 'loss', 'pair'"]),
        ((*ASKED, "-o", FLOW), ["never overwritten"]),
        ((*ASKED, "--method", "simpson"), ["'simpson'", "heun"]),
        ((*ASKED, "--guide", "digits", "--model", NET), ["(2, 1, 8, 8)"]),
        ((*ASKED, "--strength", 2), ["--strength", "--guide"]),
        ((*ASKED, "--exact"), ["--exact", "--log-prob"]),
        ((*ASKED, "--log-prob", "--noise", 0.1), ["--log-prob", "--noise"]),
        ((*ASKED, "--noise", -1), ["--noise"]),
        ((*ASKED, "--model", "mlp:30-5-2"), [FLOW, "layers.0.weight"]),
        ((*ASKED, "--model", NET, "--width-of", NET), ["--width-of"]),
        ((*ASKED, "--width-of", "mlp:30-4-4-2"), ["another architecture"]),
        ((*ASKED, "--device", "meta"), ["--device meta"]),
        (("evaluate", FLOW, *EVALUATE[2:]), [FLOW, "a flow and not a population"]),
        ((*EVALUATE, "--against", "net.safetensors"), ["net.safetensors", "no population"]),
        ((*EVALUATE, "--fresh", "other.safetensors"), ["other.safetensors", "(5, 30)"]),
        ((*EVALUATE, "--data", "digits"), ["(1, 1, 8, 8)"]),
        ((*EVALUATE, "--html", "new.htm"), ["new.htm", ".html"]),
        ((*EVALUATE, "--noise", 0), ["--noise"]),
        (("evaluate", "nameless.safetensors", *EVALUATE[2:]), ["--model"]),
    ],
)
def test_mistakes(
    run: Run, hostile: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[object, ...], parts: list[str]
) -> None:
    monkeypatch.chdir(hostile)
    before = {path: path.stat().st_mtime_ns for path in hostile.rglob("*")}
    refuses(run("flow", *words), *parts)
    assert {path: path.stat().st_mtime_ns for path in hostile.rglob("*")} == before


@pytest.mark.parametrize("name", ["collect", "fit", "sample", "evaluate"])
def test_help_has_an_example(run: Run, name: str) -> None:
    result = run("flow", name, "--help")
    assert result.exit_code == 0 and f"Example: coset flow {name}" in " ".join(result.stdout.split())
