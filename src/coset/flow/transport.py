"""Minibatch optimal transport: starts and networks that lie close become pairs."""

from __future__ import annotations

import torch
from torch import Tensor

from coset.assignment import solve_many
from coset.core.errors import CosetError
from coset.flow.coordinates import BaseDistribution, Coupling, Space
from coset.weightspace.graph import Wiring, neural_graph
from coset.weightspace.unit_transformer import TokenLayout

FEWEST = 8  # networks of one condition on the average
ENTRIES = 2**24  # distances of units in memory at once


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

    def __init__(self, ends: Tensor, conditions: Tensor | None, base: BaseDistribution, group: int) -> None:
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
            whole = len(order) - len(order) % self.group
            # Groups of one size are matched many at a time, the rest as one smaller group.
            parts = [order[:whole].view(-1, self.group), order[whole:].view(1, -1)]
            for at in (rows for part in parts if part.numel() for rows in torch.split(part, self._at_once)):
                self._table[at.flatten()] = self._matched(fresh[at], self.ends[at]).flatten(0, 1)

    def starts(self, at: Tensor, generator: torch.Generator) -> Tensor:
        return self._table[at]

    @property
    def _at_once(self) -> int:
        """Groups whose costs are in memory together."""
        units = max(group.size for group in self.base.space.sym.groups) if self.base.space.sym.groups else 1
        return max(1, ENTRIES // (self.group * units) ** 2)

    def _matched(self, starts: Tensor, ends: Tensor) -> Tensor:
        """[g, n, D] the starts of each group in the order of the ends that they belong to."""
        if self._units is not None:
            return self._units.matched(starts, ends)
        order = solve_many(squared_distances(self.base.space, ends, starts), maximize=False).permutation
        return _ordered(starts, order.to(starts.device))


def squared_distances(space: Space, x: Tensor, y: Tensor) -> Tensor:
    """[g, n, m] d(x_gi, y_gj)^2 on the manifold of paths: angles of directions, and differences of the flat rest."""
    spheres = space.manifold.spheres
    begin, total = 0, torch.zeros(*x.shape[:2], y.shape[1], device=x.device)
    for block in spheres:
        stop = begin + block.count * block.size
        a, b = (torch.unflatten(z[..., begin:stop], -1, (block.count, block.size)) for z in (x, y))
        total += torch.einsum("gihd,gjhd->gijh", a, b).clamp(-1, 1).acos().square().sum(-1)
        begin = stop
    return total + torch.cdist(x[..., begin:], y[..., begin:]).square()


def _ordered(x: Tensor, order: Tensor) -> Tensor:
    """x_g,order[g, i] of x [g, n, D]."""
    return x.gather(1, order.unsqueeze(-1).expand(-1, -1, x.shape[-1]))


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
        chart = self.space.manifold.chart
        # What is no coordinate is zero, and so are offsets: differences are looked at only.
        read = self._layout.read(neural_graph(chart.change(x, self.space.single), self._wiring))
        return dict(read.units), read.rest

    def costs(self, x: Tensor, y: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """layer -> [g, n, m, units, units] of each unit of x_gi beside each of y_gj; and [g, n, m] of the rest."""
        (units, rest), (others, other_rest) = self._tokens(x.flatten(0, 1)), self._tokens(y.flatten(0, 1))
        g, n, m = len(x), x.shape[1], y.shape[1]
        costs: dict[str, Tensor] = {}
        for name, own in units.items():
            direction, h = self._round[name], own.shape[1]
            a, b = (z.reshape(g, -1, z.shape[-1]) for z in (own, others[name]))
            flat = torch.cdist(a[..., ~direction], b[..., ~direction]).square()
            if bool(direction.any()):
                flat = flat + (a[..., direction] @ b[..., direction].mT).clamp(-1, 1).acos().square()
            costs[name] = flat.reshape(g, n, h, m, h).transpose(2, 3)
        return costs, torch.cdist(rest.reshape(g, n, -1), other_rest.reshape(g, m, -1)).square()

    def matched(self, starts: Tensor, ends: Tensor) -> Tensor:
        """[g, n, D] a start for each end, with units in the order that brings it closest: the least total distance."""
        layers, total = self.costs(ends, starts)
        total = total.double().cpu()
        orders: dict[str, Tensor] = {}
        for name, cost in layers.items():
            solved = solve_many(cost.flatten(0, 2), maximize=False)
            total += solved.value.view_as(total)
            orders[name] = solved.permutation.view(*cost.shape[:4])
        partner = solve_many(total, maximize=False).permutation.to(starts.device)
        # Of each pair, the order of units.
        permutations = {
            name: p.gather(2, partner.to(p.device)[..., None, None].expand(-1, -1, 1, p.shape[-1])).flatten(0, 2)
            for name, p in orders.items()
        }
        element = self.space.sym.element(permutations)
        chart = self.space.manifold.chart
        population = chart.state(_ordered(starts, partner).flatten(0, 1), self.space.single)
        return chart.coordinates(self.space.sym.act(element, population)).to(starts.dtype).view_as(starts)


def _classes(conditions: Tensor | None, count: int) -> list[Tensor]:
    """The networks of each condition."""
    if conditions is None:
        return [torch.arange(count)]
    label = torch.unique(conditions, dim=0, return_inverse=True)[1]
    number = int(label.max()) + 1
    return [torch.nonzero(label == k).squeeze(1) for k in range(number)]


def refuse_many_conditions(conditions: Tensor | None) -> None:
    """Of [n, k] that hardly any networks share, since those of one condition are matched."""
    if conditions is None:
        return
    count, number = len(conditions), len(torch.unique(conditions, dim=0))
    if count < FEWEST * number:
        raise CosetError(
            f"Transport matches networks of the same condition, but {count} networks have {number} different ones: "
            "round conditions to a few levels, or use the coupling 'training' or 'independent'."
        )
