"""`coset fit`, `evaluate` and `overlap` on the digits: what they find, what they refuse, and how they go on."""

from __future__ import annotations

import inspect
import io
import json
import math
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from command_results import refuses, report
from rich.console import Console
from typer.testing import Result

import coset
from coset import Epoch, data, zoo
from coset.cli import console, methods
from coset.core import state as states
from coset.data import DataSet, Split
from coset.data.dataset import Standardization

Run = Callable[..., Result]
NET = "mlp:64-8-10"
SOLUTION = "run/replica-0/solution.safetensors"


def fit(run: Run, method: str, *more: object, net: str = NET, name: str = "digits") -> Result:
    return run("fit", "--model", net, "--data", name, "--method", method, "--out", "run", *more)


def gaussian(path: Path) -> None:
    """Save a posterior whose equivalent modes overlap in part."""
    torch.manual_seed(0)
    mean = states.of(zoo.build(NET))
    coset.Gaussian(mean, {name: torch.full_like(x, 0.5) for name, x in mean.items()}).save(path)


@pytest.fixture
def waves(monkeypatch: pytest.MonkeyPatch) -> DataSet:
    """A regression by the name of snelson, whose test inputs have no targets as there."""
    x = torch.linspace(-2, 2, 40).unsqueeze(1)
    scale = Standardization(torch.zeros(1), torch.tensor([2.5]))
    unknown = Split(x, torch.full_like(x, torch.nan))
    sets = DataSet("snelson", Split(x, (3 * x).sin()), unknown, None, scale, scale)
    monkeypatch.setattr("coset.data.load", lambda *args, **kwargs: sets)
    return sets


def test_fit_is_that_of_the_library(run: Run, folder: Path) -> None:
    result = fit(run, "vi", "--replicas", 2, "--seed", 3, "--set", "epochs=2", "--set", "rate=0.02", "--json")
    record = report(result)
    digits = data.load("digits")
    model = zoo.build(NET)
    ours = coset.fit(model, digits.train, coset.VI(epochs=2, rate=0.02), replicas=2, seed=3)
    for row, q in zip(record["replicas"], ours, strict=True):
        assert coset.wasserstein(coset.load(folder / row["solution"]), q) == 0
        scores = coset.evaluate(q, model, digits.test, generator=torch.Generator().manual_seed(3))
        assert (row["nll"], row["accuracy"], row["ece"]) == (scores.nll, scores.accuracy, scores.ece)
        line = (folder / row["solution"]).with_name("metrics.jsonl").read_text().splitlines()[-1]
        assert row["training_loss"] == json.loads(line)["loss"]
    assert record["settings"]["epochs"] == 2 and record["first_epoch"] == 1


def test_fit_shows_a_table(run: Run, folder: Path) -> None:
    result = fit(run, "map", "--set", "epochs=1")
    assert result.exit_code == 0
    head, row = result.stdout.splitlines()[1:3]
    assert " ".join(head.split()) == "replica training loss test nll test accuracy test ece solution"
    assert row.split()[0] == "0" and row.split()[-1] == SOLUTION
    again = fit(run, "map", "--set", "epochs=1")
    assert again.stdout.splitlines()[2] == row and "nothing was trained" in again.stdout


@pytest.mark.parametrize(
    ("method", "settings", "kind"),
    [
        ("laplace", ["base.epochs=1"], "FullGaussian"),
        ("deep-ensemble", ["members=2", "base.epochs=1"], "Ensemble"),
        ("symmetrized-vi", ["epochs=1", "entropy=infonce"], "Gaussian"),
        ("sgld", ["epochs=2", "burn_in=1", "chains=2"], "Ensemble"),
        ("sghmc", ["epochs=2", "burn_in=1", "chains=2"], "Ensemble"),
        ("swag", ["epochs=3", "burn_in=1", "rank=2"], "FullGaussian"),
        ("hmc", ["draws=1", "warm_up=1", "steps=1", "chains=2"], "Ensemble"),
    ],
)
def test_every_method_runs(run: Run, folder: Path, method: str, settings: list[str], kind: str) -> None:
    words = [word for setting in settings for word in ("--set", setting)]
    (row,) = report(fit(run, method, *words, "--json"))["replicas"]
    assert row["kind"] == kind == type(coset.load(folder / SOLUTION)).__name__
    lines = [path.read_text().splitlines()[-1] for path in folder.glob("run/replica-0/**/metrics.jsonl")]
    assert row["training_loss"] == pytest.approx(sum(json.loads(line)["loss"] for line in lines) / len(lines))


