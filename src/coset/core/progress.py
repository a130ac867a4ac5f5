"""How work that takes long says how far it is: one type for training, alignment and measurements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Epoch:
    """How training stands after an epoch.

    Args:
        replica: The number of the solution; of `coset.collect` that of the chunk.
        epoch: How many epochs are done.
        epochs: Of how many.
        loss: Mean over the epoch's training examples.
        accuracy: The same; None for a regression.
        seconds: Of the epoch, for all networks that are trained together.
        copy: Which of the networks that the replica's solution is made of.
        more: What else the method measures, by name.

    Example:
        >>> print(coset.Epoch(0, 3, 10, loss=0.5, accuracy=0.9, seconds=0.1).errors)
        loss 0.5000
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
    """One thing that long work tells its listener: `done` of `total` units of it.

    Args:
        done: How many units are done.
        total: Of how many; None where nobody knows.
        unit: What is counted: "epoch", "step", "sweep", "network", "point" or "stage".
        text: What was just done, in words.
        epoch: What training measured, where an epoch has just ended.

    Example:
        >>> print(coset.Event(3, 10, "epoch"))
        epoch 3 of 10
    """

    done: int
    total: int | None = None
    unit: str = "stage"
    text: str = ""
    epoch: Epoch | None = None

    def __str__(self) -> str:
        return self.text or f"{self.unit} {self.done}" + ("" if self.total is None else f" of {self.total}")


Progress = Callable[[Event], None]
"""Told of each `Event` while work goes on; what it returns is ignored."""


def on_epoch(call: Callable[[Epoch], object]) -> Progress:
    """A listener to training that hears of epochs alone.

    Args:
        call: Called with the `Epoch` of each event that has one.

    Returns:
        What `coset.fit`, `coset.collect`, `coset.find_curve` and `Flow.fit` take as `progress`.

    Example:
        >>> losses = []
        >>> progress = coset.on_epoch(lambda epoch: losses.append(epoch.loss))
        >>> _ = coset.fit(model, digits.train, coset.MAP(epochs=2), progress=progress)
        >>> losses[1] < losses[0]
        True
    """

    def progress(event: Event) -> None:
        if event.epoch is not None:
            call(event.epoch)

    return progress
