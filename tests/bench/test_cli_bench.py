"""`coset bench`: the registry, the measurements, and the process they run in."""

import importlib
import json
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import Result

from bench import process, symmetry
from coset import zoo

Run = Callable[..., Result]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """One small network, measured in this process."""

    def call(target: str, arguments: dict[str, Any], limit: float) -> tuple[dict[str, Any], float]:
        module, _, function = target.partition(":")
        return getattr(importlib.import_module(module), function)(**arguments), 1.0

    monkeypatch.setattr(symmetry, "NETWORKS", {"MLP": lambda: zoo.build("mlp:6-5-4-3")})
    monkeypatch.setattr(process, "call", call)


@pytest.fixture
def careless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool by the name of rebasin that permutes the units of a layer and forgets the next layer."""

    class Careless:
        def __init__(self, target: nn.Module, model: nn.Module, inputs: torch.Tensor) -> None:
            self.model = model

        def rebasin(self) -> None:
            with torch.no_grad():
                first = next(self.model.parameters())
                first.copy_(first.flip(0))

    module = types.ModuleType("rebasin")
    module.PermutationCoordinateDescent = Careless  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "rebasin", module)
    monkeypatch.setattr(symmetry, "installed", lambda package: "0")


def bench_rows(run: Run) -> list[dict[str, Any]]:
    result = run("bench", "symmetry", "--json")
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    rows: list[dict[str, Any]] = json.loads(result.stdout)["rows"]
    return rows


def test_a_tool_that_changes_the_function_is_told(run: Run, small: None, careless: None) -> None:
    ours, theirs = bench_rows(run)
    assert (ours["tool"], ours["verdict"], ours["tensors moved"]) == ("coset", "same function", 5)
    assert ours["output change"] < 1e-6
    assert (theirs["tool"], theirs["verdict"], theirs["tensors moved"]) == ("rebasin", "ANOTHER FUNCTION", 1)
    assert theirs["output change"] > 1e-2


def test_a_tool_that_is_not_installed_is_named(run: Run, small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symmetry, "installed", lambda package: None)
    assert bench_rows(run)[1]["verdict"] == "not installed: pip install rebasin"
    result = run("bench", "symmetry")
    assert "not installed: pip install rebasin" in result.stdout and "coset on MLP ..." in result.stderr


def test_a_tool_that_fails_is_told(run: Run, small: None, careless: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def call(*args: object) -> None:
        raise process.RunError("stopped after 300 s")

    monkeypatch.setattr(process, "call", call)
    assert [row["verdict"] for row in bench_rows(run)] == ["failed: stopped after 300 s"] * 2


def test_the_split_vit_is_moved_whole() -> None:
    row = symmetry.by_coset("ViT (separate q, k, v)", seed=0)
    assert row["output change"] < 1e-5
    assert row["tensors moved"] == row["tensors"] - 1  # all but the bias of the head


def test_norm_statistics_are_not_trivial() -> None:
    model, other, _ = symmetry._pair("ResNet20 (batch norm)", seed=0)
    for net in (model, other):
        assert float(net.stem_norm.running_var.std()) > 0.1 and float(net.stem_norm.running_mean.std()) > 0.1


def test_listing_and_unknown_name(run: Run) -> None:
    assert "symmetry" in run("bench").stdout
    assert "symmetry" in json.loads(run("bench", "--json").stdout)
    result = run("bench", "speed")
    assert result.exit_code == 2 and "error: There is no bench 'speed'" in result.stderr


def test_every_benchmark_is_listed_with_what_it_measures(run: Run) -> None:
    texts = json.loads(run("bench", "--json").stdout)
    assert {"align", "lap", "merging", "llama8b", "zoo", "decay"} <= texts.keys()
    assert not {"process", "hardware", "measurement", "command", "curve_layers"} & texts.keys()
    assert all(20 < len(text) < 250 for text in texts.values())


@pytest.mark.parametrize("name", ["merging", "zoo", "llama8b", "hmc", "symmetry"])
def test_each_has_its_own_options(run: Run, name: str) -> None:
    result = run("bench", name, "--help")
    assert result.exit_code == 0
    assert ("--seed" if name == "symmetry" else "--out") in result.stdout


def test_wrong_words_of_a_script_are_one_sentence(run: Run, tmp_path: Path) -> None:
    result = run("bench", "merging", "mnits")
    assert result.exit_code == 2 and "error: There is no experiment 'mnits', only mnist, cifar10, ten" in result.stderr
    assert "There is no suite 'keras'" in run("bench", "zoo", "keras").stderr


def test_a_package_that_is_not_there_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert "The bench llama8b needs transformers, which is not installed." in run("bench", "llama8b").stderr


def test_one_front_without_an_installed_command(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "bench"]
    assert "merging" in subprocess.run(words, capture_output=True, text=True, check=True).stdout
    wrong = subprocess.run([*words, "speed"], capture_output=True, text=True)
    assert wrong.returncode == 2 and wrong.stderr.startswith("error: There is no bench 'speed'")


def test_a_script_writes_its_record(run: Run, tmp_path: Path) -> None:
    result = run("bench", "geometry", "--out", tmp_path / "new" / "geometry.json")
    assert result.exit_code == 0, result.stderr
    record = json.loads((tmp_path / "new" / "geometry.json").read_text())
    assert {row["d"] for row in record["rows"]} == {3, 784}
    assert max(row["errors"]["coset"]["log"] for row in record["rows"]) < 1e-4


def test_process() -> None:
    result, peak = process.call("builtins:print", {"end": "noise"}, limit=100)
    assert result is None and 10 < peak < 10_000
    with pytest.raises(process.RunError, match="JSONDecodeError"):
        process.call("json:loads", {"s": "nonsense"}, limit=100)
    with pytest.raises(process.RunError, match="stopped after 0 s"):
        process.call("time:sleep", {}, limit=0.01)


@pytest.mark.slow
def test_in_full(run: Run) -> None:
    ours = [row for row in bench_rows(run) if row["tool"] == "coset"]
    assert len(ours) == len(symmetry.NETWORKS)
    assert all(row["verdict"] == "same function" and row["peak MiB"] > 100 for row in ours)
