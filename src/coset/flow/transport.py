"""Minibatch optimal transport: starts and networks that lie close become pairs."""

from __future__ import annotations

import torch
from torch import Tensor

from coset.assignment import solve, solve_many
from coset.errors import CosetError
from coset.flow.base import Base
from coset.flow.coupling import Coupling
from coset.flow.space import Space
from coset.weightspace.graph import neural_graph
from coset.weightspace.tokens import TokenLayout
from coset.weightspace.wiring import Wiring

FEWEST = 8  # networks of one condition on the average


class Transport(Coupling):
    """Every epoch new starts, and within random groups of networks the matching of least total squared distance.

    Each start is used once. Networks are matched among those of the same condition only: otherwise the start of a path
    would tell its condition, and a sample under one condition would begin at starts that it never saw.

    Distances are between orbits if no hidden units meet: the units of a start are reordered so that it is closest.
    That is right for a field that is equivariant, since all orders of a pair are one. With two hidden layers distances
    are of networks as they are, so align them first.

    group
        how many networks are matched together
    """

    def __init__(self, ends: Tensor, conditions: Tensor | None, base: Base, group: int) -> None:
        super().__init__(ends, conditions)
        self.base, self.group = base, group
        self._table = torch.empty_like(ends)
        units = UnitDistances(base.space)
        self._units = None if units.meeting else units
        self._classes = [at.to(ends.device) for at in _classes(conditions, len(ends))]

    def refresh(self, generator: torch.Generator) -> None:
        device = self.ends.device
        fresh = self.base.draw(len(self.ends), generator)
        for members in self._classes:
            order = members[torch.randperm(len(members), generator=generator, device=device)]
            for at in torch.split(order, self.group):
                self._table[at] = self._matched(fresh[at], self.ends[at])

    def starts(self, at: Tensor, generator: torch.Generator) -> Tensor:
        return self._table[at]

    def _matched(self, starts: Tensor, ends: Tensor) -> Tensor:
        """[n, D] the starts in the order of the ends that they belong to."""
        if self._units is not None:
            return self._units.matched(starts, ends)
        cost = squared_distances(self.base.space, ends, starts)
        return starts[solve(cost, maximize=False).permutation.to(starts.device)]


def squared_distances(space: Space, x: Tensor, y: Tensor) -> Tensor:
    """[n, m] d(x_i, y_j)^2 on the manifold of paths: angles of directions, and differences of the flat rest."""
    spheres = space.manifold.spheres
    begin, total = 0, torch.zeros(len(x), len(y), device=x.device)
    for block in spheres:
        stop = begin + block.count * block.size
        a, b = (torch.unflatten(z[:, begin:stop], 1, (block.count, block.size)) for z in (x, y))
        total += torch.einsum("ihd,jhd->ijh", a, b).clamp(-1, 1).acos().square().sum(-1)
        begin = stop
    return total + torch.cdist(x[:, begin:], y[:, begin:]).square()


class UnitDistances:
    """Squared distances modulo the order of units, for networks in which no unit meets another that can move."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self._wiring = Wiring.of(space.sym, space.template)
        self._layout = TokenLayout(self._wiring)
        # One where a coordinate is of a direction: the same for all units of a layer.
        round_part = space.manifold.size - space.manifold.flat
        mark = (torch.arange(space.manifold.size) < round_part).float()[None]
        self._round = {name: x[0, 0] > 0.5 for name, x in self._tokens(mark.to(self._device))[0].items()}

    @property
    def meeting(self) -> bool:
        """Whether there are weights between hidden units, which these distances do not know."""
        return bool(self._layout.inner)

    @property
    def _device(self) -> torch.device:
        return self.space.manifold.chart.index.device

    def _tokens(self, x: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """layer -> [n, units, numbers], and what belongs to no unit [n, numbers]."""
        chart, template = self.space.manifold.chart, self.space.template
        zeros = {name: torch.zeros_like(value) for name, value in template.items()}
        read = self._layout.read(neural_graph(chart.state(x, zeros), self._wiring))
        return dict(read.units), read.rest

    def costs(self, x: Tensor, y: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """layer -> [n, m, units, units] of each unit of x_i beside each of y_j; and [n, m] of the rest."""
        (units, rest), (others, other_rest) = self._tokens(x), self._tokens(y)
        found: dict[str, Tensor] = {}
        for name, a in units.items():
            b, direction = others[name], self._round[name]
            flat = torch.cdist(a[..., ~direction].flatten(0, 1), b[..., ~direction].flatten(0, 1)).square()
            if bool(direction.any()):
                dots = a[..., direction].flatten(0, 1) @ b[..., direction].flatten(0, 1).T
                flat = flat + dots.clamp(-1, 1).acos().square()
            found[name] = flat.reshape(*a.shape[:2], *b.shape[:2]).transpose(1, 2)
        return found, torch.cdist(rest, other_rest).square()

    def matched(self, starts: Tensor, ends: Tensor) -> Tensor:
        """[n, D] a start for each end, with units in the order that brings it closest: the least total distance."""
        layers, total = self.costs(ends, starts)
        total = total.double().cpu()
        orders: dict[str, Tensor] = {}
        for name, cost in layers.items():
            solved = solve_many(cost.flatten(0, 1), maximize=False)
            total += solved.value.view_as(total)
            orders[name] = solved.permutation.view(*cost.shape[:3])
        chosen = solve(total, maximize=False).permutation.to(starts.device)
        rows = torch.arange(len(ends), device=starts.device)
        element = self.space.sym.element({name: p[rows, chosen] for name, p in orders.items()})
        chart = self.space.manifold.chart
        moved = self.space.sym.act(element, chart.state(starts[chosen], self.space.template))
        return chart.coordinates(moved).to(starts.dtype)


def _classes(conditions: Tensor | None, count: int) -> list[Tensor]:
    """The networks of each condition."""
    if conditions is None:
        return [torch.arange(count)]
    label = torch.unique(conditions, dim=0, return_inverse=True)[1]
    number = int(label.max()) + 1
    if count < FEWEST * number:
        raise CosetError(
            f"Transport matches networks of the same condition, but {count} networks have {number} different ones: "
            "round conditions to a few levels, or use the coupling 'training' or 'independent'."
        )
    return [torch.nonzero(label == k).squeeze(1) for k in range(number)]
