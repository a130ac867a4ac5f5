"""Folders of runs and stages of work, without any run."""

import io
import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

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


# What a changed checkpoint may hold in place of plain tensors.
ODD = [torch.ones(2, 2).to_sparse(), torch.ones(1).expand(10**12), torch.empty(10**12, device="meta")]
ODD += [torch.ones(2, dtype=torch.complex64).conj()]


def circle() -> list[Any]:
    """A list that holds itself."""
    result: list[Any] = []
    result.append(result)
    return result


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
    for odd in (*ODD, circle()):
        torch.save({"epoch": 3, "digest": "0", "tensors": odd}, tmp_path / CHECKPOINT)
        with pytest.raises(CosetError, match=r"checkpoint\.pt is damaged: remove it"):
            stage.load_checkpoint(CPU, ["epoch"])
    (tmp_path / CHECKPOINT).write_bytes(b"nonsense")
    with pytest.raises(CosetError, match=r"checkpoint\.pt is damaged: remove it"):
        stage.load_checkpoint(CPU, [])


class FillingFile(io.BytesIO):
    """On a disk that is full for one write, after which there is room for a short one."""

    is_full = False

    def write(self, data: Any) -> int:
        if self.tell() > 10_000 and not self.is_full:
            self.is_full = True
            raise OSError(28, "No space left on device")
        return super().write(data)


def test_a_disk_that_becomes_full_is_an_error_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "open", lambda self, mode: FillingFile())
    monkeypatch.setattr("coset.core.resume.atomic_write", lambda path: nullcontext(Path("unused")))
    with pytest.raises(OSError, match="No space left"):
        Stage(tmp_path).save_checkpoint({"epoch": 2, "run": [torch.zeros(1000) for _ in range(25)]})


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
    with pytest.raises(CosetError, match="has no 'value': remove it"):
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


def opens(folder: Path, settings: Mapping[str, Any], strangers: Sequence[str] = ()) -> Mapping[str, Any]:
    """What the settings of a folder are as it is opened."""
    with RunFolder.open(folder, settings, strangers) as own:
        return own.settings


def test_a_folder_belongs_to_one_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    opens(run, {"rate": 0.1})
    assert not run.exists()  # as nothing was kept
    with RunFolder.open(run, {"rate": 0.1, "shape": (2, 3)}) as folder:
        assert folder.is_new
        folder.claim()
        assert not folder.is_new
    assert [file.name for file in run.iterdir()] == [SETTINGS]
    assert opens(run, {"rate": 0.1, "shape": (2, 3)}) == {"rate": 0.1, "shape": [2, 3]}
    with pytest.raises(CosetError, match=r"holds a run with another rate \(0\.1, not 0\.2\).*ask for the same run"):
        opens(run, {"rate": 0.2, "shape": (2, 3)})
    with pytest.raises(CosetError, match=r"another more \(null, not 1\)"):
        opens(run, {"rate": 0.1, "shape": (2, 3), "more": 1})
    with pytest.raises(CosetError, match=r"another shape \(\[2, 3\], not null\)"):
        opens(run, {"rate": 0.1})
    (run / SETTINGS).write_text("[]", encoding="utf-8")
    with pytest.raises(CosetError, match=r"is \[\] and no JSON object: choose another folder"):
        opens(run, {})


def test_files_of_strangers_are_refused(tmp_path: Path) -> None:
    (tmp_path / "part-1.txt").touch()
    opens(tmp_path, {})
    with pytest.raises(CosetError, match=r"holds a file part-1\.txt that is of no run"):
        opens(tmp_path, {}, ["other-*", "part-*"])
    (tmp_path / CHECKPOINT).touch()
    with pytest.raises(CosetError, match=r"holds a file checkpoint\.pt that is of no run"):
        opens(tmp_path, {})
    (tmp_path / "file").touch()
    with pytest.raises(CosetError, match="it is a file"):
        opens(tmp_path / "file", {})


def fails(folder: Path, *work: str, error: type[BaseException] = CosetError) -> list[str]:
    """What lies in a folder after a run that failed, and wrote its settings, metrics and some files of work."""
    with pytest.raises(error), RunFolder.open(folder, {"rate": 0.1}) as run:
        run.claim()
        stage = run.stage("replica-0", "copy-0")
        stage.begin(0)
        stage.log({"epoch": 1})
        for name in work:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).touch()
        raise error
    return sorted(str(x.relative_to(folder)) for x in folder.rglob("*") if x.is_file()) if folder.exists() else []


@pytest.mark.parametrize("error", [CosetError, OSError, ValueError])
def test_what_fails_before_any_work_leaves_nothing_behind(tmp_path: Path, error: type[Exception]) -> None:
    assert fails(tmp_path / "a" / "b", error=error) == [] and not list(tmp_path.iterdir())
    tmp_path.chmod(0o750)
    assert fails(tmp_path, error=error) == [] and tmp_path.stat().st_mode & 0o777 == 0o750
    (tmp_path / "notes.txt").touch()
    assert fails(tmp_path, error=error) == ["notes.txt"]
    opens(tmp_path, {"rate": 0.2})  # nobody's settings refuse it


@pytest.mark.parametrize("name", ["curve.safetensors", "checkpoint.pt", "notes.txt", "deep/er/notes.txt"])
def test_work_is_never_removed(tmp_path: Path, name: str) -> None:
    files = sorted([name, "replica-0/copy-0/metrics.jsonl", SETTINGS])
    assert fails(tmp_path / "run", name) == files


def test_settings_of_an_earlier_call_are_not_removed(tmp_path: Path) -> None:
    assert fails(tmp_path / "run", error=KeyboardInterrupt) == ["replica-0/copy-0/metrics.jsonl", SETTINGS]
    assert fails(tmp_path / "run") == ["replica-0/copy-0/metrics.jsonl", SETTINGS]


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
