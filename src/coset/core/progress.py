"""How work that takes long says how far it is: one type for training, alignment and measurements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Epoch:
    """How training stands: loss and accuracy are means over the epoch's training examples, epochs count from 1.

    copy: which of the networks that the replica's solution is made of. accuracy: None for a regression.
    seconds: of the epoch, for all networks that are trained together. more: what else the method measures, by name.
    """

    replica: int
    epoch: int
    epochs: int
    loss: float
    accuracy: float | None
    seconds: float
    copy: int = 0
    more: Mapping[str, float] = field(default_factory=dict)

    @property
    def errors(self) -> str:
        """The loss and what else is measured, in words."""
        return ", ".join(f"{name} {value:.4f}" for name, value in {"loss": self.loss, **self.more}.items())


@dataclass(frozen=True)
class Event:
    """`done` of `total` units of work, such as "epoch", "step", "sweep", "network" or "point".

    total: None where nobody knows how much there is to do. text: what was just done, in words.
    epoch: what training measured, where an epoch has just ended.
    """

    done: int
    total: int | None
    unit: str
    text: str = ""
    epoch: Epoch | None = None


Progress = Callable[[Event], None]
"""Told of each `Event` while work goes on; what it returns is ignored."""

Counted = Callable[[int, int], None]
"""Told how much is done, of how much: steps, or networks."""
