"""`coset bench`: the registry, the measurements, and the process they run in."""

import importlib
import json
import sys
import types
from collections.abc import Callable
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
    found = symmetry.by_coset("ViT (separate q, k, v)", seed=0)
    assert found["output change"] < 1e-5
    assert found["tensors moved"] == found["tensors"] - 1  # all but the bias of the head


def test_norm_statistics_are_not_trivial() -> None:
    model, other, _ = symmetry._pair("ResNet20 (batch norm)", seed=0)
    for net in (model, other):
        assert float(net.stem_norm.running_var.std()) > 0.1 and float(net.stem_norm.running_mean.std()) > 0.1


def test_listing_and_unknown_name(run: Run) -> None:
    assert "symmetry" in run("bench").stdout
    assert "symmetry" in json.loads(run("bench", "--json").stdout)
    result = run("bench", "speed")
    assert result.exit_code == 2 and "error: There is no bench 'speed'" in result.stderr


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
