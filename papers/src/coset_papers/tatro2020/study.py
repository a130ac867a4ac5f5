"""Pairs of networks of one kind and the curves between them: what the figures have in common."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from coset import (
    MAP,
    PAM,
    PGD,
    Adversarial,
    Connect,
    Curve,
    Epoch,
    Progress,
    Solution,
    find_curve,
    fit,
    load_curve,
    on_epoch,
    zoo,
)
from coset.data import DataSet
from coset.paths.find_curve import CURVE
from coset_papers.images import IMAGE_SETS, load
from coset_papers.settings import Settings
from coset_papers.tatro2020.curve_kinds import ALIGNED, KINDS, PAM_ALIGNED, PAM_UNALIGNED, UNALIGNED


@dataclass(frozen=True)
class CurvePlan:
    """How many pairs of a model of the zoo are trained, and how curves between them are learned.

    pam: None if only curves with a fixed permutation are learned. attack: networks and curves are trained under it; its
    mean and std are those of the images.
    """

    model: str
    pairs: int
    ends: MAP
    curves: Connect
    pam: PAM | None = None
    attack: PGD | None = None


@dataclass(frozen=True)
class CurveStudy:
    """A plan for a network of the paper on `examples` of the images `data`, all of them when None.

    Figures that ask for the same networks and curves at the same scale share them.
    """

    network: str
    data: str
    plan: CurvePlan
    examples: int | None = None

    @property
    def title(self) -> str:
        """Network and data in words."""
        return f"{self.network}, {IMAGE_SETS[self.data].title}"

    @property
    def kinds(self) -> tuple[str, ...]:
        """The curves of Table 1."""
        if self.plan.pam is None:
            return UNALIGNED, ALIGNED
        return UNALIGNED, PAM_UNALIGNED, PAM_ALIGNED, ALIGNED

    def images(self, settings: Settings) -> DataSet:
        """Training and test examples on the device."""
        return load(self.data, settings.device, self.examples)

    def build(self) -> nn.Module:
        """The model; its own weights do not count."""
        source = IMAGE_SETS[self.data]
        return zoo.build(self.plan.model, in_channels=source.channels, classes=source.classes)

    def attack(self, settings: Settings) -> PGD | None:
        """The attack in the units of the images."""
        attack = self.plan.attack
        return None if attack is None else attack.in_units_of(self.images(settings))

    def key(self) -> dict[str, Any]:
        """All that the curves depend on, as JSON can hold it; how many pairs there are is not among it."""
        plan = asdict(self.plan)
        del plan["pairs"]
        return {"data": self.data, "examples": self.examples, **plan}

    def ends(self, settings: Settings) -> list[Solution]:
        """The trained networks, of which 2k and 2k + 1 are pair k; those that were trained before are read."""
        method, attack = self.plan.ends, self.attack(settings)
        if attack is not None:
            method = Adversarial(**asdict(method), attack=attack)
        key_of_ends = {key: value for key, value in self.key().items() if key not in ("curves", "pam")}
        return fit(
            self.build(),
            self.images(settings).train,
            method,
            2 * self.plan.pairs,
            settings.seed,
            settings.device,
            out=settings.folder(f"tatro2020-{self.data}-ends", **key_of_ends),
            progress=self._progress(settings, lambda epoch: f"network {epoch.replica}"),
        )

    def curve(self, settings: Settings, kind: str, pair: int) -> Curve:
        """The learned curve of a kind from the first network of a pair to an image of the second.

        One that was learned before is read.
        """
        how, folder = KINDS[kind], self._folder(settings, kind, pair)
        if (folder / CURVE).exists():  # without reading all images to see that they are the same
            return load_curve(folder / CURVE, settings.device)
        a, b = self.ends(settings)[2 * pair : 2 * pair + 2]
        return find_curve(
            a,
            b,
            self.build().to(settings.device),
            self.images(settings).train,
            replace(self.plan.curves, attack=self.attack(settings)),
            align=how.align or False,
            pam=(how.pam and self.plan.pam) or False,
            seed=settings.seed + pair,
            device=settings.device,
            out=folder,
            progress=self._progress(settings, lambda epoch: f"{how.title} curve {pair}"),
        )

    def trace(self, settings: Settings, kind: str, pair: int) -> list[float]:
        """The training loss of each epoch while that curve is learned, at random points of it."""

        def read() -> list[float]:
            self.curve(settings, kind, pair)
            file = self._folder(settings, kind, pair) / "curve-1" / "metrics.jsonl"
            return [json.loads(line)["loss"] for line in file.read_text(encoding="utf-8").splitlines()]

        losses: list[float] = settings.keep("tatro2020-trace", read, **self.key(), kind=kind, pair=pair)
        return losses

    def _folder(self, settings: Settings, kind: str, pair: int) -> Path:
        key = self.key()
        if not KINDS[kind].pam:
            del key["pam"]
        return settings.folder(f"tatro2020-{self.data}-{kind}", **key, kind=kind, pair=pair)

    def _progress(self, settings: Settings, what: Callable[[Epoch], str]) -> Progress:
        return on_epoch(
            settings.listener(lambda epoch: f"{self.title}: {what(epoch)}, epoch {epoch.epoch} of {epoch.epochs}")
        )
