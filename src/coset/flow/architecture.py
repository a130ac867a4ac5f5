"""Which network on graphs a flow is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import nn

from coset.errors import CosetError
from coset.inference.stepping import check_choices, check_positive
from coset.weightspace.pna import PNA
from coset.weightspace.relational import RelationalTransformer
from coset.weightspace.unit_transformer import UnitTransformer
from coset.weightspace.wiring import Wiring


@dataclass(frozen=True)
class Architecture:
    """kind: "units" has one token a hidden unit, "relational" and "pna" a node for every unit, inputs too.

    heads: of "units". recompute: less memory for a third more time, of the other two.
    """

    kind: Literal["units", "relational", "pna"] = "units"
    width: int = 256
    depth: int = 6
    heads: int = 8
    recompute: bool = False

    def __post_init__(self) -> None:
        check_choices(self)
        check_positive(self, "width", "depth", "heads")
        if self.kind == "units" and self.width % self.heads:
            raise CosetError(f"Architecture: width must be a multiple of heads, unlike {self.width} of {self.heads}.")

    def build(self, wiring: Wiring, condition: int) -> nn.Module:
        """A network for conditions of so many numbers, from torch's global generator."""
        if self.kind == "units":
            return UnitTransformer(wiring, self.width, self.depth, self.heads, condition=condition)
        made = RelationalTransformer if self.kind == "relational" else PNA
        return made(wiring, self.width, self.depth, condition=condition, recompute=self.recompute)
