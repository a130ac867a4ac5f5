"""Work that goes on where it was stopped: folders that belong to one run, and the stages of its work.

A `RunFolder` is known by its settings, and refuses those of another run. A `Stage` is a piece of work with a result, a
file that appears whole once the work is done. While it is under way it has a checkpoint, which is written in one step,
and a line of metrics for each epoch. What reads and writes results is given, so this file knows nothing of them.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from coset.core import json_reader
from coset.core.errors import CosetError
from coset.core.files import Fault, atomic_write, write_json
from coset.core.json_reader import JsonObject
from coset.core.lock import NAME as LOCK, locked
from coset.core.pickles import odd_kind, read_pickle

DIGEST = "digest"  # of a checkpoint's content, which has it as one more entry
SETTINGS, METRICS, CHECKPOINT = "settings.json", "metrics.jsonl", "checkpoint.pt"

T = TypeVar("T")


@dataclass(frozen=True)
class StoredValue:
    """value: as JSON gives it back; seconds: that it took, now or, if it was read, then."""

    value: Any
    seconds: float
    was_read: bool


@dataclass(frozen=True)
class Stage:
    """A piece of work in a folder, None where nothing is kept.

    result: the name of the file that the work ends in, None if it lies elsewhere. metrics: whether each epoch has a
    line in the folder's metrics.
    """

    folder: Path | None
    result: str | None = None
    metrics: bool = True

    @property
    def file(self) -> Path | None:
        """Where the result lies, or will."""
        return None if self.folder is None or self.result is None else self.folder / self.result

    def read(self, read: Callable[[Path], T]) -> T | None:
        """The result by `read`, None if it is not there yet."""
        return read(self.file) if self.file is not None and self.file.exists() else None

    def finish(self, write: Callable[[Path], object]) -> None:
        """Let `write` write the result; from now on the checkpoint is of no use."""
        if self.file is None:
            return
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write(self.file)
        self.drop_checkpoint()

    def complete(self, read: Callable[[Path], T], compute: Callable[[], T], write: Callable[[T, Path], object]) -> T:
        """The result: read if it is there, otherwise computed and written."""
        before = self.read(read)
        if before is not None:
            return before
        result = compute()
        self.finish(lambda path: write(result, path))
        return result

    def value(self, key: Mapping[str, Any], compute: Callable[[], Any]) -> StoredValue:
        """A result that JSON can hold, with what it took.

        key: all that it depends on, of which the name of the file has the `digest`; it is written beside the value, for
        whoever reads the file.
        """

        def work() -> StoredValue:
            start = time.perf_counter()
            value = json.loads(json.dumps(compute(), allow_nan=False))
            return StoredValue(value, time.perf_counter() - start, False)

        def write(result: StoredValue, path: Path) -> None:
            write_json(path, {"key": key, "seconds": result.seconds, "value": result.value})

        return self.complete(_read_value, work, write)

    def save_checkpoint(self, content: Mapping[str, Any]) -> None:
        """Replace the checkpoint: tensors and numbers in plain containers."""
        if self.folder is None:
            return
        # Through a file of Python's, since torch alone says of a full disk that a position is unexpected; and it may
        # say so of that file, too, after what the system said.
        with atomic_write(self.folder / CHECKPOINT) as temporary, temporary.open("wb") as file:
            try:
                torch.save({**content, DIGEST: content_digest(content)}, file)
            except RuntimeError as error:
                if isinstance(error.__context__, OSError):
                    raise error.__context__ from None
                raise

    def load_checkpoint(self, device: torch.device, keys: Sequence[str]) -> dict[str, Any] | None:
        """The last checkpoint, in which all `keys` must be; None if there is none."""
        if self.folder is None or not (self.folder / CHECKPOINT).exists():
            return None
        file = self.folder / CHECKPOINT
        damaged = "is damaged: remove it to start again"
        content = read_pickle(file, device, damaged, CosetError)
        if not (_is_whole(content) and set(keys) <= content.keys()):
            raise CosetError(f"{file} {damaged}.")
        return dict(content)

    def drop_checkpoint(self) -> None:
        """Remove the checkpoint, if there is one."""
        if self.folder is not None:
            (self.folder / CHECKPOINT).unlink(missing_ok=True)

    def log(self, line: Mapping[str, float | None]) -> None:
        """Append a line to the metrics."""
        if self.folder is None or not self.metrics:
            return
        with (self.folder / METRICS).open("a", encoding="utf-8") as file:
            # JSON has no NaN.
            finite = {name: x if x is None or math.isfinite(x) else None for name, x in line.items()}
            file.write(json.dumps(finite, allow_nan=False) + "\n")

    def begin(self, epochs: int) -> None:
        """Make the folder, and drop the metrics of all but the first `epochs`, since the others come again."""
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.metrics:
            return
        file = self.folder / METRICS
        lines = [line for line in read_metrics(file) if line["epoch"] <= epochs] if epochs else []
        with atomic_write(file) as temporary:
            temporary.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run, None where nothing is kept, and what the run is: `settings` as JSON can hold them.

    file: the name of the file with the settings.
    """

    path: Path | None
    settings: Mapping[str, Any]
    file: str = SETTINGS

    @classmethod
    @contextmanager
    def open(
        cls,
        path: str | Path,
        settings: Mapping[str, Any],
        strangers: Sequence[str] = (),
        file: str = SETTINGS,
        what: str = "a run",
    ) -> Iterator[RunFolder]:
        """The folder, which nobody else can open meanwhile, refused if it belongs to a run with other settings.

        What fails before there is anything to go on from leaves nothing behind.

        strangers: patterns of files that the run would take for its own, which a folder without settings must not have.
        what: lies in the folder, in words.
        """
        path = Path(path)
        folder = cls(path, json.loads(json.dumps(settings)), file)  # where tuples are lists, as in the file
        strangers = [*strangers, CHECKPOINT]
        folder._check(strangers, what)  # before anything is written
        with hold(path):
            folder._check(strangers, what)
            begins = folder.is_new
            before = _files(path) if begins else set()
            try:
                yield folder
            except Exception:
                if begins and all(new.name in (file, METRICS) for new in _files(path) - before):
                    remove(_files(path) - before, path)
                raise

    def _check(self, strangers: Sequence[str], what: str) -> None:
        """Refuse a folder of others."""
        assert self.path is not None
        claim = self.path / self.file
        if self.is_new:
            for name in sorted(str(x.relative_to(self.path)) for one in strangers for x in self.path.glob(one)):
                raise CosetError(f"{self.path} holds a file {name} that is of no run: choose another folder.")
            return
        _refuse_others(self.path, dict(_read(claim, "choose another folder")), self.settings, what)

    def claim(self) -> None:
        """Write down whose folder this is, once the run can start."""
        if self.path is None or not self.is_new:
            return
        try:
            write_json(self.path / self.file, self.settings)
        except OSError as error:
            raise CosetError(f"{self.path} cannot be written: {error.strerror or error}.") from error

    @property
    def is_new(self) -> bool:
        """Whether no run has written its settings yet."""
        return self.path is None or not (self.path / self.file).exists()

    def stage(self, *folders: str, result: str | None = None, metrics: bool = True) -> Stage:
        """A piece of the work, in a folder within this one."""
        return Stage(None if self.path is None else self.path.joinpath(*folders), result, metrics)


