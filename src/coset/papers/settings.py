"""How to reproduce a figure: at which scale, where, from which seed; and the parts that are kept on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from coset._version import __version__
from coset.errors import CosetError
from coset.keep import digest, keep
from coset.memory import fresh_peak_gib

# Half a minute on one core; minutes on a CPU; what the paper did.
SCALES = ("smoke", "short", "paper")


def _silent(text: str) -> None:
    pass


@dataclass(frozen=True)
class Settings:
    """scale: one of SCALES. out: the folder for results; parts of them lie in out/parts. say: hears what goes on.

    reused: the seconds that the parts found there once took. peaks: the most memory of parts, in GiB. folders: those
    that were asked for, and whether they were there before, begun by an earlier call.
    """

    scale: str = "smoke"
    device: str = "cpu"
    seed: int = 0
    out: Path = Path("out/reproduce")
    say: Callable[[str], None] = _silent
    reused: list[float] = field(default_factory=list, compare=False, repr=False)
    peaks: list[float] = field(default_factory=list, compare=False, repr=False)
    folders: dict[Path, bool] = field(default_factory=dict, compare=False, repr=False)

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
        file = self._part(name, sizes, ".json")
        found = keep(file, self._key(sizes) | {"name": name}, lambda: {"part": compute(), "GiB": self.peak()})
        if found.was_read:
            if not (isinstance(found.value, dict) and found.value.keys() == {"part", "GiB"}):
                raise CosetError(f"{file} is a part of another version: remove it to compute that part again.")
            self.reused.append(found.seconds)
            self.peaks.append(found.value["GiB"])
        return found.value["part"]

    def peak(self) -> float:
        """The most memory in GiB, which `peaks` then has: on CUDA since the last call, else of the process so far."""
        self.peaks.append(fresh_peak_gib(self.device))
        return self.peaks[-1]

    def folder(self, name: str, **sizes: Any) -> Path:
        """A folder of its own for a part that keeps itself, such as `coset.fit(out=...)`."""
        folder = self._part(name, sizes, "")
        self.folders.setdefault(folder, folder.exists())
        return folder

    @property
    def whole(self) -> bool:
        """Whether nothing was there yet that an earlier call had done."""
        return not self.reused and not any(self.folders.values())

    def _key(self, sizes: Mapping[str, Any]) -> dict[str, Any]:
        device = torch.device(self.device).type
        return {"coset": __version__, "scale": self.scale, "seed": self.seed, "device": device, **sizes}

    def _part(self, name: str, sizes: Mapping[str, Any], suffix: str) -> Path:
        return self.out / "parts" / f"{name}-{self.scale}-{digest(self._key(sizes))}{suffix}"
