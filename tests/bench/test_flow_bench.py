"""`coset bench flow`, on a small transformer and in this process."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

import bench
from bench import flow, process
from bench.flow import LEARNING, SAMPLING, TOOLS, FlowCase, Plain
from coset import Architecture, zoo
from coset.core.memory import peak_mib
from coset.weightspace.graph import Wiring
from coset.weightspace.unit_transformer import UnitTransformer

SMALL = FlowCase(Architecture("units", 8, 1, 2), 8, "float32", False, 1, 4)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(target: str, arguments: dict[str, Any], limit: float) -> tuple[dict[str, Any], float]:
        module, _, function = target.partition(":")
        return getattr(importlib.import_module(module), function)(**arguments), peak_mib()

    monkeypatch.setattr(flow, "CASES", {"cpu": SMALL})
    monkeypatch.setattr(flow, "EPOCHS", 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(process, "call", call)


def test_rows(small: None) -> None:
    said: list[str] = []
    measurement = bench.run("flow", 0, said.append)
    assert said == list(TOOLS) and len({tuple(row) for row in measurement.rows}) == 1
    assert [(row["task"], row["tool"]) for row in measurement.rows] == [
        (task, tool) for tool in TOOLS for task in (LEARNING, SAMPLING)
    ]
    first = {row["task"]: row for row in measurement.rows[:2]}
    for row in measurement.rows:
        assert row["ms"] > 0 and row["peak MiB"] > 10 and row["note"] is None
        assert row["times coset"] == row["ms"] / first[row["task"]]["ms"]
        networks = SMALL.batch if row["task"] == LEARNING else 1
        assert row["networks a second"] == pytest.approx(networks / row["ms"] * 1e3)
        limit = row["GFLOP"] / measurement.machine["product GFLOP/s"]
        assert row["arithmetic"] == pytest.approx(1e3 * limit / row["ms"], rel=0.1)


def test_a_tool_that_fails_is_told(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def call(target: str, arguments: dict[str, Any], limit: float) -> tuple[dict[str, Any], float]:
        if arguments["tool"] == "plain torch":
            raise process.RunError("stopped after 900 s")
        return {LEARNING: 0.5, SAMPLING: 0.25}, 300.0

    monkeypatch.setattr(process, "call", call)
    *_, learning, sampling = bench.run("flow").rows
    for row in (learning, sampling):
        assert row["note"] == "failed: stopped after 900 s" and row["ms"] is row["times coset"] is None


def test_the_plain_network_is_as_large_and_its_products_are_counted() -> None:
    model = zoo.build(flow.MODEL)
    wiring = Wiring.of(flow._symmetry(), model.state_dict())
    ours, plain = UnitTransformer(wiring, 8, 1, 2), Plain(SMALL.architecture)
    sizes = [sum(p.numel() for p in net.parameters()) for net in (ours, plain)]
    assert abs(sizes[0] - sizes[1]) < 0.01 * sizes[0]
    tokens, width, features = flow.UNITS + 1, 8, 795
    block = tokens * (4 + 8) * width**2 + 6 * width**2  # and some for the attention, which torch counts on CUDA only
    rest = 2 * flow.UNITS * features * width + 2 * 10 * width + 64 * width + width**2
    assert 0 <= flow.flop(SMALL)[SAMPLING] - 2 * (block + rest) <= 4 * tokens**2 * width
