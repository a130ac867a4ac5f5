"""`coset bench curve`, on small networks and in this process."""

from __future__ import annotations

import importlib
import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bench
from bench import curve, process
from bench.curve import ATTACK, BATCH, TASKS, CurveCase
from coset import zoo
from coset.core import capture
from coset.core.memory import peak_mib

CPU = torch.device("cpu")
MLP = CurveCase("mlp:6-5-3", (6,), ("cpu", "cuda"))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(target: str, arguments: dict[str, Any], limit: float) -> tuple[dict[str, Any], float]:
        module, _, function = target.partition(":")
        return getattr(importlib.import_module(module), function)(**arguments), peak_mib()

    elsewhere = CurveCase("mlp:6-5-10", (6,), ())
    monkeypatch.setattr(curve, "CASES", {"MLP": CurveCase("mlp:6-5-10", (6,), ("cpu", "cuda")), "elsewhere": elsewhere})
    monkeypatch.setattr(curve, "EPOCHS", 2)
    monkeypatch.setattr(curve, "default_device", lambda: CPU)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(process, "call", call)


def test_rows(small: None) -> None:
    said: list[str] = []
    measurement = bench.run("curve", 0, said.append)
    assert [(row["network"], row["task"], row["tool"]) for row in measurement.rows] == [
        ("MLP", task, tool) for task in TASKS for tool in ("coset", "eager torch")
    ]
    assert len(said) == len(measurement.rows) and len({tuple(row) for row in measurement.rows}) == 1
    by = {(row["task"], row["tool"]): row for row in measurement.rows}
    for (task, _), row in by.items():
        assert row["ms a step"] > 0 and row["peak MiB"] > 10 and row["note"] is None
        base = "training" + task.removeprefix("training").removeprefix("curve")
        assert row["of training"] == row["ms a step"] / by[base, "coset"]["ms a step"]
        assert row["times coset"] == row["ms a step"] / by[task, "coset"]["ms a step"]
        assert (row["interpolation"] is not None) == task.startswith("curve")
        assert row["GFLOP"] == by[base, "coset"]["GFLOP"]
    p = 6 * 5 + 5 + 5 * 10 + 10
    row = by["curve", "coset"]
    seconds = 24 * p / measurement.machine["copy GB/s"] / 1e9
    assert row["interpolation"] == pytest.approx(1e3 * seconds / row["ms a step"], rel=0.1)


def test_a_row_that_fails_is_told(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def call(target: str, arguments: dict[str, Any], limit: float) -> tuple[dict[str, Any], float]:
        if arguments["tool"] == "coset":
            raise process.RunError("stopped after 600 s")
        return {"ms a step": 2.0, "note": None}, 1.0

    monkeypatch.setattr(process, "call", call)
    ours, theirs = bench.run("curve").rows[:2]
    assert (ours["ms a step"], ours["note"]) == (None, "failed: stopped after 600 s")
    assert (theirs["ms a step"], theirs["of training"], theirs["times coset"]) == (2.0, None, None)


def test_operations() -> None:
    forwards = 2 * BATCH * (6 * 5 + 5 * 3)
    # Each layer has a gradient of its weights, and all but the first one of its inputs.
    training = 3 * forwards - 2 * BATCH * 6 * 5
    assert curve.flop(MLP, None) == training
    assert curve.flop(MLP, ATTACK) == training + ATTACK.steps * 2 * forwards


@pytest.mark.parametrize("task", TASKS)
def test_an_eager_step_lowers_the_loss_and_moves_what_is_learned(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    nets: list[nn.Module] = []

    def remember(module: nn.Module, *args: Any) -> nn.Module:
        nets.append(module)
        return module

    monkeypatch.setattr(nn.Module, "to", remember)
    torch.manual_seed(0)
    step = curve.eager(zoo.build(MLP.model), TASKS[task], CPU)
    inputs, targets = torch.randn(64, 6), torch.arange(64) % 3
    (net,) = nets
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    points = [torch.tensor(0.5)] if TASKS[task].curve else []
    start = float(F.cross_entropy(net(inputs, *points), targets).detach())
    for _ in range(60):
        step(inputs, targets)
    assert float(F.cross_entropy(net(inputs, *points), targets).detach()) < start
    changed = {name for name, p in net.named_parameters() if not torch.equal(p, before[name])}
    assert changed == {name for name in before if not points or name.endswith("_1")}
    calls: list[Tensor] = []
    net.register_forward_hook(lambda module, inputs, outputs: calls.append(outputs))
    step(inputs, targets)
    assert len(calls) == (1 if TASKS[task].attack is None else 1 + ATTACK.steps)


def test_an_attack_stays_in_its_ball_and_raises_the_loss() -> None:
    torch.manual_seed(0)
    model, inputs = zoo.build(MLP.model), torch.randn(32, 6)

    def loss(x: Tensor) -> Tensor:
        return F.cross_entropy(model(x), torch.arange(32) % 3)

    attacked = curve._attack(ATTACK, loss, inputs)
    distance = (attacked - inputs).abs().max().item()
    assert 0.9 * ATTACK.epsilon < distance <= ATTACK.epsilon + 1e-6
    assert loss(attacked) > loss(inputs) and not attacked.requires_grad


def test_a_step_that_is_not_captured_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture.log, "level", logging.WARNING)
    before = capture.log.level, list(capture.log.handlers)
    with curve._complaints() as messages:
        capture.log.info("the step cannot be captured: %s", "it waits")
    assert messages == ["the step cannot be captured: it waits"]
    assert (capture.log.level, capture.log.handlers) == before
