"""Collections that are stopped at any step go on, with the result of those that were not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from trainings import QUICK, KillError, clusters, mlp, stop_at

from coset import Epoch, Event, on_epoch, zoo
from coset.core import state as states
from coset.core.errors import CosetError, StateError
from coset.core.resume import Stage
from coset.populations.chunk import Collect
from coset.populations.collect import collect
from coset.populations.population import Population


@pytest.mark.parametrize("every", [0, 2])
@pytest.mark.parametrize("seconds", [0.0, 1e9])
@pytest.mark.parametrize("at", [(0, 2), (1, 1), (1, 2), (1, 3)])
def test_a_stopped_run_goes_on(tmp_path: Path, at: tuple[int, int], seconds: float, every: int) -> None:
    net, split = mlp(torch.float32), clusters(dtype=torch.float32)
    settings = Collect("adam", epochs=3, batch_size=16, chunk=3, every=every)
    whole = collect(net, split, 5, settings)
    with pytest.raises(KillError):
        collect(net, split, 5, settings, out=tmp_path, progress=on_epoch(stop_at(*at)), checkpoint_seconds=seconds)
    epochs: list[Epoch] = []
    result = collect(
        net, split, 5, settings, out=tmp_path, progress=on_epoch(epochs.append), checkpoint_seconds=seconds
    )
    chunk, epoch = at
    assert (epochs[0].replica, epochs[0].epoch) == (chunk, epoch if seconds == 0 else 1)
    for part in ("states", "starts", "labels"):
        mine, its = getattr(result, part), getattr(whole, part)
        assert list(mine) == list(its) and all(torch.equal(mine[name], its[name]) for name in its), part
    assert result.about == whole.about
    names = sorted(file.name for file in tmp_path.iterdir())
    assert names == ["chunk-00000.safetensors", "chunk-00001.safetensors", "settings.json"]


@pytest.mark.parametrize("after", [1, 3, 4, 5, 12])
def test_an_epoch_that_was_stopped_goes_on_within(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    net, split = mlp(torch.float32), clusters(dtype=torch.float32)
    settings = Collect("adam", epochs=3, batch_size=16, chunk=3, every=2)
    steps = 3 * (len(split) // 16)
    assert steps == 12
    whole = collect(net, split, 3, settings)
    write, written = Stage.save_checkpoint, [0]

    def counted(self: Stage, content: dict[str, Any]) -> None:
        write(self, {**content, "seconds": content["seconds"] + 1000})
        written[0] += 1
        if written[0] == after:
            raise KillError

    monkeypatch.setattr(Stage, "save_checkpoint", counted)
    with pytest.raises(KillError):
        collect(net, split, 3, settings, out=tmp_path, checkpoint_seconds=0)
    epochs: list[Epoch] = []
    heard: list[tuple[int, int | None]] = []

    def listen(event: Event) -> None:
        if event.epoch is not None:
            epochs.append(event.epoch)
        else:
            heard.append((event.done, event.total))

    result = collect(net, split, 3, settings, out=tmp_path, progress=listen, checkpoint_seconds=0)
    assert written[0] == steps and heard == [(k + 1, steps) for k in range(after, steps)]
    assert [e.seconds >= 1000 for e in epochs] == [True] + [False] * (len(epochs) - 1)  # of the whole epoch
    assert all(torch.equal(x, whole.states[name]) for name, x in result.states.items())
    assert result.labels["iteration"].tolist() == whole.labels["iteration"].tolist()


def test_steps_of_all_chunks_are_counted() -> None:
    events: list[Event] = []
    collect(mlp(), clusters(), 4, QUICK, progress=events.append)
    steps = [event for event in events if event.unit == "step"]
    total = 2 * 3 * 4  # chunks, epochs, steps of each
    assert [event.done for event in steps] == list(range(1, total + 1)) and {e.total for e in steps} == {total}


def test_more_and_fewer_runs_of_one_folder(tmp_path: Path) -> None:
    net, split = mlp(), clusters()
    collect(net, split, 4, QUICK, out=tmp_path)
    epochs: list[Epoch] = []
    result = collect(net, split, 5, QUICK, out=tmp_path, progress=on_epoch(epochs.append))
    assert {e.replica for e in epochs} == {1} and len(result) == 5
    assert all(torch.equal(x, collect(net, split, 5, QUICK).states[name]) for name, x in result.states.items())
    fewer = collect(net, split, 2, QUICK, out=tmp_path, progress=on_epoch(epochs.append))
    assert len(epochs) == 3 and all(torch.equal(x, result.states[name][:2]) for name, x in fewer.states.items())
    assert same_file(tmp_path / "chunk-00000.safetensors", result[:3])


def test_a_checkpoint_of_other_networks_is_left_alone(tmp_path: Path) -> None:
    net, split = mlp(), clusters()
    with pytest.raises(KillError):
        collect(net, split, 4, QUICK, out=tmp_path, progress=on_epoch(stop_at(1, 1)), checkpoint_seconds=0)
    assert (tmp_path / "checkpoint.pt").exists()
    result = collect(net, split, 6, QUICK, out=tmp_path)  # whose second chunk has more networks
    whole = collect(net, split, 6, QUICK)
    assert all(torch.equal(x, whole.states[name]) for name, x in result.states.items())
    assert not (tmp_path / "checkpoint.pt").exists()


def same_file(path: Path, population: Population) -> bool:
    result = Population.load(path)
    return all(torch.equal(x, result.states[name]) for name, x in population.states.items())


def test_a_chunk_that_diverged_is_not_trained_again(tmp_path: Path) -> None:
    net, split = mlp(), clusters()
    wild = Collect(epochs=2, batch_size=16, rate=1e200, chunk=2)
    epochs: list[Epoch] = []
    for _ in range(2):
        with pytest.raises(CosetError, match="All of 4 networks"):
            collect(net, split, 4, wild, out=tmp_path, progress=on_epoch(epochs.append))
    assert len(epochs) == 4


KILLED = """
import sys, torch
from coset import on_epoch, zoo
from coset.populations import chunk as collecting_chunk
from coset.populations.collect import collect
from coset.populations.collect_settings import Collect
x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
torch.set_num_threads(1)
slow = lambda epoch: print(epoch.replica, epoch.epoch, flush=True)
collect(zoo.build("mlp:4-6-3"), (x, x.argmax(1) % 3), 6, Collect(epochs=400, batch_size=16, chunk=3), out=sys.argv[1],
        progress=on_epoch(slow), checkpoint_seconds=0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("after", ["0 3", "1 250"])
def test_a_killed_process_goes_on(tmp_path: Path, after: str) -> None:
    running = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    for line in running.stdout:
        if line.strip() == after:
            time.sleep(0.01)
            os.kill(running.pid, signal.SIGKILL)
            break
    assert running.wait() == -signal.SIGKILL
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    settings, data = Collect(epochs=400, batch_size=16, chunk=3), (x, x.argmax(1) % 3)
    epochs: list[Epoch] = []
    result = collect(zoo.build("mlp:4-6-3"), data, 6, settings, out=tmp_path, progress=on_epoch(epochs.append))
    assert (epochs[0].replica, epochs[0].epoch) >= tuple(map(int, after.split()))
    whole = collect(zoo.build("mlp:4-6-3"), data, 6, settings)
    assert all(torch.equal(x, whole.states[name]) for name, x in result.states.items())


def test_other_settings_are_refused(tmp_path: Path) -> None:
    net, split = mlp(), clusters()
    collect(net, split, 2, QUICK, out=tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}

    def draw(n: int, generator: torch.Generator) -> dict[str, Tensor]:
        return {name: torch.zeros(n, *x.shape) for name, x in states.of(net).items()}

    for message, arguments in {
        "another epochs": {"method": Collect(epochs=4, batch_size=16, chunk=3, rate=0.05)},
        "another seed": {"seed": 1},
        "another starts": {"draw": draw},
    }.items():
        with pytest.raises(CosetError, match=message):
            collect(net, split, 2, **{"method": QUICK, "out": tmp_path, **arguments})  # type: ignore[arg-type]
    assert before == {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    (tmp_path / "settings.json").unlink()
    with pytest.raises(CosetError, match=r"a file chunk-00000\.safetensors that is of no run"):
        collect(net, split, 2, QUICK, out=tmp_path)


def test_a_damaged_chunk_is_named(tmp_path: Path) -> None:
    net, split = mlp(), clusters()
    collect(net, split, 2, QUICK, out=tmp_path)
    file = tmp_path / "chunk-00000.safetensors"
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(StateError, match=r"chunk-00000.safetensors is not a complete"):
        collect(net, split, 2, QUICK, out=tmp_path)
