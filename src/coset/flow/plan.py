"""What a flow is, before it has learned anything."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from coset.errors import CosetError
from coset.flow.architecture import Architecture
from coset.flow.field import Prediction
from coset.flow.space import Geometry
from coset.inference.stepping import check_choices, check_positive

Pairing = Literal["training", "ot", "independent"]


@dataclass(frozen=True)
class Plan:
    """geometry: see `coset.flow.space.Space`.

    coupling: which start belongs to which network. "training": its own, which the population must know. "ot": the
    closest of new ones in groups of `group`, modulo permutations if no hidden units meet. "independent": any.
    architecture, predict: of the field; whether its network predicts velocities or end points.
    conditions: labels of the population that samples can be asked for.
    align: bring all networks in the order of the first one before; by default where the coupling is not "training".
    """

    geometry: Geometry = "geometric"
    coupling: Pairing = "training"
    architecture: Architecture = field(default_factory=Architecture)
    predict: Prediction = "velocity"
    conditions: tuple[str, ...] = ()
    align: bool | None = None
    group: int = 64

    def __post_init__(self) -> None:
        check_choices(self)
        check_positive(self, "group")
        if len(set(self.conditions)) < len(self.conditions):
            raise CosetError(f"The conditions {', '.join(self.conditions)} name one twice.")
        if self.align and self.coupling == "training":
            raise CosetError("Networks that are coupled with their own starts keep their order: leave align out.")

    @property
    def aligns(self) -> bool:
        return self.coupling != "training" if self.align is None else self.align
