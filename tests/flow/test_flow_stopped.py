"""A flow whose learning was stopped within epochs comes out as if it had not been."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import coset
from coset import Architecture, Flow, Matching, zoo
from coset.core import state as states
from coset.core.resume import Stage
from coset.populations.population import Population

SETTINGS = Matching(epochs=3, batch_size=16, rate=1e-3, warm_up=2, noise=0.01, level=True, unseen=4)


class _KilledError(Exception):
    pass


def problem(spec: str) -> tuple[coset.Symmetry, Population]:
    model, generator = zoo.build(spec), torch.Generator().manual_seed(0)
    starts = {name: torch.randn(52, *x.shape, generator=generator) for name, x in states.of(model).items()}
    return coset.symmetry(model, zoo.example_input(model)), Population({k: 3 * x for k, x in starts.items()}, starts)


@pytest.mark.parametrize("coupling", ["training", "ot", "independent"])
def test_the_same_after_every_step(tmp_path: Path, coupling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three steps in an epoch for each of two widths, each of which is the last of some call."""
    (sym, own), wide = problem("mlp:3-4-2"), problem("mlp:3-6-2")
    options: dict[str, Any] = {"more": [wide]}
    steps: list[tuple[int, int | None]] = []

    def listen(event: coset.Event) -> None:
        if event.unit == "step":
            steps.append((event.done, event.total))

    def flow() -> Flow:
        return Flow(sym, "geometric", coupling, architecture=Architecture(width=16, depth=1, heads=2))  # type: ignore[arg-type]

    def sampled(fresh: Flow) -> dict[str, Tensor]:
        return fresh.sample(3, 3, generator=torch.Generator().manual_seed(1)).states

    whole = flow().fit(own, SETTINGS, progress=listen, **options)
    assert steps == [(k, 18) for k in range(1, 19)]
    checkpoint = Stage.save_checkpoint

    def killed(self: Stage, content: dict[str, Any]) -> None:
        checkpoint(self, content)
        raise _KilledError

    steps.clear()
    calls = 0
    with monkeypatch.context() as patch:
        patch.setattr(Stage, "save_checkpoint", killed)
        while True:
            calls += 1
            try:
                fresh = flow().fit(own, SETTINGS, out=tmp_path, checkpoint_seconds=0, progress=listen, **options)
                break
            except _KilledError:
                assert calls < 40
    # Stopped after each step and after each epoch but the last.
    assert calls == 18 + 2 + 1 and steps == [(k, 18) for k in range(1, 19)]
    one, two = sampled(whole), sampled(fresh)
    assert all(torch.equal(one[name], two[name]) for name in one)
    lines = [json.loads(line) for line in (tmp_path / "flow" / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2, 3]


def test_seconds_of_a_stopped_epoch_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sym, own = problem("mlp:3-4-2")
    checkpoint = Stage.save_checkpoint

    def killed(self: Stage, content: dict[str, Any]) -> None:
        checkpoint(self, {**content, "seconds": 1000.0})
        raise _KilledError

    flow = Flow(sym, architecture=Architecture(width=16, depth=1, heads=2))
    with monkeypatch.context() as patch, pytest.raises(_KilledError):
        patch.setattr(Stage, "save_checkpoint", killed)
        flow.fit(own, SETTINGS, out=tmp_path, checkpoint_seconds=0)
    flow.fit(own, SETTINGS, out=tmp_path, checkpoint_seconds=0)
    first, second, _ = (
        json.loads(line)["seconds"] for line in (tmp_path / "flow" / "metrics.jsonl").read_text().splitlines()
    )
    assert first > 1000 > second