NO_FOLDER = RunFolder(None, {})
"""Of a run that keeps nothing."""


@dataclass(frozen=True, eq=False)
class RunSettings:
    """What a run is known by.

    method: a dataclass of settings. data: what is learned from. more: settings that the method does not have.

    The number of replicas is no setting: more may be asked for later.
    """

    method: object
    seed: int
    model: nn.Module
    data: Iterable[Tensor]
    device: torch.device
    more: Mapping[str, Any]

    def folder(self, out: str | Path | None, strangers: Sequence[str] = ()) -> AbstractContextManager[RunFolder]:
        """The folder of the run while it lasts, refused if it belongs to another one; that of none where `out` is None.

        strangers: patterns of files that the run would take for its own.
        """
        if out is None:
            return nullcontext(NO_FOLDER)
        model = self.model
        settings = {
            "method": type(self.method).__name__,
            **asdict(self.method),  # type: ignore[call-overload]
            "seed": self.seed,
            "device": self.device.type,
            **self.more,  # before what follows from it, so that a refusal says what was asked for
            "model": type(model).__name__,
            "tensors": {name: list(x.shape) for name, x in model.state_dict().items() if isinstance(x, Tensor)},
            "data": tensor_digest(self.data),
            "layers": layers_digest(model),  # an activation has no tensor to be known by
        }
        return RunFolder.open(out, settings, strangers)


