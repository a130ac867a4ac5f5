"""Two runs in one folder: one goes on, the other is refused, whatever they are."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import coset
from coset import Event
from coset.core.errors import CosetError

X, Y = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2
ENDS = [coset.Dirac(nn.Linear(3, 2).state_dict()) for _ in range(2)]

Work = Callable[[int, Path, Callable[[Event], None]], object]


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def fit(seed: int, out: Path, progress: Callable[[Event], None]) -> object:
    return coset.fit(net(), (X, Y), coset.MAP(epochs=3), seed=seed, out=out, progress=progress)


def curve(seed: int, out: Path, progress: Callable[[Event], None]) -> object:
    connect = coset.Connect(epochs=3)
    return coset.find_curve(*ENDS, nn.Linear(3, 2), (X, Y), connect, align=False, seed=seed, out=out, progress=progress)


def collect(seed: int, out: Path, progress: Callable[[Event], None]) -> object:
    method = coset.Collect(epochs=3, chunk=2)
    return coset.collect(net(), (X, Y), 4, method, seed=seed, out=out, progress=progress)


def flow(seed: int, out: Path, progress: Callable[[Event], None]) -> object:
    networks = coset.collect(net(), (X, Y), 4, coset.Collect(epochs=1))
    sym = coset.symmetry(net(), (X[:2],))
    plan = coset.FlowPlan(coupling="independent", architecture=coset.Architecture(width=8, depth=1, heads=2))
    return coset.Flow.of(sym, plan).fit(
        networks, coset.Matching(epochs=3, batch_size=4), seed=seed, out=out, progress=progress
    )


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("work", [fit, curve, collect, flow])
def test_a_second_run_is_refused_until_the_first_has_ended(tmp_path: Path, work: Work, seed: int) -> None:
    """Both of the same settings, and of others."""
    refusals: list[str] = []

    def second() -> None:
        try:
            work(seed, tmp_path / "run", lambda event: None)
        except CosetError as error:
            refusals.append(str(error))

    def progress(event: Event) -> None:
        if not refusals:
            thread = threading.Thread(target=second)
            thread.start()
            thread.join()

    work(0, tmp_path / "run", progress)
    assert len(refusals) == 1 and ("in use by process" in refusals[0] or "another seed" in refusals[0])
    for file in (tmp_path / "run").rglob("metrics.jsonl"):
        epochs = [json.loads(line)["epoch"] for line in file.read_text().splitlines()]
        assert epochs == [1, 2, 3]
    assert not (tmp_path / "run" / ".lock").exists()
    work(0, tmp_path / "run", lambda event: None)


@pytest.mark.parametrize(
    ("work", "name"),
    [
        (fit, "replica-0/solution.safetensors"),
        (curve, "curve-1/checkpoint.pt"),
        (collect, "chunk-00000.safetensors"),
        (collect, "checkpoint.pt"),
        (flow, "flow/checkpoint.pt"),
    ],
)
def test_work_without_settings_is_not_adopted(tmp_path: Path, work: Work, name: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_bytes(b"of a stranger")
    with pytest.raises(CosetError, match="that is of no run: choose another folder"):
        work(0, tmp_path, lambda event: None)
    assert (tmp_path / name).read_bytes() == b"of a stranger"
    assert [path.name for path in tmp_path.iterdir()] == [name.split("/")[0]]
