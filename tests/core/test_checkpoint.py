import json
import os
import pickle
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from coset.core import state as S
from coset.core.checkpoint import DTYPES, LazyState, Shard, load_state, open_state, save_state, write_like
from coset.core.errors import StateError
from coset.core.files import atomic_write, write_json

STATE = {
    "w": torch.arange(6.0).reshape(2, 3),
    "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "steps": torch.tensor(7),
    "mask": torch.tensor([True, False]),
    "none": torch.zeros(0, 4),
}


def same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return set(a) == set(b) and all(torch.equal(a[n], b[n]) and a[n].dtype == b[n].dtype for n in a)


def refused(path: Path, read: Any = load_state) -> str:
    """The message of a StateError that names the path in one sentence."""
    with pytest.raises(StateError) as caught:
        read(path)
    text = str(caught.value)
    assert str(path) in text and text.endswith(".") and "\n" not in text
    return text


def shard(folder: Path) -> Path:
    """Write STATE as two shards and an index."""
    save_file({"w": STATE["w"], "half": STATE["half"]}, folder / "model-1.safetensors", {"a": "1"})
    rest = {n: STATE[n] for n in ("steps", "mask", "none")}
    save_file(rest, folder / "model-2.safetensors", {"b": "2"})
    files = {n: f"model-{2 if n in rest else 1}.safetensors" for n in STATE}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": files}))
    return index


# --- files that are complete or absent


def test_atomic_write_removes_what_killed_processes_left(tmp_path: Path) -> None:
    path = tmp_path / "net[0].json"
    killed, writing, other = (
        tmp_path / f".{name}.{'0' * 15}{k}.json" for k, name in enumerate(("net[0]", "net[0]", "net"))
    )
    for file in (killed, writing, other):
        file.write_text("")
    for file in (killed, other):
        os.utime(file, (0, 0))
    write_json(path, 1)
    assert sorted(tmp_path.iterdir()) == sorted([path, writing, other])


