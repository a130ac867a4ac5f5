"""How to reproduce a figure: at which scale, where, from which seed; and the parts that are kept on the way."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from coset import Epoch
from coset._version import __version__
from coset.core.errors import CosetError
from coset.core.memory import fresh_peak_gib
from coset.core.resume import Stage, digest
from coset_papers.ledger import Ledger

# Half a minute on one core; minutes on a CPU; what the paper did.
SCALES = ("smoke", "short", "paper")


def _silent(text: str) -> None:
    pass


@dataclass(frozen=True)
class Settings:
    """scale: one of SCALES. out: the folder for results; parts of them lie in out/parts. say: hears what goes on.

    ledger: what the parts that were asked for cost.
    """

    scale: str = "smoke"
    device: str = "cpu"
    seed: int = 0
    out: Path = Path("out/reproduce")
    say: Callable[[str], None] = _silent
    ledger: Ledger = field(default_factory=Ledger, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.scale not in SCALES:
            raise CosetError(f"There is no scale {self.scale!r}, only {', '.join(SCALES)}.")
        if not 0 <= self.seed < 2**63:
            raise CosetError(f"The seed must be in 0 ... 2^63 - 1, but it is {self.seed}.")
        try:
            torch.empty(0, device=self.device)  # says in fewer words that there is no CUDA
            torch.Generator(self.device)
        except (RuntimeError, AssertionError) as error:  # the latter from a build without CUDA
            reason = str(error).splitlines()[0]
            raise CosetError(f"The device {self.device!r} cannot be used: {reason}") from error

    def generator(self) -> torch.Generator:
        """Random numbers on the device, from the seed; call it once for each part that may be kept."""
        return torch.Generator(self.device).manual_seed(self.seed)

    def keep(self, name: str, compute: Callable[[], Any], **sizes: Any) -> Any:
        """`compute()` as JSON gives it back, from out/parts if it was computed before.

        The part is known by its name, `sizes`, the scale, seed and device, and the version of coset; `compute` must
        depend on nothing else.
        """
        file, mark = self._part(name, sizes, ".json"), self.ledger.mark()

        def part() -> dict[str, Any]:
            return {"part": compute(), "GiB": self.peak(), **self.ledger.since(mark)}

        result = Stage(file.parent, file.name).value(self._key(sizes) | {"name": name}, part)
        value, own = result.value, 0.0
        if result.was_read:
            if not (isinstance(value, dict) and value.keys() == {"part", "GiB", "folders", "trained"}):
                raise CosetError(f"{file} is a part of another version: remove it to compute that part again.")
            for folder in value["folders"]:
                self.ledger.ask(file.with_name(folder))
            self.ledger.peaks.append(value["GiB"])
            own = result.seconds - value["trained"]
        self.ledger.parts.setdefault(file, own)
        return value["part"]

    def peak(self) -> float:
        """The most memory in GiB, which the ledger gets: on CUDA since the last call, else of the process so far."""
        gib = fresh_peak_gib(self.device)
        self.ledger.peaks.append(gib)
        return gib

    def folder(self, name: str, **sizes: Any) -> Path:
        """A folder of its own for a part that keeps itself, such as `coset.fit(out=...)`: see `working`."""
        folder = self._part(name, sizes, "")
        self.ledger.ask(folder)
        return folder

    def working(self, folder: Path) -> Callable[[float], float]:
        """Work in a folder begins, or goes on. What is returned is told the seconds of all calls when it is done, and
        gives the most memory in GiB.
        """
        self.peak()  # of what came before
        begin = time.perf_counter()
        return lambda seconds: self.ledger.spent(folder, seconds, begin, self.peak())

    def listener(self, text: Callable[[Epoch], str | None], times: int = 10) -> Callable[[Epoch], None]:
        """Says `text` of some epochs of a training, about `times` of them; nothing where it is None."""

        def hear(epoch: Epoch) -> None:
            words = text(epoch) if epoch.epoch % max(epoch.epochs // times, 1) == 0 else None
            if words is not None:
                self.say(words)

        return hear

    def _key(self, sizes: Mapping[str, Any]) -> dict[str, Any]:
        device = torch.device(self.device).type
        return {"coset": __version__, "scale": self.scale, "seed": self.seed, "device": device, **sizes}

    def _part(self, name: str, sizes: Mapping[str, Any], suffix: str) -> Path:
        return self.out / "parts" / f"{name}-{self.scale}-{digest(self._key(sizes))}{suffix}"