@dataclass(frozen=True)
class WorkCost:
    """What the work in a folder took: seconds over all calls, and the most memory of any."""

    seconds: float
    gib: float

    @classmethod
    def of(cls, folder: Path) -> WorkCost | None:
        """That of finished work, which lies beside its folder; None if it is not known."""
        file = _cost_file(folder)
        if not file.exists():
            return None
        content = _read(file, "remove it, and the cost of that work is not known")
        return cls(content.number("seconds"), content.number("GiB"))

    def write(self, folder: Path) -> WorkCost:
        """Put down, where it is more than what stood there; what stands there now."""
        before = WorkCost.of(folder) or WorkCost(0.0, 0.0)
        most = WorkCost(max(self.seconds, before.seconds), max(self.gib, before.gib))
        write_json(_cost_file(folder), {"seconds": most.seconds, "GiB": most.gib})
        return most


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Be the only one who writes a folder, which is made if there is none, and removed if nothing is put there."""
    if folder.exists() and not folder.is_dir():
        raise CosetError(f"{folder} cannot be written: it is a file.")
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    with ExitStack() as stack:
        stack.callback(_remove_empty, new)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(folder / LOCK, f"The folder {folder}"))
        except OSError as error:
            raise CosetError(f"{folder} cannot be written: {error.strerror or error}.") from error
        yield


def remove(files: Iterable[Path], root: Path) -> None:
    """Remove files, and the folders within the root that are empty then."""
    for file in files:
        file.unlink(missing_ok=True)
        _remove_empty(itertools.takewhile(lambda one: one != root, file.parents))


def _remove_empty(folders: Iterable[Path]) -> None:
    """Folders without anything in them, those within others first."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def read_metrics(file: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics, one for each epoch; none if there are none yet.

    A line that was being written when the run was killed is left out. It is the last one, and has no end.
    """
    if not os.path.lexists(file):
        return []
    error, rows = _advising("remove that file, and go on without it"), []
    *lines, _ = json_reader.read_text(file, error).split("\n")
    for k, line in enumerate(lines, 1):
        where = f"line {k} of {file}"
        row = JsonObject(json_reader.parse(line, where, error), where, error)
        row.whole("epoch")
        rows.append(dict(row))
    return rows


def digest(key: Mapping[str, Any]) -> str:
    """Eight characters that differ where keys do."""
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:8]


def tensor_digest(tensors: Iterable[Tensor]) -> str:
    """Sixteen characters that differ where the numbers, shapes or dtypes of tensors do."""
    digest = hashlib.sha256()
    for x in tensors:
        digest.update(f"{x.dtype} {tuple(x.shape)}".encode())
        digest.update(x.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def layers_digest(model: nn.Module) -> str:
    """Sixteen characters that differ where the descriptions of models do."""
    return hashlib.sha256(repr(model).encode()).hexdigest()[:16]


def unusual_parameters(model: nn.Module) -> dict[str, Any]:
    """Parameters that are not float32, and a digest of those that are frozen, where there are some."""
    parameters = dict(model.named_parameters())
    dtypes = {name: str(p.dtype) for name, p in parameters.items() if p.dtype != torch.float32}
    frozen = {name: p for name, p in parameters.items() if not p.requires_grad}
    settings: dict[str, Any] = {"dtypes": dtypes} if dtypes else {}
    return {**settings, "frozen": [*frozen, tensor_digest(frozen.values())]} if frozen else settings


def _files(folder: Path) -> set[Path]:
    """All files in a folder and those within, but for the lock."""
    return {path for path in folder.rglob("*") if path != folder / LOCK and (path.is_symlink() or not path.is_dir())}


def _cost_file(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.cost.json")


def _read_value(file: Path) -> StoredValue:
    content = _read(file, "remove it to compute that part again")
    return StoredValue(content["value"], content.number("seconds"), True)


def _read(file: Path, advice: str) -> JsonObject:
    """The object of a file; faults of it, and of its fields, come with advice."""
    error = _advising(advice)
    return JsonObject(json_reader.read(file, error=error), str(file), error)


def _advising(advice: str) -> Fault:
    return lambda text: CosetError(f"{text.rstrip('.')}: {advice}.")


def _is_whole(content: Any) -> bool:
    """Whether the numbers of a checkpoint are those that were written, at which torch does not look.

    Its digest, which is one of its entries, is taken out.
    """
    try:
        return isinstance(content, dict) and content.pop(DIGEST, None) == content_digest(content)
    except (ValueError, RecursionError):  # of containers that hold themselves
        return False


def content_digest(content: object) -> str:
    """Sixteen characters that differ where tensors and numbers in containers of any depth do.

    Raises ValueError where a tensor is none of numbers in memory.
    """
    digest = hashlib.sha256()
    _add(digest, content)
    return digest.hexdigest()[:16]


def _add(digest: hashlib._Hash, content: object) -> None:
    if isinstance(content, Tensor):
        if content.is_conj() or odd_kind(content) is not None:
            raise ValueError("a tensor that no checkpoint has")
        digest.update(tensor_digest([content]).encode())
    elif isinstance(content, dict):
        digest.update(f"dict of {len(content)}".encode())
        for name, value in content.items():
            digest.update(repr(name).encode())
            _add(digest, value)
    elif isinstance(content, list | tuple):
        digest.update(f"{type(content).__name__} of {len(content)}".encode())
        for value in content:
            _add(digest, value)
    else:
        digest.update(repr(content).encode())


def _refuse_others(path: Path, other: Mapping[str, Any], own: Mapping[str, Any], what: str) -> None:
    """Refuse the first setting that two runs do not share, those of this run first."""
    for key in [*own, *(key for key in other if key not in own)]:
        if other.get(key) != own.get(key):
            raise CosetError(
                f"{path} holds {what} with another {key} ({_short(other.get(key))}, not {_short(own.get(key))}): "
                f"choose another folder, or ask for the same {what.removeprefix('a ')}."
            )


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
