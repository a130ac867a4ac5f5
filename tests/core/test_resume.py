"""Folders of runs and stages of work, without any run."""

import json
from pathlib import Path

import pytest
import torch

from coset.core.errors import CosetError
from coset.core.resume import (
    CHECKPOINT,
    METRICS,
    NO_FOLDER,
    SETTINGS,
    RunFolder,
    Stage,
    WorkCost,
    digest,
    tensor_digest,
)

CPU = torch.device("cpu")


def read(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def write(text: str, file: Path) -> None:
    file.write_text(text, encoding="utf-8")


def test_a_result_is_computed_once_and_ends_the_checkpoint(tmp_path: Path) -> None:
    stage, calls = Stage(tmp_path / "part", "result.txt"), []

    def compute() -> str:
        calls.append(1)
        stage.begin(0)
        stage.save_checkpoint({"epoch": 1})
        return "done"

    assert stage.read(read) is None
    assert [stage.complete(read, compute, write) for _ in range(2)] == ["done", "done"] and len(calls) == 1
    assert stage.read(read) == "done" and not (tmp_path / "part" / CHECKPOINT).exists()


def test_a_checkpoint_is_read_back_on_a_device_and_checked(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    assert stage.load_checkpoint(CPU, ["epoch"]) is None
    stage.save_checkpoint({"epoch": 3, "tensors": [torch.arange(4)]})
    content = stage.load_checkpoint(CPU, ["epoch", "tensors"])
    assert content is not None and content["epoch"] == 3 and torch.equal(content["tensors"][0], torch.arange(4))
    with pytest.raises(CosetError, match=r"checkpoint\.pt is damaged: remove it"):
        stage.load_checkpoint(CPU, ["seconds"])
    (tmp_path / CHECKPOINT).write_bytes(b"nonsense")
    with pytest.raises(CosetError, match=r"checkpoint\.pt is damaged: remove it"):
        stage.load_checkpoint(CPU, [])


def test_metrics_of_epochs_that_come_again_are_dropped(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "part")
    stage.begin(0)
    for epoch in range(1, 4):
        stage.log({"epoch": epoch, "accuracy": None})
    stage.begin(2)
    lines = (tmp_path / "part" / METRICS).read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [{"epoch": 1, "accuracy": None}, {"epoch": 2, "accuracy": None}]
    silent = Stage(tmp_path / "silent", metrics=False)
    silent.begin(0)
    silent.log({"epoch": 1})
    assert not list((tmp_path / "silent").iterdir())


def test_values_with_what_they_took(tmp_path: Path) -> None:
    stage = Stage(tmp_path, f"value-{digest({'n': 3})}.json")
    first, second = (stage.value({"n": 3}, lambda: {"sum": (1, 2)}) for _ in range(2))
    assert first.value == second.value == {"sum": [1, 2]} and second.was_read and not first.was_read
    assert first.seconds == second.seconds
    assert stage.file is not None
    stage.file.write_text("{}", encoding="utf-8")
    with pytest.raises(CosetError, match="is no part that was kept"):
        stage.value({"n": 3}, dict)
    with pytest.raises(ValueError, match="JSON"):
        Stage(tmp_path, "nan.json").value({}, lambda: float("nan"))
    assert not (tmp_path / "nan.json").exists()


def test_where_nothing_is_kept_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    NO_FOLDER.claim()
    stage = NO_FOLDER.stage("part", result="result.txt")
    stage.begin(0)
    stage.log({"epoch": 1})
    stage.save_checkpoint({"epoch": 1})
    assert stage.load_checkpoint(CPU, []) is None and stage.complete(read, lambda: "done", write) == "done"
    assert stage.value({}, lambda: 1).value == 1 and stage.file is None and not list(tmp_path.iterdir())


def test_a_folder_belongs_to_one_run(tmp_path: Path) -> None:
    folder = RunFolder.open(tmp_path / "run", {"rate": 0.1, "shape": (2, 3)})
    assert not (tmp_path / "run").exists()  # before there is anything to keep
    folder.claim()
    assert RunFolder.open(tmp_path / "run", {"rate": 0.1, "shape": (2, 3)}).settings == {"rate": 0.1, "shape": [2, 3]}
    with pytest.raises(CosetError, match=r"holds a run with another rate \(0\.1, not 0\.2\).*ask for the same run"):
        RunFolder.open(tmp_path / "run", {"rate": 0.2, "shape": (2, 3)})
    with pytest.raises(CosetError, match=r"another more \(null, not 1\)"):
        RunFolder.open(tmp_path / "run", {"rate": 0.1, "shape": (2, 3), "more": 1})
    with pytest.raises(CosetError, match=r"another shape \(\[2, 3\], not null\)"):
        RunFolder.open(tmp_path / "run", {"rate": 0.1})
    (tmp_path / "run" / SETTINGS).write_text("[]", encoding="utf-8")
    with pytest.raises(CosetError, match="does not hold the settings of a run"):
        RunFolder.open(tmp_path / "run", {})


def test_files_of_strangers_are_refused(tmp_path: Path) -> None:
    (tmp_path / "part-1.txt").touch()
    assert RunFolder.open(tmp_path, {}).path == tmp_path
    with pytest.raises(CosetError, match=r"holds a file part-1\.txt that is of no run"):
        RunFolder.open(tmp_path, {}, ["other-*", "part-*"])
    (tmp_path / "file").touch()
    with pytest.raises(CosetError, match="it is a file"):
        RunFolder.open(tmp_path / "file", {})


def test_the_cost_of_a_folder_is_the_most_of_all_calls(tmp_path: Path) -> None:
    folder = tmp_path / "part"
    assert WorkCost.of(folder) is None
    assert WorkCost(3.0, 1.0).write(folder) == WorkCost(3.0, 1.0)
    assert WorkCost(2.0, 4.0).write(folder) == WorkCost(3.0, 4.0) == WorkCost.of(folder)


def test_digests_differ_where_numbers_shapes_and_types_do() -> None:
    x = torch.arange(6.0)
    others = [x + 1, x.view(2, 3), x.double()]
    digests = {tensor_digest([one]) for one in (x, *others)} | {tensor_digest([x, x])}
    assert len(digests) == 5 and tensor_digest([x.clone()]) in digests
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1}) != digest({"a": 2, "b": 1})