def test_every_method_of_the_library_has_a_name() -> None:
    library = {getattr(coset, name) for name in coset.__all__}
    kinds = {kind for kind in library if isinstance(kind, type) and issubclass(kind, coset.Method)}
    concrete = {kind for kind in kinds if not inspect.isabstract(kind)}
    assert {getattr(coset, name) for name in methods.classes().values()} == concrete
    assert methods.classes()["symmetrized-vi"] == "SymmetrizedVI" and methods.classes()["swag"] == "SWAG"


def test_settings_have_the_types_of_their_fields() -> None:
    words = ["rate=3e-3", "epochs=7", "augment=true", "optimizer=sgd", "noise=none"]
    assert methods.build("map", words) == coset.MAP(rate=3e-3, epochs=7, augment=True, optimizer="sgd", noise=None)
    method = methods.build("deep-ensemble", ["base.epochs=4", "members=3", "base.compile=False"])
    assert method == coset.DeepEnsemble(3, coset.MAP(epochs=4, compile=False))
    assert methods.build("laplace", ["prior_variance=2"]) == coset.Laplace(prior_variance=2.0)


@pytest.mark.parametrize("name", methods.classes())
def test_every_setting_can_be_given_as_it_is_by_default(name: str) -> None:
    default = getattr(coset, methods.classes()[name])()

    def words(of: Any, prefix: str = "") -> list[str]:
        inner = {field.name: getattr(of, field.name) for field in fields(of)}
        return [
            word
            for key, value in inner.items()
            for word in (words(value, f"{prefix}{key}.") if is_dataclass(value) else [f"{prefix}{key}={value}"])
        ]

    assert methods.build(name, words(default)) == default


@pytest.mark.parametrize(
    ("method", "words", "parts"),
    [
        ("vy", [], ["'vy'", "symmetrized-vi"]),
        ("vi", ["rat=1"], ["rat", "did you mean rate?", "prior_variance"]),
        ("vi", ["epochs=1.5"], ["epochs=1.5", "whole number"]),
        ("vi", ["rate=fast"], ["rate=fast", "number or none"]),
        ("vi", ["augment=1"], ["augment=1", "true or false"]),
        ("vi", ["optimizer=adm"], ["adam or sgd", "did you mean adam?"]),
        ("vi", ["epochs=none"], ["epochs=none", "whole number"]),
        ("vi", ["epochs=0"], ["epochs", "positive"]),
        ("vi", ["rate"], ["'rate'", "NAME=VALUE"]),
        ("vi", ["rate=1", "rate=2"], ["rate is given twice"]),
        ("laplace", ["epochs=1"], ["laplace", "did you mean base.epochs?"]),
        ("deep-ensemble", ["base=1"], ["base", "base.epochs"]),
        ("map", ["optimizer=sgd", "rate=1e30"], ["diverged"]),
    ],
)
def test_bad_settings(run: Run, folder: Path, method: str, words: list[str], parts: list[str]) -> None:
    refuses(fit(run, method, *(part for word in words for part in ("--set", word))), *parts)
    assert not (folder / "run").exists()


@pytest.mark.parametrize(
    ("more", "parts"),
    [
        ({"name": "digit"}, ["'digit'", "digits"]),
        ({"net": "mlp:63-8-10"}, ["(2, 1, 8, 8)"]),
        ({"net": "mlp:64-8-5"}, ["0 to 9", "0 to 4"]),
        ({"net": "cli_nets:net"}, ["(2, 1, 8, 8)"]),
    ],
)
def test_models_and_data_that_do_not_fit(run: Run, folder: Path, more: dict[str, str], parts: list[str]) -> None:
    refuses(fit(run, "map", **more), *parts)
    refuses(fit(run, "map", "--split", "1"), "digits", "one split")
    assert not (folder / "run").exists()


