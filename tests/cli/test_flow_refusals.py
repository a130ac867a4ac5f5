"""What `coset flow` refuses, and that it says what to do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flow_populations import NET, SMALL, Run, complaint, write

import coset
from coset import zoo

COLLECT = ("flow", "collect", "--runs", 6, "--epochs", 1, "-o", "nets.safetensors", "--overwrite")
FIT = ("flow", "fit", "nets.safetensors", "-o", "flow.safetensors", "--overwrite", *SMALL)
SAMPLE = ("flow", "sample", "flow.safetensors", "-n", 4, "--steps", 1, "-o", "samples.safetensors", "--overwrite")


def test_a_folder_of_another_flow_is_refused_by_what_was_asked(run: Run, folder: Path) -> None:
    write(folder, "nets")
    run(*FIT, "--work", "work")
    for option, value, word in (("--geometry", "euclidean", "geometry"), ("--depth", 2, "depth")):
        assert f"another {word} (" in complaint(run(*FIT, "--work", "work", option, value))
    assert "another conditions" in complaint(run(*FIT, "--work", "work", "--conditions", "loss"))
    assert "name one twice" in complaint(run(*FIT, "--conditions", "loss,loss"))


def test_weights_that_are_too_large(run: Run, folder: Path) -> None:
    population = write(folder, "nets")
    population.states["layers.0.weight"][4] *= 1e25
    population.save(folder / "nets.safetensors")
    message = complaint(run("flow", "evaluate", "nets.safetensors", "--data", "breast-cancer"))
    assert "'layers.0.weight' of network 4" in message and "leave that network out" in message


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB."),
        RuntimeError("Storage size calculation overflowed with sizes=[99999999999999999, 134]"),
        MemoryError(),
    ],
)
def test_too_little_memory(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fails(*args: Any, **more: Any) -> None:
        raise error

    write(folder, "nets")
    monkeypatch.setattr("coset.cli.population_evaluator.scores", fails)
    words = ("flow", "evaluate", "nets.safetensors", "--data", "breast-cancer")
    assert "too little memory" in complaint(run(*words))
    monkeypatch.setattr("coset.cli.population_evaluator.scores", lambda *args, **options: 1 / 0)
    assert isinstance(run(*words).exception, ZeroDivisionError)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no folder in which nobody can write")
def test_outputs_are_tried_before_the_work(run: Run, folder: Path) -> None:
    write(folder, "nets")
    result = run("flow", "fit", "nets.safetensors", "-o", "/proc/flow.safetensors", *SMALL)
    assert "cannot be written" in complaint(result) and "learning" not in result.stderr


def test_changed_files_of_work_are_refused_before_there_is_more(run: Run, folder: Path) -> None:
    words = (*COLLECT, "--model", NET, "--data", "breast-cancer", "--chunk", 3, "--work", "work")
    run(*words)
    chunk, last = (folder / "work" / f"chunk-0000{k}.safetensors" for k in range(2))
    last.unlink()
    good = coset.Population.load(chunk)
    other = coset.Population.of([zoo.build("mlp:30-5-2")])
    for changed in (other, replace(good, about={"runs": "3"}), replace(good, labels={})):
        changed.save(chunk)
        assert "Remove it to train that chunk again" in complaint(run(*words))
        assert not last.exists()


@pytest.mark.parametrize("state", ["no hexadecimal", "00ff", 3])
def test_batches_with_other_random_numbers_are_refused(run: Run, folder: Path, state: object) -> None:
    write(folder, "nets")
    run(*FIT)
    run(*SAMPLE, "--work", "work")
    (batch,) = (folder / "work").glob("*.safetensors")
    replace(coset.Population.load(batch), about={"randomness": state}).save(batch)
    assert f"{batch.name} was changed: remove it to sample that batch again" in complaint(
        run(*SAMPLE, "--work", "work")
    )


def test_damaged_files_of_work_say_how_to_go_on(run: Run, folder: Path) -> None:
    write(folder, "nets")
    words = (*COLLECT, "--model", "mlp:30-4-2", "--data", "breast-cancer", "--work", "work")
    run(*words)
    part = folder / "work" / "chunk-00000.safetensors"
    part.write_bytes(part.read_bytes()[:50])
    assert "Remove it to train that chunk again" in complaint(run(*words))
    run(*FIT)
    run(*SAMPLE, "--work", "batches")
    batch = folder / "batches" / "samples-00000.safetensors"
    batch.write_bytes(batch.read_bytes()[:50])
    assert "Remove it to sample that batch again" in complaint(run(*SAMPLE, "--work", "batches"))
    words = ("flow", "evaluate", "nets.safetensors", "--data", "breast-cancer", "--work", "measured")
    run(*words)
    file = next((folder / "measured").glob("measured-scores-*.json"))
    record = json.loads(file.read_text())
    file.write_text(json.dumps({**record, "value": {"other": 1}}))
    assert "holds something else: remove it" in complaint(run(*words))