def test_atomic_write_replaces_the_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("old")
    with atomic_write(path) as temporary:
        assert temporary.parent == tmp_path and temporary.suffix == ".txt"
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_failed_write_leaves_the_old_file(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "x.txt"
    path.write_text("old")

    def write() -> None:
        with atomic_write(path) as temporary:
            temporary.write_text("half of the n")
            raise error

    with pytest.raises(error):
        write()
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_write_is_on_disk_before_the_rename_and_the_rename_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.txt"
    events: list[str] = []

    def fsync(descriptor: int) -> None:
        kind = "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        events.append(f"{kind} {path.exists()}")

    monkeypatch.setattr(os, "fsync", fsync)
    write_json(path, {})
    assert events == ["file False", "folder True"]


def test_written_files_have_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    save_state(STATE, tmp_path / "x.safetensors")
    write_json(tmp_path / "x.json", {})
    assert len({path.stat().st_mode for path in tmp_path.iterdir()}) == 1


def test_write_json(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json(path, {"é": [1, None, 0.5]})
    assert json.loads(path.read_text(encoding="utf-8")) == {"é": [1, None, 0.5]}
    before = path.read_bytes()
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, float("nan"))
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


# --- saving


def test_save_and_load_return_the_same_state(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_state(STATE, path, {"step": "3"})
    assert same(load_state(path), STATE) and list(tmp_path.iterdir()) == [path]
    assert open_state(path).metadata == {"format": "pt", "step": "3"}
    assert all(x.device.type == "meta" for x in load_state(path, device="meta").values())


def test_shared_and_strided_tensors_are_written_in_full(tmp_path: Path) -> None:
    x = torch.arange(12.0).reshape(3, 4)
    state = {"a": x, "tied": x, "row": x[1], "transposed": x.T, "grad": nn.Parameter(x + 1)}
    save_state(state, tmp_path / "x.safetensors")
    assert same(load_state(tmp_path / "x.safetensors"), {n: t.detach() for n, t in state.items()})


def test_a_tied_model_survives_the_file(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    save_state(S.of(model), tmp_path / "x.safetensors")
    x = torch.randn(2, 3)
    state = S.check(load_state(tmp_path / "x.safetensors"), like=S.of(model))
    assert torch.equal(S.call(model, state, x), model(x))


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, largest_file: Callable[[int], None]) -> None:
    path = tmp_path / "x.safetensors"
    save_state(STATE, path)
    largest_file(1000)
    assert "File too large" in refused(path, lambda p: save_state({"w": torch.ones(1000)}, p))
    assert same(load_state(path), STATE) and list(tmp_path.iterdir()) == [path]


def test_unsavable_states_and_names_write_nothing(tmp_path: Path) -> None:
    assert "end in .safetensors" in refused(tmp_path / "x.pt", lambda p: save_state(STATE, p))
    assert "No such file" in refused(tmp_path / "no" / "x.safetensors", lambda p: save_state(STATE, p))
    for bad in (torch.ones(1, dtype=torch.complex128), torch.eye(2).to_sparse()):
        with pytest.raises(StateError, match="'bad'"):
            save_state({"bad": bad}, tmp_path / "x.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_what_is_saved_loads_elsewhere(tmp_path: Path) -> None:
    save_state(STATE, tmp_path / "x.safetensors")
    assert same(load_file(tmp_path / "x.safetensors"), STATE)


# --- pickles


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".bin"])
@pytest.mark.parametrize("wrapper", [None, "state_dict", "model"])
def test_pickles_load_and_unwrap(tmp_path: Path, suffix: str, wrapper: str | None) -> None:
    path = tmp_path / f"x{suffix}"
    torch.save({wrapper: STATE, "epoch": 3} if wrapper else STATE, path)
    assert same(load_state(path), STATE)


def test_only_the_usual_wrappers_are_stripped(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save({"model": torch.ones(1), "module.w": nn.Parameter(torch.ones(2))}, path)
    state = load_state(path)
    assert set(state) == {"model", "module.w"} and type(state["module.w"]) is Tensor
    torch.save({"state_dict": {"model": STATE}}, path)
    assert "Entry 'model'" in refused(path)
    torch.save({"w": torch.ones(1), "epoch": 3}, path)
    assert "Entry 'epoch'" in refused(path)
    torch.save({0: torch.ones(1)}, path)
    assert "Entry 0" in refused(path)
    torch.save([torch.ones(1)], path)
    assert "holds list" in refused(path)


class Evil:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.system, (f"touch '{self.marker}'",)


@pytest.mark.parametrize("wrap", [lambda evil: evil, lambda evil: {"w": torch.ones(1), "state_dict": evil}])
@pytest.mark.parametrize("name", ["x.pt", "raw.bin", "x.safetensors"])
def test_a_checkpoint_never_runs_code(tmp_path: Path, name: str, wrap: Any) -> None:
    marker, path = tmp_path / "ran", tmp_path / name
    content = wrap(Evil(marker))
    if name == "raw.bin":
        path.write_bytes(pickle.dumps(content, protocol=2))
    else:
        torch.save(content, path)
    # A trusting loader would run it: otherwise this test could not fail.
    if name == "x.pt":
        torch.load(path, weights_only=False)
        assert marker.exists()
        marker.unlink()
    text = refused(path)
    assert not marker.exists() and "weights_only" not in text


def test_a_pickled_module_is_refused(tmp_path: Path) -> None:
    torch.save(nn.Linear(1, 1), tmp_path / "x.pt")
    assert "holds more than plain tensors" in refused(tmp_path / "x.pt")


# --- damaged files


@pytest.mark.parametrize("name", ["x.safetensors", "x.pt", "x.bin"])
def test_truncated_files_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if path.suffix == ".safetensors":
        save_state(STATE, path)
    else:
        torch.save(STATE, path)
    whole = path.read_bytes()
    for length in (0, 1, 7, 20, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        refused(path)
    path.write_bytes(b"\xff" * 200)
    refused(path)
    path.write_text("not a checkpoint")
    refused(path)


@pytest.mark.parametrize("read", [load_state, open_state])
def test_paths_that_hold_no_state_are_refused(tmp_path: Path, read: Any) -> None:
    assert "no file or folder" in refused(tmp_path / "absent.safetensors", read)
    assert "no file or folder" in refused(tmp_path / "absent.pt", read)
    assert "has no model.safetensors.index.json" in refused(tmp_path, read)
    other = tmp_path / "x.txt"
    other.write_text("text")
    assert "must end in .safetensors" in refused(other, read)
    folder = tmp_path / "folder.safetensors"
    folder.mkdir()
    assert "has no model.safetensors.index.json" in refused(folder, read)


def test_a_pickle_cannot_be_opened_lazily(tmp_path: Path) -> None:
    torch.save(STATE, tmp_path / "x.pt")
    assert "one tensor at a time" in refused(tmp_path / "x.pt", open_state)


# --- shards


def test_shards_load_from_folder_and_index(tmp_path: Path) -> None:
    index = shard(tmp_path)
    for path in (index, tmp_path):
        assert same(load_state(path), STATE)
        assert open_state(path).metadata == {"a": "1", "b": "2"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not JSON"),
        ("{" * 10, "is not JSON"),
        ("[" * 100_000, "nested more than 64 times"),
        ("[]", "is [] and no JSON object"),
        ("{}", "has no 'weight_map'"),
        ('{"weight_map": ["w"]}', "is ['w'] and no JSON object"),
        ('{"weight_map": {"w": 1}}', "'w' of 'weight_map' of"),
        ('{"weight_map": {"w": "model-9.safetensors"}}', "names the shard 'model-9.safetensors'"),
        ('{"weight_map": {"w": "' + "model" * 1000 + '"}}', "names the shard 'modelmodel"),
        ('{"weight_map": {"w": "../out.safetensors"}}', "names the shard '../out.safetensors'"),
        ('{"weight_map": {"w": "model-1.safetensors"}}', "does not put 'half'"),
        (
            '{"weight_map": {"w": "model-1.safetensors", "half": "model-1.safetensors", "x": "model-1.safetensors"}}',
            "puts 'x' in the shard model-1.safetensors, which lacks it",
        ),
    ],
)
def test_an_index_that_does_not_agree_with_its_shards(tmp_path: Path, text: str, message: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    index = shard(folder)
    save_file({"w": STATE["w"]}, tmp_path / "out.safetensors")
    index.write_text(text)
    assert message in refused(index)


@pytest.mark.parametrize("is_new", [False, True])
def test_shards_that_cannot_all_be_written_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    (tmp_path / "in").mkdir()
    source, target = open_state(shard(tmp_path / "in")), tmp_path / "out"
    monkeypatch.setattr("coset.core.checkpoint.SHARD_BYTES", 1)  # one tensor in each
    if not is_new:
        target.mkdir()

    def read(name: str) -> torch.Tensor:
        if name == list(source)[-1]:
            raise OSError(28, "No space left on device")
        return source[name]

    with pytest.raises(OSError, match="No space left"):
        write_like(source, target, read)
    assert target.exists() != is_new and not list(target.glob("*"))


def test_missing_and_damaged_shards(tmp_path: Path) -> None:
    index = shard(tmp_path)
    second = tmp_path / "model-2.safetensors"
    second.write_bytes(second.read_bytes()[:-1])
    refused(second, lambda _: load_state(index))
    second.unlink()
    assert "'model-2.safetensors', which is not a file" in refused(index)


# --- lazy states


def test_lazy_state_knows_the_layout_and_reads_one_tensor_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []

    read = Shard.read

    def counting(self: Shard, name: str) -> Tensor:
        reads.append(name)
        return read(self, name)

    monkeypatch.setattr(Shard, "read", counting)
    shard(tmp_path)
    state = open_state(tmp_path)
    assert isinstance(state, LazyState) and isinstance(state, Mapping)
    assert set(state) == set(STATE) and len(state) == 5 and "w" in state and "x" not in state
    assert all(state.shape(n) == x.shape and state.dtype(n) == x.dtype for n, x in STATE.items())
    assert reads == []
    assert torch.equal(state["w"], STATE["w"]) and reads == ["w"]
    with pytest.raises(KeyError):
        state["x"]
    reads.clear()
    assert float(S.inner(state, STATE)) == float(S.inner(STATE, STATE))
    assert sorted(reads) == sorted(STATE)


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_every_dtype_is_known_without_reading(tmp_path: Path, name: str) -> None:
    dtype = DTYPES[name]
    save_state({"x": torch.zeros(2).to(dtype)}, tmp_path / "x.safetensors")
    state = open_state(tmp_path / "x.safetensors")
    assert state.dtype("x") == dtype == state["x"].dtype


def test_tensors_of_a_lazy_state_are_copies(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_state(STATE, path)
    state = open_state(path)
    state["w"].zero_()
    assert torch.equal(state["w"], STATE["w"])
    loaded = load_state(path)
    save_state({"w": torch.zeros(1)}, path)
    assert same(loaded, STATE)


@pytest.mark.parametrize("change", [lambda path: save_state({"w": torch.zeros(1)}, path), lambda path: path.unlink()])
def test_a_file_that_changes_while_it_is_open_is_refused(tmp_path: Path, change: Callable[[Path], None]) -> None:
    path = tmp_path / "x.safetensors"
    save_state(STATE, path)
    state = open_state(path)
    change(path)
    with pytest.raises(StateError, match="changed or removed"):
        state["w"]


def test_a_file_without_tensors_has_metadata_too(tmp_path: Path) -> None:
    save_state({}, tmp_path / "empty.safetensors", {"what": "nothing"})
    empty = open_state(tmp_path / "empty.safetensors")
    assert not empty and empty.metadata["what"] == "nothing"