def test_nothing_is_left_of_a_refused_run(run: Run, folder: Path, waves: DataSet) -> None:
    words = ("fit", "--model", "mlp:1-4-1", "--data", "snelson", "--method", "hmc")
    refuses(run(*words, "--out", "new/deep/run"), "noise")
    assert not (folder / "new").exists()
    (folder / "empty").mkdir()
    refuses(run(*words, "--out", "empty"), "noise")
    assert list((folder / "empty").iterdir()) == []
    (folder / "mine").mkdir()
    (folder / "mine" / "notes").touch()
    refuses(run(*words, "--out", "mine"), "noise")
    assert (folder / "mine" / "notes").exists()
    refuses(run(*words, "--out", "cli_nets.py"), "cli_nets.py", "cannot be written")
    assert (folder / "cli_nets.py").is_file()


def test_a_stopped_run_goes_on(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("--set", "epochs=3", "--replicas", 2, "--checkpoint-seconds", 0)
    whole = report(run("fit", "--model", NET, "--data", "digits", "--method", "vi", "--out", "whole", *words, "--json"))
    log = coset.core.resume.Stage.log

    def stopped(self: Any, line: dict[str, Any]) -> None:
        if line["epoch"] == 3:
            raise KeyboardInterrupt
        log(self, line)

    with monkeypatch.context() as patch:
        patch.setattr("coset.core.resume.Stage.log", stopped)
        result = fit(run, "vi", *words)
    assert result.exit_code == 130 and result.stdout == ""
    assert "stopped: the same command goes on" in result.stderr and "Traceback" not in result.stderr
    result = fit(run, "vi", *words)
    assert "epoch 3 of 3, resumed" in result.stderr
    again = report(fit(run, "vi", *words, "--json"))
    assert again["first_epoch"] is None and whole["first_epoch"] == 1
    for before, after in zip(whole["replicas"], again["replicas"], strict=True):
        assert before.pop("solution") != after.pop("solution")
        assert before == after
    refuses(fit(run, "vi", "--set", "epochs=4"), "another epochs (3, not 4)")


def test_a_bar_counts_the_epochs_of_all_networks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from coset.cli.commands.fit import _epochs_before

    screen = io.StringIO()
    monkeypatch.setattr(
        "coset.cli.console.Console", lambda **kwargs: Console(file=screen, force_terminal=True, width=100, **kwargs)
    )
    method = coset.MAP(epochs=4)
    done = tmp_path / "replica-0"
    done.mkdir()
    (done / "solution.safetensors").touch()
    before = _epochs_before(method, [done, tmp_path / "replica-1"])
    with console.open_display() as display:
        training = console.ReplicasListener(display, method.epochs, 2, before)
        training(coset.Event(3, 4, "epoch", epoch=Epoch(1, 3, 4, 0.5, None, 0.1)))
    assert "epoch 3 of 4, resumed" in screen.getvalue()
    assert "replica 1: epoch 3 of 4, loss 0.5000" in screen.getvalue()
    assert " 88%" in screen.getvalue()  # seven of eight


def test_lines_come_now_and_then(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "PAUSE", 0.0)
    lines = fit(run, "map", "--set", "epochs=2").stderr.splitlines()
    assert [line.partition(",")[0] for line in lines[2:4]] == ["replica 0: epoch 1 of 2", "replica 0: epoch 2 of 2"]


def test_images_become_vectors_for_a_model_that_wants_them(run: Run, folder: Path) -> None:
    (folder / "cli_flat.py").write_text("from torch import nn\ndef make():\n    return nn.Linear(64, 10)\n")
    (row,) = report(fit(run, "map", "--set", "epochs=5", "--json", net="cli_flat:make"))["replicas"]
    assert row["accuracy"] > 0.7
    words = ("evaluate", SOLUTION, "--model", "cli_flat:make", "--data", "digits", "--json")
    assert report(run(*words))["accuracy"] == row["accuracy"]


def test_evaluate_and_its_bound(run: Run, folder: Path) -> None:
    fit(run, "vi", "--set", "epochs=1")
    words = ("evaluate", SOLUTION, "--model", NET, "--data", "digits", "--samples", 8, "--seed", 2)
    record = report(run(*words, "--elbo", "--prior-variance", 0.5, "--json"))
    q, model, digits = coset.load(folder / SOLUTION), zoo.build(NET), data.load("digits")
    scores = coset.evaluate(q, model, digits.test, 8, generator=torch.Generator().manual_seed(2))
    assert {name: record[name] for name in ("nll", "nll_error", "accuracy", "ece", "brier", "spread")} == {
        name: value for name, value in vars(scores).items() if name != "rmse"
    }
    bound = coset.elbo(q, model, digits.train, 0.5, 8, generator=torch.Generator().manual_seed(2))
    assert record["elbo"]["value"] == bound.value and record["elbo"]["examples"] == 1442
    table = run(*words, "--elbo", "--prior-variance", 0.5).stdout
    assert f"{scores.nll:.4f}" in table and f"{bound.value:,.2f}" in table and "prior N(0, 0.5)" in table
    assert "elbo" not in report(run(*words, "--json")) and "Evidence" not in run(*words).stdout


def test_a_regression_without_test_targets(run: Run, folder: Path, waves: DataSet) -> None:
    result = fit(run, "map", "--set", "epochs=2", net="mlp:1-4-1", name="snelson")
    assert "train rmse" in result.stdout and "no test targets" in result.stdout and "2.5" in result.stdout
    words = ("evaluate", SOLUTION, "--model", "mlp:1-4-1", "--data", "snelson")
    record = report(run(*words, "--json"))
    scores = coset.evaluate(coset.load(folder / SOLUTION), zoo.build("mlp:1-4-1"), waves.train)
    assert (record["evaluated_on"], record["rmse"], record["accuracy"]) == ("train", scores.rmse, None)
    assert record["target_std"] == 2.5
    assert f"{scores.rmse:.4f}" in run(*words).stdout


def test_overlap(run: Run, folder: Path) -> None:
    gaussian(folder / "vi.safetensors")
    words = ("overlap", "vi.safetensors", "--model", NET, "--entropy", "exact", "--samples", 16, "--seed", 1)
    record = report(run(*words, "--json"))
    sym = coset.symmetry(zoo.build(NET), (torch.randn(2, 64),))
    q = coset.load(folder / "vi.safetensors")
    ours = coset.overlap(q, sym, "exact", 16, generator=torch.Generator().manual_seed(1))
    assert record["information"] == pytest.approx(ours.information)
    assert record["index"] == pytest.approx(ours.index) and 0.01 < record["index"] < 1
    assert record["log_order"] == pytest.approx(sum(torch.arange(1, 9).log().tolist()), rel=1e-5)
    assert record["sets"]["layers.0"]["log_order"] == record["log_order"]
    table = run(*words).stdout
    assert "layers.0 alone" in table and f"{ours.index:.3f}" in table
    assert ours.sentence in " ".join(table.split())
    few = report(run(*words[:4], "--entropy", "infonce", "--elements", 2, "--json"))
    assert few["information"] < math.log(2) + 1e-6 < record["information"]  # what two permutations can tell


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["evaluate", "absent.safetensors", "--model", NET, "--data", "digits"], ["absent.safetensors"]),
        (
            ["evaluate", SOLUTION, "--model", "mlp:64-9-10", "--data", "digits"],
            [SOLUTION, "layers.0.weight", "(8, 64)"],
        ),
        (["evaluate", SOLUTION, "--model", NET, "--data", "digit"], ["'digit'"]),
        (["evaluate", SOLUTION, "--model", NET, "--data", "digits", "--elbo"], ["a Dirac", "--method vi"]),
        (["evaluate", SOLUTION, "--model", NET, "--data", "digits", "--prior-variance", "1"], ["--elbo"]),
        (["overlap", "absent.safetensors", "--model", NET], ["absent.safetensors"]),
        (["overlap", SOLUTION, "--model", NET], [SOLUTION, "a Dirac", "--method vi"]),
        (["overlap", "vi.safetensors", "--model", "mlp:64-9-10"], ["layers.0.weight", "(8, 64)"]),
        (["overlap", "vi.safetensors", "--model", NET, "--entropy", "bethee"], ["--entropy", "bethe", "'bethee'"]),
        (["evaluate", "vi.safetensors", "--model", NET, "--data", "digits", "--elbo", "--prior-variance", "0"], ["0"]),
    ],
)
def test_mistakes(run: Run, folder: Path, words: list[str], parts: list[str]) -> None:
    (folder / SOLUTION).parent.mkdir(parents=True)
    gaussian(folder / "vi.safetensors")
    coset.Dirac(coset.load(folder / "vi.safetensors").mean).save(folder / SOLUTION)
    before = sorted(folder.rglob("*"))
    refuses(run(*words), *parts)
    assert sorted(path for path in folder.rglob("*") if "__pycache__" not in str(path)) == before
