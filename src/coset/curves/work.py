"""What the parts of one search for a curve share: data, folder, progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from coset.curves.ends import Ends
from coset.data import Split
from coset.inference.drive import Progress, drive
from coset.inference.folder import RowFolder
from coset.inference.method import Course, Problem
from coset.inference.randomness import Randomness
from coset.solutions.likelihood import likelihood_of

Learned = TypeVar("Learned", bound=Course)


@dataclass(frozen=True, eq=False)
class Work:
    """`folder` is where all is kept, None for nowhere."""

    split: Split
    seed: int
    device: torch.device
    folder: Path | None
    progress: Progress | None
    checkpoint_every: int

    def learn(self, ends: Ends, make: Callable[[Problem], Learned], epochs: int, part: str, stream: int) -> Learned:
        """Let what `make` makes go through its epochs, with its checkpoint in the folder `part`.

        `stream` is the number of its random numbers, another one for each part of a search.
        """
        group = [(stream,)]
        randomness = Randomness(self.seed, group, self.device)
        start = ends.mean[:1]
        run = make(Problem(ends.network, start, self.split, likelihood_of(self.split.targets), randomness))
        folders = [] if self.folder is None else [RowFolder(self.folder / part)]
        drive(
            run,
            epochs,
            self.split,
            randomness,
            group,
            folders,
            self.device,
            self.progress,
            self.checkpoint_every,
            lambda row: f"Learning ({part})",
        )
        return run
