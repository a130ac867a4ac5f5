"""Where a flow lives: networks as coordinates, and the paths that join them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, get_args

import torch
from torch import Tensor

from coset.core import state as networks
from coset.core.errors import CosetError, StateError
from coset.core.state import State
from coset.symmetries.symmetry import Symmetry
from coset.weightspace.chart import OFF_SPHERE
from coset.weightspace.gauge import unit_norms
from coset.weightspace.manifold import Manifold, manifold

Geometry = Literal["euclidean", "normalized", "geometric"]
COORDINATES = 2**23  # of networks that are looked at at a time


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
    floors
        the least value of a tensor that networks can have, as zero of variances
    """

    sym: Symmetry
    geometry: Geometry
    manifold: Manifold
    ends: Manifold
    template: State
    floors: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def single(self) -> State:
        """The template with floating tensors in float32, in which fields work."""
        return {name: x.float() if x.is_floating_point() else x for name, x in self.template.items()}

    @property
    def shared(self) -> list[str]:
        """Floating tensors that are no coordinates, as constants of a model: the same in all networks."""
        return [
            name for name, x in self.template.items() if x.is_floating_point() and name not in self.ends.chart.shapes
        ]

    @property
    def at_once(self) -> int:
        """How many networks to look at at a time."""
        return max(COORDINATES // max(self.ends.size, 1), 1)

    def encode(self, population: State) -> Tensor:
        """[n, D] on the device of the space, of a population on any; with units in their order.

        Factors become canonical but in the Euclidean geometry. Some networks at a time, so that of a large population
        not more is held than its coordinates.
        """
        device = self.ends.chart.index.device
        found = torch.empty(networks.size(population), self.ends.size, device=device)
        for part in (slice(k, k + self.at_once) for k in range(0, len(found), self.at_once)):
            found[part] = self._encoded({name: x[part].to(device) for name, x in population.items()})
        return found

    def _encoded(self, states: State) -> Tensor:
        if self.geometry == "euclidean":
            return self.ends.coordinates(states).float()
        states = self.sym.act(unit_norms(states, self.sym), states)
        pins, own = (self.ends.chart.pins(given) for given in (states, self.template))
        if bool(((pins - own.to(pins)).abs() > OFF_SPHERE).any()):
            raise StateError(
                "Networks differ in the signs of single weights that fix a factor, such as those of a norm, which no "
                "path on spheres joins: use the euclidean geometry."
            )
        try:
            return self.ends.coordinates(states).float()
        except StateError as error:
            raise StateError(f"{error} Leave networks with such a unit out, or use the euclidean geometry.") from error

    def decode(self, x: Tensor) -> dict[str, Tensor]:
        """The population at [n, D], brought back to the networks that are possible."""
        found = self.ends.state(self.ends.project(x), self.template)
        return found | {name: found[name].clamp(min=floor) for name, floor in self.floors.items()}

    def outside(self, x: Tensor) -> Tensor:
        """[n] which of the networks at [n, D] `decode` brings back, since a tensor is below its floor."""
        found = self.ends.state(self.ends.project(x), self.template)
        below = [(found[name] < floor).flatten(1).any(1) for name, floor in self.floors.items()]
        return torch.stack(below).any(0) if below else torch.zeros(len(x), dtype=torch.bool, device=x.device)

    def to(self, device: str | torch.device) -> Space:
        """The space with its tables on a device."""
        where = torch.device(device)
        return replace(
            self,
            manifold=replace(self.manifold, chart=self.manifold.chart.to(where)),
            ends=replace(self.ends, chart=self.ends.chart.to(where)),
            template={name: x.to(where) for name, x in self.template.items()},
        )


def space(sym: Symmetry, template: State, geometry: Geometry, floors: Mapping[str, float] | None = None) -> Space:
    """The space of networks like `template`, one state."""
    if geometry not in get_args(Geometry):
        raise CosetError(f"The geometry of a flow must be {' or '.join(get_args(Geometry))}, not {geometry!r}.")
    curved = manifold(sym, template)
    if geometry == "euclidean":
        flat = Manifold(curved.chart.flat(), {}, 0.0)
        return Space(sym, geometry, flat, flat, dict(template), floors or {})
    straight = Manifold(replace(curved.chart, directions=()), {}, 0.0)
    canonical = sym.act(unit_norms(template, sym), template)
    return Space(sym, geometry, curved if geometry == "geometric" else straight, curved, canonical, floors or {})


def holding(sym: Symmetry, names: Collection[str]) -> Symmetry:
    """The symmetry of networks that share the tensors `names`: those pass through, with the factors that move them."""
    axes = {name: row for name, row in sym.axes.items() if name not in names}
    moved = [s for s in sym.scalings if not any(member.tensor in names for member in s.members)]
    return replace(sym, axes=axes, scalings=tuple(moved))
