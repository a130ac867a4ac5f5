"""The folder of a run: what was asked, how it goes, where it stands, and what came out.

settings.json, and for each replica a folder with metrics.jsonl (a line an epoch), checkpoint.pt (while it is
under way) and solution.safetensors (once it is done). A run that was killed goes on from its last checkpoint. Networks
that are trained together have one checkpoint, with the first of them. A solution that is made of several networks has
a folder for each of them in its own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from coset.core.errors import CosetError
from coset.core.files import atomic_write, write_json
from coset.solutions.load import load
from coset.solutions.solution import Solution
from coset.training.randomness import Row

SETTINGS, METRICS, CHECKPOINT, SOLUTION = "settings.json", "metrics.jsonl", "checkpoint.pt", "solution.safetensors"


@dataclass(frozen=True)
class RowFolder:
    """The files of one network."""

    path: Path

    def finished(self, device: torch.device) -> Solution | None:
        """The solution, if there is one already."""
        file = self.path / SOLUTION
        return load(file, device) if file.exists() else None

    def finish(self, solution: Solution) -> None:
        """Keep the solution; from now on the checkpoint is of no use."""
        self.path.mkdir(parents=True, exist_ok=True)
        solution.save(self.path / SOLUTION)
        (self.path / CHECKPOINT).unlink(missing_ok=True)

    def checkpoint(self, content: dict[str, Any]) -> None:
        """Replace the checkpoint; `content` has the number of epochs done as `epoch`."""
        # Through a file of Python's, since torch alone says of a full disk that a position is unexpected.
        with atomic_write(self.path / CHECKPOINT) as temporary, temporary.open("wb") as file:
            torch.save(content, file)

    def resume(self, device: torch.device) -> dict[str, Any] | None:
        """The last checkpoint."""
        file = self.path / CHECKPOINT
        if not file.exists():
            return None
        try:
            content: dict[str, Any] = torch.load(file, map_location=device, weights_only=True)
            if not {"epoch", "group", "run", "randomness", "seconds"} <= content.keys():
                raise ValueError("parts are missing")
        except Exception as error:  # a damaged pickle can raise anything
            raise CosetError(f"{file} is damaged: remove it to start again.") from error
        return content

    def group(self) -> list[Row] | None:
        """The networks of the checkpoint."""
        content = self.resume(torch.device("cpu"))
        return None if content is None else [tuple(row) for row in content["group"]]

    def log(self, line: dict[str, float | None]) -> None:
        """Append a line to the metrics."""
        with (self.path / METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def keep_metrics(self, epochs: int) -> None:
        """Drop what was logged after the checkpoint, since those epochs come again."""
        self.path.mkdir(parents=True, exist_ok=True)
        file = self.path / METRICS
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)[:epochs] if file.exists() else []
        with atomic_write(file) as temporary:
            temporary.write_text("".join(lines), encoding="utf-8")


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run, and what the run is: `settings` as JSON can hold them."""

    path: Path
    settings: dict[str, Any]

    def write_settings(self) -> None:
        """Claim the folder for this run, once it can start."""
        if (self.path / SETTINGS).exists():
            return
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_json(self.path / SETTINGS, self.settings)
        except OSError as error:
            raise CosetError(f"{self.path} cannot be written: {error.strerror or error}.") from error


def open_folder(
    out: str | Path,
    method: object,
    seed: int,
    model: nn.Module,
    data: Iterable[Tensor],
    device: torch.device,
    **more: Any,
) -> RunFolder:
    """The folder, refused if its run had other settings; nothing is written yet.

    `method` is a dataclass of settings, `data` what is learned from, and `more` are settings that the method does not
    have. The number of replicas is no setting: more may be asked for later.
    """
    out = Path(out)
    if out.exists() and not out.is_dir():
        raise CosetError(f"{out} cannot be written: it is a file.")
    wanted = {
        "method": type(method).__name__,
        **asdict(method),  # type: ignore[call-overload]
        "seed": seed,
        "device": device.type,
        **more,  # before what follows from it, so that a refusal says what was asked for
        "model": type(model).__name__,
        "tensors": {name: list(x.shape) for name, x in model.state_dict().items() if isinstance(x, torch.Tensor)},
        "data": digest(data),
        "layers": hashlib.sha256(repr(model).encode()).hexdigest()[:16],  # an activation has no tensor to be known by
    }
    wanted = json.loads(json.dumps(wanted))  # where tuples are lists, as in the file
    file = out / SETTINGS
    if file.exists():
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise CosetError(f"{file} is not JSON: choose another folder.") from error
        if not isinstance(found, dict):
            raise CosetError(f"{file} does not hold the settings of a run: choose another folder.")
        for key in [*wanted, *(key for key in found if key not in wanted)]:
            if found.get(key) != wanted.get(key):
                raise CosetError(
                    f"{out} holds a run with another {key} ({_short(found.get(key))}, not {_short(wanted.get(key))}): "
                    "choose another folder, or ask for the same run."
                )
    return RunFolder(out, wanted)


def unusual(model: nn.Module) -> dict[str, Any]:
    """Parameters that are not float32, and a digest of those that are frozen, where there are some."""
    parameters = dict(model.named_parameters())
    dtypes = {name: str(p.dtype) for name, p in parameters.items() if p.dtype != torch.float32}
    frozen = {name: p for name, p in parameters.items() if not p.requires_grad}
    found: dict[str, Any] = {"dtypes": dtypes} if dtypes else {}
    return {**found, "frozen": [*frozen, digest(frozen.values())]} if frozen else found


def digest(tensors: Iterable[Tensor]) -> str:
    digest = hashlib.sha256()
    for x in tensors:
        digest.update(f"{x.dtype} {tuple(x.shape)}".encode())
        digest.update(x.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
