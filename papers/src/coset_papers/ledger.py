"""What a figure cost in seconds and memory, over all calls that worked for it."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coset.core.resume import METRICS, WorkCost


@dataclass(frozen=True)
class Mark:
    """Where a ledger stood: how many folders had been asked for, and the seconds spent on them."""

    requests: int
    trained: float


@dataclass
class Ledger:
    """Work is done for parts, which are kept as JSON, and in folders, where trainings keep themselves.

    A part may need folders. It knows which, and its own seconds are without theirs, so that nothing counts twice and
    whoever reads a part knows what it took to come to it. The cost of a folder lies beside it once its work is done.

    parts, folders: the seconds that earlier calls spent on each; None if that is not known. peaks: GiB.
    """

    parts: dict[Path, float] = field(default_factory=dict)
    folders: dict[Path, float | None] = field(default_factory=dict)
    peaks: list[float] = field(default_factory=list)
    _requests: list[Path] = field(default_factory=list)
    _trained: float = 0.0

    @property
    def seconds(self) -> float:
        """Of earlier calls, as far as they are known."""
        return sum(self.parts.values()) + sum(each or 0.0 for each in self.folders.values())

    @property
    def whole(self) -> bool:
        """Whether all seconds of earlier calls are known."""
        return None not in self.folders.values()

    def ask(self, folder: Path) -> None:
        """Something in the folder is needed."""
        self._requests.append(folder)
        if folder in self.folders:
            return
        cost = WorkCost.of(folder)
        self.folders[folder] = cost.seconds if cost else None if folder.exists() else 0.0
        if cost:
            self.peaks.append(cost.gib)

    def spent(self, folder: Path, seconds: float, begin: float, gib: float) -> float:
        """The work in a folder is done: its epochs took `seconds` in all, this call began at `begin` and took `gib`.

        Returned is the most memory of all calls. begin: by `time.perf_counter`; from there on preparations count, too.
        """
        now = time.perf_counter() - begin
        if self.folders[folder] is None:  # it was begun by an earlier call
            self.folders[folder] = max(0.0, seconds - now)
        self._trained += now
        return WorkCost(max(seconds, now), gib).write(folder).gib

    def mark(self) -> Mark:
        """For `since`."""
        return Mark(len(self._requests), self._trained)

    def since(self, mark: Mark) -> dict[str, Any]:
        """The folders that were asked for since then, by name, and the seconds that were spent on them."""
        names = sorted({folder.name for folder in self._requests[mark.requests :]})
        return {"folders": names, "trained": self._trained - mark.trained}


def seconds_of(folder: Path) -> float:
    """How long the run of a folder took, by its epochs; chains and members go at once, and each has those of all."""
    lines = min(folder.rglob(METRICS)).read_text(encoding="utf-8").splitlines()
    return sum(float(json.loads(line)["seconds"]) for line in lines)
