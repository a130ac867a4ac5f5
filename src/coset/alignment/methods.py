"""Settings of the methods that have some."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from coset.alignment.activations import constrained, cross_statistics
from coset.alignment.driver import Progress
from coset.checks import State
from coset.data import Data, as_split
from coset.errors import CosetError, DataError
from coset.symmetries import Symmetry


@dataclass(frozen=True)
class Activations:
    """Match units that are active together (tatro2020, Algorithm 1).

    kind
        activations before or after the nonlinearity
    measure
        correlation, or L2 distance
    bounded
        after the nonlinearity, but without moving apart before it: tatro2020 Eq. 31
    """

    kind: Literal["post", "pre"] = "post"
    measure: Literal["correlation", "l2"] = "correlation"
    bounded: bool = False
    batch_size: int = 500

    def __post_init__(self) -> None:
        for name, choices in (("kind", ("post", "pre")), ("measure", ("correlation", "l2"))):
            if getattr(self, name) not in choices:
                raise CosetError(
                    f"The {name} of Activations is {getattr(self, name)!r}; choose {' or '.join(choices)}."
                )

    def scores(
        self, a: State, b: State, sym: Symmetry, model: nn.Module, data: Data, device: torch.device, progress: Progress
    ) -> dict[str, Tensor]:
        """set -> scores of A's units against B's, for `Problem.linear`."""

        def statistics(kind: Literal["pre", "post"], measure: Literal["correlation", "l2"]) -> dict[str, Tensor]:
            progress(f"comparing activations ({kind}, {measure})")
            return cross_statistics(a, b, sym, model, data, kind, measure, batch_size=self.batch_size, device=device)

        if not bool(as_split(data).inputs.isfinite().all()):
            raise DataError("The inputs have NaN or infinite values, so activations cannot be compared.")
        found = statistics(self.kind, self.measure)
        if not self.bounded:
            return found
        before = statistics("pre", "l2")
        for name, scores in found.items():
            if scores.dim() == 2 and name in before:
                # The constrained optimum as scores of its own: ones at its pairs.
                p = constrained(scores, before[name])
                found[name] = torch.zeros_like(scores).scatter_(1, p.to(scores.device).unsqueeze(1), 1.0)
        return found
