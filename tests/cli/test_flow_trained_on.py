"""Commands on populations that know what they were trained on, and what a page, a table and a refusal say of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.colors import to_hex
from typer.testing import Result

import coset
from coset import data, zoo
from coset import state as states
from coset.cli import console
from coset.cli.flow_figure import spreads
from coset.cli.flow_files import noise_of, split_of, trained_on
from coset.cli.flow_measure import Measured
from coset.data import DataSet, Split
from coset.populations.ensembling import Averages
from coset.populations.novelty import Closeness, Novelty
from coset.populations.scores import Scores

Run = Callable[..., Result]
NET, UCI = "mlp:13-3-1", "uci/boston"
SMALL = ("--width", 16, "--depth", 1, "--heads", 2, "--epochs", 1, "--batch-size", 4)
COLLECT = ("flow", "collect", "--runs", 6, "--epochs", 1, "-o", "nets.safetensors")
FIT = ("flow", "fit", "nets.safetensors", "-o", "flow.safetensors", *SMALL)
SAMPLE = ("flow", "sample", "flow.safetensors", "-n", 4, "--steps", 1, "-o", "samples.safetensors")
EVALUATE = ("flow", "evaluate", "samples.safetensors")


def report(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def complaint(result: Result) -> str:
    assert result.exit_code == 2, result.stdout
    lines = [line for line in result.stderr.splitlines() if not line.endswith(" ...")]
    assert len(lines) == 1 and lines[0].startswith("error: "), result.stderr
    return lines[0]


@pytest.fixture
def uci() -> None:
    try:
        data.load(UCI)
    except coset.CosetError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("folder", "uci")
def test_the_split_of_the_training_is_that_of_all_commands(run: Run) -> None:
    run(*COLLECT, "--model", NET, "--data", UCI, "--split", 3, "--set", "noise=0.3")
    assert report(run(*FIT, "--data", UCI, "--json"))["split"] == 3
    assert report(run(*SAMPLE, "--json"))["split"] is None
    found = report(run(*EVALUATE, "--data", UCI, "--json"))
    assert (found["split"], found["noise"]) == (3, 0.3)
    result = run(*EVALUATE, "--data", UCI, "--against", "nets.safetensors", "--html", "page.html")
    assert f"test split of {UCI}, number 3" in result.stdout and "averaged rmse" in result.stdout
    assert "the noise of the targets is 0.3" in result.stdout and "warning" not in result.stderr
    text = Path("page.html").read_text()
    assert f"test split of {UCI}, number 3" in text and "the noise of the targets is 0.3" in text
    other = run(*EVALUATE, "--data", UCI, "--split", 1, "--noise", 2, "--json")
    assert (report(other)["split"], report(other)["noise"]) == (1, 2.0)
    assert f"warning: samples.safetensors was trained on split 3 of {UCI}" in other.stderr
    assert report(run(*SAMPLE, "--guide", UCI, "--json"))["split"] == 3
    assert report(run(*SAMPLE, "--guide", UCI, "--split", 2, "--json"))["split"] == 2
    assert "--split is that of guidance" in complaint(run(*SAMPLE, "--split", 2))


def test_what_is_known_of_training() -> None:
    nets = {"data": "a", "split": 3, "settings": {"noise": 0.5}, "seed": 1}
    samples = {"seed": 2, "trained": trained_on(nets)}
    assert trained_on(samples) == trained_on(nets) == {"data": "a", "split": 3, "settings": {"noise": 0.5}}
    assert split_of(None, "a", {}, samples) == 3 and split_of(1, "a", nets) == 1
    assert split_of(None, "b", nets) is None and split_of(None, None, nets) is None
    assert noise_of(None, {}, samples) == 0.5 and noise_of(2.0, nets) == 2.0 and noise_of(None, {}) == 1.0


@pytest.mark.usefixtures("folder")
def test_a_page_says_which_examples_it_is_about(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    split = Split(torch.randn(20, 1), torch.randn(20, 1))
    sets = DataSet("snelson", split, Split(split.inputs, split.targets * torch.nan), None, None, None)
    monkeypatch.setattr(data, "load", lambda *given, **more: sets)
    run(*COLLECT, "--model", "mlp:1-3-1", "--data", "snelson")
    run("flow", "evaluate", "nets.safetensors", "--data", "snelson", "--html", "page.html")
    text = Path("page.html").read_text()
    assert "on the train split of snelson" in text and "no test targets" in text


def test_a_population_has_one_colour() -> None:
    x = torch.linspace(0, 1, 5, dtype=torch.float64)
    measured = Measured(5, Scores(x, x), Averages(()), None, None)
    kinds = {kind: Closeness(x, x.long(), None) for kind in ("samples", "fresh", "among", "midpoints", "noisy")}
    figure = spreads(dict.fromkeys(("samples", "training", "fresh"), measured), Novelty(kinds, True, 0.1))
    left, right = ({str(line.get_label()): to_hex(line.get_color()) for line in axes.lines} for axes in figure.axes)
    assert left == {
        "samples": right["samples"],
        "training": right["training networks, themselves left out"],
        "fresh": right["fresh runs"],
    }
    assert len(set(right.values())) == 5


@pytest.mark.parametrize("width", [20, 80, 100, 200])
def test_numbers_and_names_are_never_cut(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    columns = ("name", *(f"the number {k}" for k in range(8)))
    rows = [("samples", *["123456.7891"] * 8), ("a" * 60, *["1"] * 8)]
    console.stdout().print(console.table("A table", columns, rows, numbers=columns[1:]))
    shown = capsys.readouterr().out
    assert "…" not in shown and shown.count("123456.7891") == 8 and "samples" in shown
    assert "".join(re.findall("^a+", shown, re.MULTILINE)) == "a" * 60


def nets(folder: Path, name: str = "nets", spec: str = "mlp:30-4-2") -> coset.Population:
    generator = torch.Generator().manual_seed(0)
    like = states.of(zoo.build(spec))
    made = [{key: torch.randn(6, *x.shape, generator=generator) for key, x in like.items()} for _ in range(2)]
    labels = {"loss": torch.rand(6, generator=generator)}
    found = coset.Population(*made, labels, {"model": spec, "arguments": None, "inputs": []})
    found.save(folder / f"{name}.safetensors")
    return found


def test_a_folder_of_another_flow_is_refused_by_what_was_asked(run: Run, folder: Path) -> None:
    nets(folder)
    run(*FIT, "--work", "work")
    for option, value, word in (("--geometry", "euclidean", "geometry"), ("--depth", 2, "depth")):
        assert f"another {word} (" in complaint(run(*FIT, "--work", "work", option, value))
    assert "another conditions" in complaint(run(*FIT, "--work", "work", "--conditions", "loss"))
    assert "name one twice" in complaint(run(*FIT, "--conditions", "loss,loss"))


def test_weights_that_are_too_large(run: Run, folder: Path) -> None:
    found = nets(folder)
    found.states["layers.0.weight"][4] *= 1e25
    found.save(folder / "nets.safetensors")
    said = complaint(run("flow", "evaluate", "nets.safetensors", "--data", "breast-cancer"))
    assert "'layers.0.weight' of network 4" in said and "leave that network out" in said


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB."),
        MemoryError(),
    ],
)
def test_too_little_memory(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fails(*given: Any, **more: Any) -> None:
        raise error

    nets(folder)
    monkeypatch.setattr("coset.cli.flow_measure.scores", fails)
    words = ("flow", "evaluate", "nets.safetensors", "--data", "breast-cancer")
    assert "too little memory" in complaint(run(*words))
    monkeypatch.setattr("coset.cli.flow_measure.scores", lambda *given: 1 / 0)
    assert isinstance(run(*words).exception, ZeroDivisionError)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no folder in which nobody can write")
def test_outputs_are_tried_before_the_work(run: Run, folder: Path) -> None:
    nets(folder)
    result = run("flow", "fit", "nets.safetensors", "-o", "/proc/flow.safetensors", *SMALL)
    assert "cannot be written" in complaint(result) and "learning" not in result.stderr


def test_damaged_files_of_work_say_how_to_go_on(run: Run, folder: Path) -> None:
    nets(folder)
    words = (*COLLECT, "--model", "mlp:30-4-2", "--data", "breast-cancer", "--work", "work")
    run(*words)
    part = folder / "work" / "chunk-00000.safetensors"
    part.write_bytes(part.read_bytes()[:50])
    assert "Remove it to train that chunk again" in complaint(run(*words))
    run(*FIT)
    run(*SAMPLE, "--work", "batches")
    batch = folder / "batches" / "samples-00000.safetensors"
    batch.write_bytes(batch.read_bytes()[:50])
    assert "Remove it to sample that batch again" in complaint(run(*SAMPLE, "--work", "batches"))
    words = ("flow", "evaluate", "nets.safetensors", "--data", "breast-cancer", "--work", "measured")
    run(*words)
    file = next((folder / "measured").glob("measured-scores-*.json"))
    record = json.loads(file.read_text())
    file.write_text(json.dumps({**record, "value": {"other": 1}}))
    assert "holds something else: remove it" in complaint(run(*words))
