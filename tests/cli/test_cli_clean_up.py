"""What a command that fails leaves behind: nothing of a run that never began, and all that one can go on from."""

from __future__ import annotations

import errno
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from flow_populations import NET, Run, complaint, report

import coset
from coset.core.errors import CosetError
from coset.core.resume import Stage
from coset.populations import chunk, population as population_file

WORDS = ("flow", "collect", "--model", NET, "--data", "breast-cancer", "--epochs", 1, "--chunk", 4)
WORK = ("--work", "work", "-o", "nets.safetensors", "--overwrite", "--json")
WHOLE = (*WORDS, "--runs", 12, *WORK)
CHUNKS = [f"chunk-0000{k}.safetensors" for k in range(3)]


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "work").iterdir()}


def full(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A disk without room for files of this name."""
    write = population_file.write_stream

    def fails(path: str | Path, *options: Any) -> None:
        if Path(path).name == name:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, *options)

    monkeypatch.setattr(population_file, "write_stream", fails)


def kill_at(monkeypatch: pytest.MonkeyPatch, number: int, error: BaseException) -> None:
    """Raise when the networks of a chunk are to be trained, of those that this call trains."""
    epoch, calls = chunk.Chunk.epoch, iter(range(100))

    def stopped(self: chunk.Chunk) -> list[tuple[float, float | None]]:
        if next(calls) == number:
            raise error
        return epoch(self)

    monkeypatch.setattr(chunk.Chunk, "epoch", stopped)


def goes_on(run: Run, folder: Path, epoch: int | None) -> None:
    """The command trains from an epoch of all chunks, none if None, with the result of one that was never stopped."""
    assert report(run(*WHOLE))["first_epoch"] == epoch
    report(run(*WORDS, "--runs", 12, "-o", "whole.safetensors", "--json"))
    one, two = (coset.Population.load(folder / f"{name}.safetensors") for name in ("nets", "whole"))
    assert all(torch.equal(x, two.states[name]) for name, x in one.states.items())


@pytest.fixture
def stopped(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """A folder with one chunk of a call that was stopped."""
    with monkeypatch.context() as patch:
        kill_at(patch, 1, KeyboardInterrupt())
        assert run(*WHOLE).exit_code == 130
    assert CHUNKS[0] in content(folder)
    return content(folder)


@pytest.mark.parametrize(
    "more",
    [
        ("--seed", 1),
        ("--epochs", 2),
        ("--model", "mlp:30-5-2"),
        ("--data", "digits"),
        ("--data", "no-such"),
        ("--model", "no-such"),
        ("--set", "colour=red"),
        ("--rate", -1),
        ("--start", "elsewhere"),
        ("-o", "nets.txt"),
        ("-o", "no-such/nets.safetensors"),
    ],
)
def test_a_refused_call_leaves_chunks_of_an_earlier_one(
    run: Run, folder: Path, stopped: dict[str, bytes], more: tuple[object, ...]
) -> None:
    complaint(run(*WHOLE, *more))
    assert content(folder) == stopped


def test_chunks_of_an_earlier_call_are_gone_on_from(run: Run, folder: Path, stopped: dict[str, bytes]) -> None:
    complaint(run(*WHOLE, "--seed", 1))
    goes_on(run, folder, 2)


def test_a_full_disk_leaves_chunks_of_an_earlier_call(
    run: Run, folder: Path, stopped: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        full(patch, CHUNKS[1])
        assert "No space left" in complaint(run(*WHOLE))
    assert content(folder) == stopped
    goes_on(run, folder, 2)


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("at", [1, 2])
def test_a_full_disk_leaves_chunks_of_the_same_call(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, at: int, exists: bool
) -> None:
    if exists:
        (folder / "work").mkdir()
    with monkeypatch.context() as patch:
        full(patch, CHUNKS[at])
        assert "No space left" in complaint(run(*WHOLE))
    assert sorted(content(folder)) == [*CHUNKS[:at], "settings.json"]
    goes_on(run, folder, at + 1)


def test_a_full_disk_for_the_population_leaves_all_chunks(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        full(patch, "nets.safetensors")
        assert "No space left" in complaint(run(*WHOLE))
    assert sorted(content(folder)) == [*CHUNKS, "settings.json"]
    goes_on(run, folder, None)


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), CosetError("No space left for this.")]
)
def test_any_error_in_the_middle_leaves_chunks(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    with monkeypatch.context() as patch:
        kill_at(patch, 2, error)
        assert "No space left" in complaint(run(*WHOLE))
    assert sorted(content(folder)) == [*CHUNKS[:2], "settings.json"]
    goes_on(run, folder, 3)


def test_a_call_that_fails_before_its_first_chunk_leaves_no_folder(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full(monkeypatch, CHUNKS[0])
    complaint(run(*WORDS, "--runs", 12, "--work", "some/where/work", "-o", "nets.safetensors"))
    assert not (folder / "some").exists()


def test_chunks_without_any_network_are_of_no_use(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, stopped: dict[str, bytes]
) -> None:
    wild = (*WORDS, "--runs", 12, "-o", "nets.safetensors", "--rate", 1e30, "--work")
    assert "All of 12 networks diverged" in complaint(run(*wild, "new"))
    assert not (folder / "new").exists()
    complaint(run(*wild, "work"))
    assert content(folder) == stopped
    with monkeypatch.context() as patch:
        full(patch, CHUNKS[1])
        complaint(run(*wild, "new"))
    assert sorted(path.name for path in (folder / "new").iterdir()) == [CHUNKS[0], "settings.json"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no disk that is full")
def test_a_full_disk_for_a_checkpoint_is_an_error_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coset.core.resume.atomic_write", lambda path: nullcontext(Path("/dev/full")))
    with pytest.raises(OSError, match="No space left"):
        Stage(tmp_path).save_checkpoint({"run": torch.zeros(10_000)})
