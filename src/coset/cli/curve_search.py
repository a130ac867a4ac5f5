"""What `coset curve` learns, and the settings it has: of the curve, of PAM and of an attack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from coset.cli import settings
from coset.core.errors import CosetError
from coset.paths.connect import Connect
from coset.paths.pam import PAM
from coset.solutions.pgd import PGD


@dataclass(frozen=True)
class SearchSettings(Connect):
    """What --set can set: the settings of `Connect`, those of PAM as pam.NAME and those of an attack as attack.NAME."""

    attack: PGD = field(default_factory=PGD)
    pam: PAM = field(default_factory=PAM)


# The noise is that of the ends, and the units of an attack are those of the data.
FIXED = ("noise", "attack.mean", "attack.std")


@dataclass(frozen=True)
class CurveSearch:
    """Settings of the curve, of the permutation if one is learned, and of an attack, by name, if there is one."""

    connect: Connect
    pam: PAM | None
    attack: dict[str, Any] | None

    @classmethod
    def of(cls, words: Sequence[str], options: Mapping[str, Any], pam: bool, robust: bool) -> CurveSearch:
        """From NAME=VALUE and options of the curve; those of a part that the command was not asked for are refused."""
        parts: dict[str, dict[str, Any]] = {"": {}, "pam": {}, "attack": {}}
        for key, value in settings.read(SearchSettings, "a curve", words, options, FIXED).items():
            part, _, name = key.rpartition(".")
            parts[part][name] = value
        for part, option, is_used in (("pam", "--pam", pam), ("attack", "--robust", robust)):
            if parts[part] and not is_used:
                raise CosetError(f"--set {part}.{next(iter(parts[part]))} is of no use without {option}.")
        PGD(**parts["attack"])  # before the data, which its units come from, is read
        return cls(Connect(**parts[""]), PAM(**parts["pam"]) if pam else None, parts["attack"] if robust else None)

    @property
    def epochs(self) -> int:
        """Of all parts of the search together."""
        if self.pam is None:
            return self.connect.epochs
        return self.pam.iterations * (self.pam.epochs + self.connect.epochs)

    def place(self, stream: int) -> tuple[str, int]:
        """A name for the part of the search with this stream of random numbers, and the epochs that come before it.

        There is one part with stream 0; or with PAM the permutation and the curve of each iteration, from 1 on.
        """
        if self.pam is None:
            return "curve", 0
        iteration, second = divmod(stream - 1, 2)
        before = iteration * (self.pam.epochs + self.connect.epochs) + second * self.pam.epochs
        return f"{('permutation', 'curve')[second]} {iteration + 1}", before
