"""`coset curve`, and `coset barrier` of what it finds, on the digits: results, refusals, and how it goes on."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from command_results import refuses, report
from rich.console import Console
from torch import Tensor
from typer.testing import Result

import coset
from coset import Epoch, data, zoo
from coset.cli import console
from coset.cli.commands.curve import SearchListener
from coset.cli.curve_search import CurveSearch
from coset.cli.model import ModelSpec
from coset.core import state as states
from coset.core.checkpoint import load_state, save_state
from coset.data import DataSet, Split
from coset.data.dataset import Standardization

Run = Callable[..., Result]
NET = "mlp:64-8-10"
DIGITS = ("--model", NET, "--data", "digits")
ENDS = ("a.safetensors", "b.safetensors")
CURVE = "search/curve.safetensors"
NORM = """
from torch import nn
def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))
"""
TIED = """
from torch import nn
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(64, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.last = nn.Linear(8, 10)
        self.third.weight = self.second.weight
    def forward(self, x):
        x = self.second(self.first(x.flatten(1)).relu()).relu()
        return self.last(self.third(x).relu())
"""


@pytest.fixture(scope="module")
def trained() -> list[dict[str, Tensor]]:
    solutions = coset.fit(zoo.build(NET), data.load("digits").train, coset.MAP(epochs=6, rate=0.01), replicas=2)
    return [q.mean for q in solutions]


@pytest.fixture
def pair(folder: Path, trained: list[dict[str, Tensor]]) -> list[coset.Dirac]:
    """a.safetensors and b.safetensors in the current folder."""
    solutions = [coset.Dirac(state) for state in trained]
    for q, name in zip(solutions, ENDS, strict=True):
        q.save(folder / name)
    return solutions


@pytest.fixture
def curve(folder: Path, pair: list[coset.Dirac]) -> coset.Bezier:
    """A curve in a file of the current folder."""
    (folder / "search").mkdir()
    result = coset.Bezier(pair[0], pair[0], pair[1])
    result.save(folder / CURVE)
    return result


def find(run: Run, *more: object, net: tuple[str, ...] = DIGITS, out: str = "search") -> Result:
    return run("curve", *ENDS, *net, "-o", out, *more)


def stopped(*args: object) -> None:
    raise KeyboardInterrupt


def same(curve: coset.paths.Curve, expected: coset.paths.Curve) -> bool:
    pairs = list(zip(curve.points, expected.points, strict=True))
    return all(torch.equal(p.mean[name], q.mean[name]) for p, q in pairs for name in q.mean)


def numbers(record: dict[str, Any], expected: coset.paths.Barrier) -> None:
    """The report of a path has the numbers of the library."""
    accuracy = expected.accuracy or ()
    assert record["loss"] == list(expected.loss) and record["height"] == expected.height
    assert record["accuracy"] == list(accuracy) and record["least_accuracy"] == min(accuracy)
    assert record["highest_loss"] == max(expected.loss)
    assert record["mean_accuracy"] == pytest.approx(sum(accuracy) / len(accuracy))


def test_the_curve_is_that_of_the_library(run: Run, folder: Path, pair: list[coset.Dirac]) -> None:
    words = ("--epochs", 2, "--rate", 0.05, "--batch-size", 100, "--bends", 2, "--shape", "chain", "--points", 5)
    record = report(find(run, *words, "--set", "weight_decay=0.001", "--seed", 3, "--json"))
    model, digits = zoo.build(NET), data.load("digits")
    settings = coset.Connect(epochs=2, rate=0.05, batch_size=100, bends=2, curve="chain", weight_decay=0.001)
    ours = coset.find_curve(*pair, model, digits.train, method=settings, seed=3)
    theirs = coset.load_curve(folder / CURVE)
    assert isinstance(theirs, coset.Chain) and same(theirs, ours)
    numbers(record["curve"], coset.barrier(ours, model, digits.test, 5))
    line = coset.geodesic(ours.points[0], ours.points[-1])
    numbers(record["line"], coset.barrier(line, model, digits.test, 5))
    for row, name, q in zip(record["ends"], ENDS, pair, strict=True):
        scores = coset.evaluate(q, model, digits.test)
        assert (row["solution"], row["nll"], row["accuracy"]) == (name, scores.nll, scores.accuracy)
    assert record["settings"]["weight_decay"] == 0.001 and record["settings"]["attack"] is None
    assert (record["align"], record["pam"], record["robust"], record["repaired"]) == ("activations", None, None, False)
    assert (record["output"], record["epochs"], record["first_epoch"]) == (CURVE, 2, 1)
    assert record["evaluated_on"] == "test" and record["seconds"] > 0


def test_alignment_is_as_asked(run: Run, folder: Path, pair: list[coset.Dirac]) -> None:
    still = report(find(run, "--epochs", 1, "--points", 2, "--no-align", "--json"))
    assert still["align"] is None
    assert coset.wasserstein(coset.load_curve(folder / CURVE).points[-1], pair[1]) == 0
    aligned = report(find(run, "--epochs", 1, "--points", 2, "--align", "weights", "--json", out="weights"))
    assert aligned["align"] == "weights"
    model, digits = zoo.build(NET), data.load("digits")
    ours = coset.find_curve(*pair, model, digits.train, align="weights", method=coset.Connect(epochs=1))
    assert same(coset.load_curve(folder / "weights/curve.safetensors"), ours)
    assert still["ends"] == aligned["ends"]


def test_a_table_and_a_page(run: Run, folder: Path, pair: list[coset.Dirac]) -> None:
    result = find(run, "--epochs", 1, "--points", 3, "--html", "page.html")
    assert result.exit_code == 0, result.stderr
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[0] == f"Curve of {NET} on digits, 1 epoch"
    assert lines[1] == "path highest loss barrier (nats) mean accuracy least accuracy"
    assert lines[2].startswith("straight line ") and lines[3].startswith("curve ")
    scores = [coset.evaluate(q, zoo.build(NET), data.load("digits").test) for q in pair]
    ends = [f"{score.nll:.4f} ({score.accuracy:.2%})" for score in scores]
    assert lines[4] == f"ends: test loss {ends[0]} and {ends[1]}"
    assert lines[5] == "the second end was aligned to the first by activations"
    assert lines[6] == f"wrote {CURVE} and page.html"
    page = (folder / "page.html").read_text()
    assert "straight line" in page and "http" not in page.replace("http://www.w3.org", "")


def test_a_stopped_search_goes_on(
    run: Run, folder: Path, pair: list[coset.Dirac], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--epochs", 3, "--points", 3, "--checkpoint-seconds", 0)
    whole = report(find(run, *words, "--json", out="whole"))
    log = coset.core.resume.Stage.log

    def late(self: Any, line: dict[str, Any]) -> None:
        if line["epoch"] == 3:
            raise KeyboardInterrupt
        log(self, line)

    with monkeypatch.context() as patch:
        patch.setattr("coset.core.resume.Stage.log", late)
        result = find(run, *words)
    assert result.exit_code == 130 and result.stdout == ""
    assert "stopped: the same command goes on" in result.stderr and "Traceback" not in result.stderr
    assert "epoch 3 of 3, resumed" in find(run, *words).stderr
    assert same(coset.load_curve(folder / CURVE), coset.load_curve(folder / "whole/curve.safetensors"))
    again = report(find(run, *words, "--json"))
    assert again["first_epoch"] is None and whole["first_epoch"] == 1
    assert "nothing was trained" in find(run, *words).stdout
    for key in ("ends", "line", "curve"):
        assert again[key] == whole[key]
    refuses(find(run, "--epochs", 4), "another epochs (3, not 4)")
    refuses(find(run, *words, "--no-align"), "another align")


def test_pam(run: Run, folder: Path, pair: list[coset.Dirac]) -> None:
    words = ("--no-align", "--pam", "--epochs", 2, "--points", 2, "--set", "pam.epochs=2", "--set", "pam.samples=4")
    record = report(find(run, *words, "--json"))
    objectives = record["pam"]["objectives"]
    assert objectives == json.loads((folder / "search/pam.json").read_text())["objectives"]
    assert objectives == sorted(objectives, reverse=True) and len(objectives) == 3
    assert (record["pam"]["epochs"], record["pam"]["samples"], record["epochs"]) == (2, 4, 4)
    model, digits = zoo.build(NET), data.load("digits")
    pam, settings = coset.PAM(epochs=2, samples=4), coset.Connect(epochs=2)
    ours = coset.find_curve(*pair, model, digits.train, align=False, pam=pam, method=settings)
    assert same(coset.load_curve(folder / CURVE), ours)
    assert f"objective of PAM: {objectives[0]:.4f}, {objectives[1]:.4f}" in find(run, *words).stdout


def test_pam_goes_on_from_a_permutation_that_moves_nothing(
    run: Run, folder: Path, pair: list[coset.Dirac], monkeypatch: pytest.MonkeyPatch
) -> None:
    pair[0].save(folder / ENDS[1])
    words = ("--no-align", "--pam", "--epochs", 3, "--points", 2, "--set", "pam.epochs=1")
    with monkeypatch.context() as patch:
        patch.setattr("coset.paths.pam._Iterate.better_curve", stopped)
        assert find(run, *words).exit_code == 130
    assert (folder / "search/permutation-1.safetensors").exists()
    assert find(run, *words).exit_code == 0


def test_robust(run: Run, folder: Path, pair: list[coset.Dirac]) -> None:
    words = ("--robust", "--no-align", "--epochs", 1, "--points", 3, "--set", "attack.steps=2")
    record = report(find(run, *words, "--json"))
    model, digits = zoo.build(NET), data.load("digits")
    attack = coset.PGD(steps=2).in_units_of(digits)
    ours = coset.find_curve(*pair, model, digits.train, align=False, method=coset.Connect(epochs=1, attack=attack))
    assert same(coset.load_curve(folder / CURVE), ours)
    numbers(record["robust"]["curve"], coset.barrier(ours, model, digits.test, 3, attack=attack))
    line = coset.geodesic(*pair)
    numbers(record["robust"]["line"], coset.barrier(line, model, digits.test, 3, attack=attack))
    numbers(record["line"], coset.barrier(line, model, digits.test, 3))
    assert record["robust"]["curve"]["mean_accuracy"] < record["curve"]["mean_accuracy"]
    assert record["settings"]["attack"]["steps"] == 2
    assert "curve, attacked" in find(run, *words).stdout


def test_statistics_of_norms_are_recomputed(run: Run, folder: Path) -> None:
    (folder / "cli_norm.py").write_text(NORM)
    net = ("--model", "cli_norm:make", "--data", "digits")
    fitted = run("fit", *net, "--method", "map", "--replicas", 2, "--out", "run", "--set", "epochs=2")
    assert fitted.exit_code == 0, fitted.stderr
    for k, name in enumerate(ENDS):
        (folder / f"run/replica-{k}/solution.safetensors").rename(folder / name)
    record = report(find(run, "--epochs", 1, "--points", 3, "--json", net=net))
    model, digits, curve = ModelSpec("cli_norm:make").build(), data.load("digits"), coset.load_curve(folder / CURVE)
    expected = coset.barrier(curve, model, digits.test, 3, repair=digits.train)
    assert record["repaired"]
    numbers(record["curve"], expected)
    assert "statistics of norms were recomputed" in find(run, "--epochs", 1, "--points", 3, net=net).stdout
    words = ("barrier", CURVE, *net, "--points", 3)
    barriers = report(run(*words, "--json"))
    assert list(barriers) == ["straight line, repaired", "curve, repaired"]
    assert barriers["curve, repaired"]["loss"] == list(expected.loss)
    assert "statistics of norms were recomputed" in run(*words).stdout


def test_gaussians(run: Run, folder: Path, pair: list[coset.Dirac]) -> None:
    for q, name in zip(pair, ENDS, strict=True):
        coset.Gaussian(q.mean, {key: torch.full_like(x, 0.02) for key, x in q.mean.items()}).save(folder / name)
    refuses(find(run, "--pam"), "--pam", "a.safetensors", "Gaussian")
    refuses(find(run, "--robust"), "--robust", "a.safetensors", "Gaussian")
    assert not (folder / "search").exists()
    record = report(find(run, "--epochs", 1, "--points", 2, "--align", "auto", "--json"))
    assert record["curve"]["loss_error"][0] > 0
    assert all(isinstance(q, coset.Gaussian) for q in coset.load_curve(folder / CURVE).points)


def test_a_regression(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.linspace(-2, 2, 40).unsqueeze(1)
    scale = Standardization(torch.zeros(1), torch.tensor([2.5]))
    waves = DataSet("waves", Split(x, (3 * x).sin()), Split(x, (3 * x).sin()), None, scale, scale)
    monkeypatch.setattr("coset.data.load", lambda *args, **kwargs: waves)
    net = ("--model", "mlp:1-6-1", "--data", "waves")
    model = zoo.build("mlp:1-6-1")
    for q, name in zip(coset.fit(model, waves.train, coset.MAP(epochs=2), replicas=2), ENDS, strict=True):
        q.save(folder / name)
    result = find(run, "--epochs", 1, "--points", 3, net=net)
    assert result.exit_code == 0 and "accuracy" not in result.stdout and "times 2.5" in result.stdout
    record = report(find(run, "--epochs", 1, "--points", 3, "--json", net=net))
    curve = coset.load_curve(folder / CURVE)
    assert record["curve"]["loss"] == list(coset.barrier(curve, model, waves.test, 3).loss)
    assert record["curve"]["mean_accuracy"] is record["curve"]["least_accuracy"] is None
    refuses(find(run, "--robust", net=net, out="robust"), "targets are values")


def test_plain_checkpoints(run: Run, folder: Path) -> None:
    """Of half precision, and with tied tensors, which a file does not tell from others."""
    (folder / "cli_tied.py").write_text(TIED)
    net = ("--model", "cli_tied:Tied", "--data", "digits")
    start = states.of(ModelSpec("cli_tied:Tied").build())
    for scale, name in enumerate(ENDS, 1):
        save_state({key: (scale * x).half() for key, x in start.items()}, folder / name)
    assert find(run, "--epochs", 1, "--points", 2, "--no-align", net=net).exit_code == 0
    middle = coset.load_curve(folder / CURVE).points[1].mean
    assert middle["second.weight"] is middle["third.weight"] and middle["first.weight"].dtype == torch.float32
    line = states.lerp(load_state(folder / ENDS[0]), load_state(folder / ENDS[1]), 0.5)
    assert not torch.allclose(middle["second.weight"], line["second.weight"].float(), atol=1e-3)


def test_barrier_of_a_curve(run: Run, folder: Path, curve: coset.Bezier, pair: list[coset.Dirac]) -> None:
    words = ("barrier", CURVE, *DIGITS, "--points", 5)
    record = report(run(*words, "--json"))
    model, test = zoo.build(NET), data.load("digits").test
    expected = coset.barrier(curve, model, test, 5)
    assert record["curve"] == json.loads(expected.to_json())
    assert record["straight line"] == json.loads(coset.barrier(coset.geodesic(*pair), model, test, 5).to_json())
    table = run(*words, "--html", "page.html")
    assert table.stdout.splitlines()[0].strip() == "Test loss along curve.safetensors"
    assert f"{expected.height:.4f}" in table.stdout and "norms" not in table.stdout
    assert "Barrier along curve.safetensors" in (folder / "page.html").read_text()


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["barrier", "a.safetensors", *DIGITS], ["a.safetensors holds no curve", "second checkpoint"]),
        (["barrier", "absent.safetensors", *DIGITS], ["no file or folder absent.safetensors"]),
        (["barrier", CURVE, "a.safetensors", *DIGITS], [CURVE, "leave out a.safetensors"]),
        (["barrier", "a.safetensors", CURVE, *DIGITS], [CURVE, "holds a curve"]),
        (["barrier", CURVE, *DIGITS, "--method", "weights"], ["--method"]),
        (["barrier", CURVE, "--model", "mlp:64-9-10", "--data", "digits"], [CURVE, "layers.0.weight", "(9, 64)"]),
        (["align", CURVE, "a.safetensors", "--model", NET, "-o", "x.safetensors"], [CURVE, "coset barrier"]),
        (["align", "a.safetensors", CURVE, "--model", NET, "-o", "x.safetensors"], [CURVE, "coset barrier"]),
        (["merge", "a.safetensors", CURVE, "--model", NET, "-o", "x.safetensors"], [CURVE, "coset barrier"]),
        (["apply", "a.safetensors", CURVE, "-o", "x.safetensors"], [CURVE, "coset barrier"]),
        (["evaluate", CURVE, *DIGITS], [CURVE, "coset barrier"]),
        (["overlap", CURVE, "--model", NET], [CURVE, "coset barrier"]),
        (["inspect", NET, "--checkpoint", CURVE], [CURVE, "coset barrier"]),
        (["curve", CURVE, "a.safetensors", *DIGITS, "-o", "new"], [CURVE, "coset barrier"]),
    ],
)
def test_curves_in_wrong_places(
    run: Run, folder: Path, curve: coset.Bezier, words: list[str], parts: list[str]
) -> None:
    before = sorted(folder.rglob("*"))
    refuses(run(*words), *parts)
    assert sorted(folder.rglob("*")) == before


def test_a_curve_is_no_solution(folder: Path, curve: coset.Bezier) -> None:
    with pytest.raises(coset.StateError, match="holds a curve and not one network"):
        coset.load(folder / CURVE)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--align", "weight"], ["--align", "weights", "'weight'"]),
        (["--align", "weights", "--no-align"], ["--align and --no-align"]),
        (["--align", "wasserstein"], ["Gaussian"]),
        (["--shape", "spline"], ["--shape", "bezier or chain", "'spline'"]),
        (["--epochs", "0"], ["epochs", "positive"]),
        (["--bends", "0"], ["bend"]),
        (["--epochs", "1", "--set", "epochs=2"], ["epochs is given twice"]),
        (["--set", "rat=1"], ["rat", "did you mean rate?", "weight_decay"]),
        (["--set", "noise=1"], ["noise", "no such setting"]),
        (["--set", "times=evenly"], ["times=evenly", "stratified or uniform"]),
        (["--set", "pam.epochs=1"], ["pam.epochs", "--pam"]),
        (["--set", "attack.steps=1"], ["attack.steps", "--robust"]),
        (["--robust", "--set", "attack.steps=0"], ["PGD", "steps"]),
        (["--pam", "--set", "pam.iterations=0"], ["PAM", "iterations"]),
        (["--model", "mlp:64-9-10"], ["a.safetensors", "layers.0.weight", "(8, 64)", "(9, 64)"]),
        (["--data", "digit"], ["'digit'", "digits"]),
        (["--data", "breast-cancer"], ["(2, 30)"]),
        (["--split", "1"], ["digits", "one split"]),
        (["--html", "page.txt"], ["--html", ".html"]),
        (["--html", "a.safetensors"], ["--html", "input"]),
        (["--rate", "1e30", "--no-align"], ["diverged"]),
        (["-o", "cli_nets.py"], ["cli_nets.py", "it is a file"]),
        (["-o", "mine"], ["mine", "holds other files"]),
        (["-o", "fitted"], ["fitted", 'another method ("MAP", not "Connect")']),
        (["--device", "meta"], ["meta"]),
    ],
)
def test_mistakes(run: Run, folder: Path, pair: list[coset.Dirac], words: list[str], parts: list[str]) -> None:
    for name, file in (("mine", "aligned.safetensors"), ("fitted", "settings.json")):
        (folder / name).mkdir()
        (folder / name / file).write_text('{"method": "MAP"}')
    before = sorted(folder.rglob("*"))
    refuses(find(run, *words), *parts)
    assert sorted(path for path in folder.rglob("*") if "__pycache__" not in str(path)) == before


@pytest.mark.parametrize("name", ENDS)
def test_bad_ends(run: Run, folder: Path, pair: list[coset.Dirac], name: str) -> None:
    state = dict(pair[0].mean)
    save_state(state | {"layers.0.bias": torch.full((8,), torch.nan)}, folder / name)
    refuses(find(run), name, "layers.0.bias", "8 NaN")
    save_state({key: x for key, x in state.items() if key != "layers.1.bias"}, folder / name)
    refuses(find(run), name, "Missing 'layers.1.bias'")
    save_state(state | {"epoch": torch.zeros(1)}, folder / name)
    refuses(find(run), name, "Unknown 'epoch'")
    coset.Ensemble([state, state]).save(folder / name)
    refuses(find(run), "Ensemble")
    (folder / name).write_bytes((folder / name).read_bytes()[:-9])
    refuses(find(run), name)
    (folder / name).unlink()
    refuses(find(run), name)
    assert not (folder / "search").exists()


def test_parts_of_a_search_follow_one_another() -> None:
    plain = CurveSearch.of(("epochs=5",), {}, pam=False, robust=False)
    assert plain.epochs == 5 and plain.place(0) == ("curve", 0)
    search = CurveSearch.of(("pam.epochs=3", "pam.iterations=2"), {"epochs": 5}, pam=True, robust=False)
    assert search.pam == coset.PAM(epochs=3, iterations=2) and search.epochs == 16
    places = [("permutation 1", 0), ("curve 1", 3), ("permutation 2", 8), ("curve 2", 11)]
    assert [search.place(stream) for stream in (1, 2, 3, 4)] == places


def test_a_bar_counts_the_epochs_of_all_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(
        "coset.cli.console.Console", lambda **kwargs: Console(file=screen, force_terminal=True, width=100, **kwargs)
    )
    search = CurveSearch(coset.Connect(epochs=5), coset.PAM(epochs=3), None)
    with console.open_display() as display:
        SearchListener(display, search)(coset.Event(3, 5, "epoch", epoch=Epoch(2, 3, 5, 0.5, None, 0.1)))
    assert "epoch 6 of 8, resumed" in screen.getvalue()
    assert "curve 1: epoch 3 of 5, loss 0.5000" in screen.getvalue()
    assert " 75%" in screen.getvalue()


def test_lines_come_now_and_then(
    run: Run, folder: Path, pair: list[coset.Dirac], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "PAUSE", 0.0)
    lines = find(run, "--no-align", "--epochs", 2, "--points", 2).stderr.splitlines()
    assert lines[1] == "learning ..."
    assert [line.partition(",")[0] for line in lines[2:4]] == ["curve: epoch 1 of 2", "curve: epoch 2 of 2"]


@pytest.mark.parametrize("command", ["curve", "barrier"])
def test_help_has_an_example(run: Run, command: str) -> None:
    assert "Example: coset" in run(command, "--help").stdout
