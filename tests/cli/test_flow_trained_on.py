"""Commands on populations that know what they were trained on, and what a page says of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from flow_populations import SMALL, Run, complaint, report
from matplotlib.colors import to_hex

import coset
from coset import data
from coset.cli.population_evaluator import PopulationQuality
from coset.cli.population_figure import spreads
from coset.cli.population_files import noise_of, split_of, trained_on
from coset.data import DataSet, Split
from coset.populations.model_averages import ModelAverages
from coset.populations.novelty import Closeness, Novelty
from coset.populations.scores import Scores

NET, UCI = "mlp:13-3-1", "uci/boston"
COLLECT = ("flow", "collect", "--runs", 6, "--epochs", 1, "-o", "nets.safetensors", "--overwrite")
FIT = ("flow", "fit", "nets.safetensors", "-o", "flow.safetensors", "--overwrite", *SMALL)
SAMPLE = ("flow", "sample", "flow.safetensors", "-n", 4, "--steps", 1, "-o", "samples.safetensors", "--overwrite")
EVALUATE = ("flow", "evaluate", "samples.safetensors")


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
    record = report(run(*EVALUATE, "--data", UCI, "--json"))
    assert (record["split"], record["noise"]) == (3, 0.3)
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
    assert trained_on({"trained": 3}) == {} and noise_of(None, {"settings": 3}) == 1.0  # files may say anything
    assert noise_of(None, {}, samples) == 0.5 and noise_of(2.0, nets) == 2.0 and noise_of(None, {}) == 1.0


@pytest.mark.usefixtures("folder")
def test_a_page_says_which_examples_it_is_about(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    split = Split(torch.randn(20, 1), torch.randn(20, 1))
    sets = DataSet("snelson", split, Split(split.inputs, split.targets * torch.nan), None, None, None)
    monkeypatch.setattr(data, "load", lambda *args, **more: sets)
    run(*COLLECT, "--model", "mlp:1-3-1", "--data", "snelson")
    run("flow", "evaluate", "nets.safetensors", "--data", "snelson", "--html", "page.html")
    text = Path("page.html").read_text()
    assert "on the train split of snelson" in text and "no test targets" in text


def test_a_population_has_one_colour() -> None:
    x = torch.linspace(0, 1, 5, dtype=torch.float64)
    measured = PopulationQuality(5, Scores(x, x), ModelAverages(()), None, None)
    kinds = {kind: Closeness(x, x.long(), None) for kind in ("samples", "fresh", "among", "midpoints", "noisy")}
    figure = spreads(dict.fromkeys(("samples", "training", "fresh"), measured), Novelty(kinds, True, 0.1))
    left, right = ({str(line.get_label()): to_hex(line.get_color()) for line in axes.lines} for axes in figure.axes)
    assert left == {
        "samples": right["samples"],
        "training": right["training networks, themselves left out"],
        "fresh": right["fresh runs"],
    }
    assert len(set(right.values())) == 5
