"""`coset bench lap`, on small matrices and in this process."""

from __future__ import annotations

import importlib
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bench
from bench import lap, process
from coset.core.memory import peak_mib


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(target: str, arguments: dict[str, Any], limit: float) -> tuple[dict[str, Any], float]:
        module, _, function = target.partition(":")
        return getattr(importlib.import_module(module), function)(**arguments), peak_mib()

    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: None)  # it would end this process
    monkeypatch.setattr(lap, "SIZES", (24, 40))
    monkeypatch.setattr(lap, "STEPS", 1)
    monkeypatch.setattr(process, "call", call)


def test_rows(small: None) -> None:
    said: list[str] = []
    rows = bench.run("lap", 0, said.append).rows
    assert [(row["cost"], row["n"]) for row in rows] == [(family, n) for family in lap.FAMILIES for n in (24, 40)]
    assert len(said) == len(rows)
    for row in rows:
        assert row["verdict"] == "same value" and 0 <= row["gap"] < 1e-12 and row["ratio"] > 0 and row["MiB"] >= 0


def test_a_wrong_answer_is_told(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    right = lap.by_scipy
    monkeypatch.setattr(lap, "by_scipy", lambda folder: right(folder) | {"value": 0.5})
    assert {row["verdict"] for row in bench.run("lap").rows} == {"ANOTHER VALUE"}


def test_scipy_is_stopped(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(folder: str) -> dict[str, Any]:
        raise process.RunError(f"exit code {-signal.SIGXCPU}")

    monkeypatch.setattr(lap, "by_scipy", stopped)
    row = bench.run("lap").rows[0]
    assert row["verdict"] == "scipy stopped after 25 s" and row["scipy"] is row["ratio"] is None


def test_scipy_is_limited_in_work_not_in_time(tmp_path: Path) -> None:
    lap.make("low rank", 800, 0, str(tmp_path))
    code = f"from bench import lap; lap.LIMIT = -1; lap.by_scipy({str(tmp_path)!r})"
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGXCPU


def test_the_next_sweep_permutes_the_shared_axis() -> None:
    for make, _ in lap.FAMILIES.values():
        first, second = make(np.random.default_rng(0), 30)
        assert first.shape == second.shape == (30, 30) and first.dtype == second.dtype == np.float32
        assert 0 < np.abs(first - second).mean() < np.abs(first).mean() * 1.5
