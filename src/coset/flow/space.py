"""Where a flow lives: networks as coordinates, and the paths that join them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from coset.checks import State
from coset.errors import CosetError
from coset.symmetries import Symmetry
from coset.weightspace.factors import unit_norms
from coset.weightspace.manifold import Manifold, manifold

Geometry = Literal["euclidean", "normalized", "geometric"]


@dataclass(frozen=True, eq=False)
class Space:
    """The coordinates [n, D] of the networks with one symmetry (`weightflow`).

    euclidean
        all weights as they are, joined by straight lines
    normalized
        positive factors are canonical, so that the weights into a unit are a direction; joined by straight lines
        through the ambient space, whose ends are brought back to norm one
    geometric
        the same networks, joined by geodesics on the product of spheres and flat space

    The last layer is no direction in any of them: its norm is the temperature of the softmax and no symmetry.

    manifold
        what paths and velocities live on; without spheres for straight lines
    ends
        what networks lie on: has spheres unless the geometry is Euclidean
    template
        a state with the dtypes, and whatever has no coordinates, of the networks
    """

    sym: Symmetry
    geometry: Geometry
    manifold: Manifold
    ends: Manifold
    template: State

    def encode(self, states: State) -> Tensor:
        """[n, D] of a population, with units in their order; factors become canonical but in the Euclidean geometry."""
        if self.geometry != "euclidean":
            states = self.sym.act(unit_norms(states, self.sym), states)
        return self.ends.coordinates(states).float()

    def decode(self, x: Tensor) -> dict[str, Tensor]:
        """The population at [n, D], brought back to the networks that are possible."""
        return self.ends.state(self.ends.project(x), self.template)

    def to(self, device: str | torch.device) -> Space:
        """The space with its tables on a device."""
        where = torch.device(device)
        return replace(
            self,
            manifold=replace(self.manifold, chart=self.manifold.chart.to(where)),
            ends=replace(self.ends, chart=self.ends.chart.to(where)),
            template={name: x.to(where) for name, x in self.template.items()},
        )


def space(sym: Symmetry, template: State, geometry: Geometry) -> Space:
    """The space of networks like `template`, one state."""
    if geometry not in get_args(Geometry):
        raise CosetError(f"The geometry of a flow must be {' or '.join(get_args(Geometry))}, not {geometry!r}.")
    curved = manifold(sym, template)
    if geometry == "euclidean":
        flat = Manifold(curved.chart.flat(), {}, 0.0)
        return Space(sym, geometry, flat, flat, dict(template))
    straight = Manifold(replace(curved.chart, directions=()), {}, 0.0)
    return Space(sym, geometry, curved if geometry == "geometric" else straight, curved, dict(template))
