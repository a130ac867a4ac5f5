"""Networks as coordinates: the space of paths, where they begin, and the pairs of networks that they join."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from coset.alignment.align import align_many
from coset.core import state as states
from coset.core.errors import CosetError, StateError
from coset.core.show import Shown, Table
from coset.core.state import State
from coset.flow.conditions import Conditions, columns_of
from coset.populations.population import Population
from coset.symmetries.symmetry import Symmetry
from coset.training.initialise import fresh
from coset.training.network import seeded
from coset.weightspace import sphere
from coset.weightspace.canonical import canonicalize
from coset.weightspace.canonical_chart import OFF_SPHERE
from coset.weightspace.canonical_scales import unit_norms
from coset.weightspace.manifold import Manifold, manifold

Geometry = Literal["euclidean", "normalized", "geometric"]
COORDINATES = 2**23  # of networks that are looked at at a time
LOOKS = 16  # at fresh models, to know their deviations
LEAST = 0.05  # the deviation of what starts as a constant, beside the largest of its network
HEAVY = 5.0  # a fourth moment, in units of the squared second, from which on the second is that of a few outliers
PER_MAD = 1.4826  # deviations of a normal per median distance from its median


@dataclass(frozen=True, eq=False, repr=False)
class Space(Shown):
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
        device = self.device
        x = torch.empty(states.size(population), self.ends.size, device=device)
        for part in (slice(k, k + self.at_once) for k in range(0, len(x), self.at_once)):
            x[part] = self._encoded({name: values[part].to(device) for name, values in population.items()})
        return x

    def _encoded(self, population: State) -> Tensor:
        if self.geometry == "euclidean":
            return self.ends.coordinates(population).float()
        population = self.sym.act(unit_norms(population, self.sym), population)
        pins, own = (self.ends.chart.pins(state) for state in (population, self.template))
        if bool(((pins - own.to(pins)).abs() > OFF_SPHERE).any()):
            raise StateError(
                "Networks differ in the signs of single weights that fix a factor, such as those of a norm, which no "
                "path on spheres joins: use the euclidean geometry."
            )
        try:
            return self.ends.coordinates(population).float()
        except StateError as error:
            raise StateError(f"{error} Leave networks with such a unit out, or use the euclidean geometry.") from error

    def decode(self, x: Tensor) -> dict[str, Tensor]:
        """The population at [n, D], brought back to the networks that are possible."""
        population = self.ends.chart.state(self.ends.project(x), self.template)
        return population | {name: population[name].clamp(min=floor) for name, floor in self.floors.items()}

    def outside(self, x: Tensor) -> Tensor:
        """[n] which of the networks at [n, D] `decode` brings back, since a tensor is below its floor."""
        population = self.ends.chart.state(self.ends.project(x), self.template)
        below = [(population[name] < floor).flatten(1).any(1) for name, floor in self.floors.items()]
        return torch.stack(below).any(0) if below else torch.zeros(len(x), dtype=torch.bool, device=x.device)

    @property
    def device(self) -> torch.device:
        return self.manifold.chart.index.device

    def to(self, device: str | torch.device) -> Space:
        """The space with its tables on a device."""
        where = torch.device(device)
        return replace(
            self,
            manifold=replace(self.manifold, chart=self.manifold.chart.to(where)),
            ends=replace(self.ends, chart=self.ends.chart.to(where)),
            template={name: x.to(where) for name, x in self.template.items()},
        )

    def _shown(self) -> Table:
        rows = [("coordinates", self.ends.size), ("of spheres", self.ends.size - self.ends.flat)]
        return Table(f"{self.geometry} space of {len(self.template)} tensors", rows)


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


def sharing(sym: Symmetry, names: Collection[str]) -> Symmetry:
    """The symmetry of networks that share the tensors `names`: those pass through, with the factors that move them."""
    axes = {name: row for name, row in sym.axes.items() if name not in names}
    free = [s for s in sym.scalings if not any(member.tensor in names for member in s.members)]
    return replace(sym, axes=axes, scalings=tuple(free))


@dataclass(frozen=True, eq=False, repr=False)
class BaseDistribution(Shown):
    """Where the paths of a flow begin: uniform directions on the spheres of `space.ends`, normal coordinates elsewhere.

    `coset.normal_starts` makes one.

    Args:
        space: The coordinates.
        means: Of the flat coordinates of each tensor; those of directions are not looked at.
        stds: Their standard deviations.

    Example:
        >>> coset.normal_starts(model, sym, std=0.1).states(5)["layers.0.weight"].shape
        torch.Size([5, 16, 64])
    """

    space: Space
    means: Mapping[str, float]
    stds: Mapping[str, float]

    def __post_init__(self) -> None:
        bad = [name for name in self.space.ends.chart.shapes if not 0 < self.stds.get(name, 0.0) < math.inf]
        if bad:
            raise CosetError(f"The base of a flow needs a positive deviation for '{bad[0]}'.")

    def draw(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Coordinates [n, D] on the device of the space.

        Args:
            n: How many networks.
            generator: Of any device; torch's global one when None.
        """
        where = self._mean.device
        device = where if generator is None else generator.device
        noise = torch.randn((n, self.space.ends.size), generator=generator, device=device).to(where)
        round_part, flat = noise[:, : self._begin], noise[:, self._begin :]
        return self.space.ends.project(torch.cat([round_part, self._mean + self._std * flat], -1))

    def states(self, n: int, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Tensors [n, ...] of draws by name, to begin training with: what `coset.collect` takes as `draw`.

        Args:
            n: How many networks.
            generator: Of any device; torch's global one when None.
        """
        return self.space.decode(self.draw(n, generator))

    def log_prob(self, x: Tensor) -> Tensor:
        """The log density [n] of `draw`, by area and volume.

        Args:
            x: Coordinates [n, D].

        Raises:
            CosetError: If the geometry is "normalized", in which there is none.
        """
        self.refuse_without_density()
        z = (x[..., self._begin :] - self._mean) / self._std
        areas = sum(block.count * sphere.log_area(block.size) for block in self.space.ends.spheres)
        return -z.square().sum(-1) / 2 - self._std.log().sum() - z.shape[-1] * math.log(2 * math.pi) / 2 - areas

    def refuse_without_density(self) -> None:
        """Of a flow that begins here."""
        if self.space.geometry == "normalized":
            raise CosetError(
                "A normalized flow has no density: its paths leave the spheres that its networks lie on. Use the "
                "euclidean or the geometric one."
            )

    def on(self, space: Space) -> BaseDistribution:
        """The same numbers in another space.

        Args:
            space: Of another width, or on another device.
        """
        return replace(self, space=space)

    def _shown(self) -> Table:
        rows = [
            (name, f"N({self.means.get(name, 0.0):.4g}, {self.stds[name]:.4g}^2)")
            for name in self.space.ends.chart.shapes
        ]
        return Table(f"Base of a {self.space.geometry} flow, of {self.space.ends.size:,} coordinates", rows)

    @property
    def _begin(self) -> int:
        """Where the flat coordinates begin."""
        return self.space.ends.size - self.space.ends.flat

    @cached_property
    def _mean(self) -> Tensor:
        return self._vector(self.means)

    @cached_property
    def _std(self) -> Tensor:
        return self._vector(self.stds)

    def _vector(self, values: Mapping[str, float]) -> Tensor:
        """The number of the tensor that each flat coordinate is of."""
        chart, like = self.space.ends.chart, self.space.template
        full = {name: torch.full_like(like[name], values.get(name, 0.0)) for name in chart.shapes}
        return chart.velocity(full)[self._begin :].float()


def measured_base(room: Space, x: Tensor, covers: bool = False) -> BaseDistribution:
    """The base with the mean and deviation that each tensor has in networks x [n, D].

    Or, where they are far from normal, the median and the deviation of a normal with the same median distance from it:
    so are biases b / |w| of canonical networks with few inputs, whose variance is infinite for two of them. Not so if
    the base covers the networks, with the few that are far out. What is constant, as biases that start at zero, gets a
    small deviation, since a density needs one.
    """
    wide = {name: y.double() for name, y in room.template.items()}
    shapes = room.ends.chart.shapes

    def mean(of: Callable[[str, Tensor], Tensor]) -> dict[str, float]:
        """Over the entries of each tensor in all networks, some networks at a time."""
        sums = dict.fromkeys(shapes, 0.0)
        for part in torch.split(x, room.at_once):
            population = room.ends.chart.state(part.double(), wide)
            sums = {name: total + float(of(name, population[name]).sum()) for name, total in sums.items()}
        return {name: total / max(len(x) * math.prod(shapes[name]), 1) for name, total in sums.items()}

    means = mean(lambda name, y: y)
    stds = {name: math.sqrt(square) for name, square in mean(lambda name, y: (y - means[name]).square()).items()}
    if not covers:
        fourth = mean(lambda name, y: (y - means[name]).pow(4))
        some = room.ends.chart.state(x[: room.at_once].double(), wide)
        for name in [name for name in shapes if fourth[name] > HEAVY * stds[name] ** 4]:
            middle = some[name].median()
            means[name], stds[name] = float(middle), PER_MAD * float((some[name] - middle).abs().median())
    floor = LEAST * max(stds.values())
    return BaseDistribution(room, means, {name: max(value, floor) for name, value in stds.items()})


def initial_base(model: nn.Module, room: Space) -> BaseDistribution:
    """The base with the mean and deviation that each tensor has in fresh models."""
    looks = []
    for k in range(LOOKS):
        with seeded(0, (k,)):
            looks.append(states.of(fresh(model)))
    return measured_base(room, room.encode(states.stack(looks)))


def normal_starts(model: nn.Module, sym: Symmetry, std: float | None = None) -> BaseDistribution:
    """Networks to begin training with, whose density a flow knows.

    All weights are normal. The density of a Euclidean flow that begins there is exact, and that of canonical networks
    nearly. Buffers and parameters that are not trained are those of the model.

    Args:
        model: What the networks are states of.
        sym: Its symmetry.
        std: The standard deviation of all weights; None takes mean and deviation of each tensor of fresh models.

    Returns:
        The distribution; its `states` is what `coset.collect` takes as `draw`.

    Example:
        >>> starts = coset.normal_starts(model, sym)
        >>> len(coset.collect(model, digits.train, 4, coset.Collect(epochs=1), draw=starts.states))
        4
    """
    fixed = {name for name, _ in model.named_buffers(remove_duplicate=False)}
    fixed |= {name for name, p in model.named_parameters(remove_duplicate=False) if not p.requires_grad}
    room = space(sharing(sym, fixed), states.of(model), "euclidean")
    return (
        initial_base(model, room)
        if std is None
        else BaseDistribution(room, {}, dict.fromkeys(room.ends.chart.shapes, std))
    )


@dataclass(frozen=True, eq=False)
class TrainingSet:
    """Networks of one width and their starts, if those are known, [n, D] each; their conditions [n, k] and runs [n]."""

    space: Space
    ends: Tensor
    starts: Tensor | None
    conditions: Tensor | None
    runs: Tensor | None

    @classmethod
    def of(
        cls,
        sym: Symmetry,
        population: Population,
        geometry: Geometry,
        aligned: bool,
        conditions: Conditions | None,
        device: torch.device,
    ) -> TrainingSet:
        """The networks of a population, if `aligned` in the order of the first one."""
        template = {name: x[0] for name, x in population.states.items()}
        room = space(sharing(sym, _shared(sym, population)), template, geometry, _floors(sym, population)).to(device)
        networks: State = population.states
        if aligned:
            networks = _aligned({name: x.to(device) for name, x in networks.items()}, room)
        starts = None if population.starts is None else room.encode(population.starts)
        matrix = None
        if conditions is not None:
            labels = {name: population.labels[name].to(device) for name in conditions.sizes}
            matrix = conditions.matrix(labels, len(population))
        return cls(room, room.encode(networks), starts, matrix, population.labels.get("run"))

    @property
    def beginnings(self) -> Tensor:
        """What a base is like: untrained networks, or the networks themselves where those are not known."""
        return self.ends if self.starts is None else self.starts

    def split(self, count: int) -> tuple[TrainingSet, TrainingSet | None]:
        """Networks to learn from, and `count` others: the last, or of many conditions or runs some from everywhere.

        Then none of those is of a run that is learned from, which has others like it.
        """
        n = len(self.ends)
        if count == 0:
            return self, None
        if count >= n:
            raise CosetError(f"Matching: unseen is {count}, which leaves none of {n} networks to learn.")
        run = torch.arange(n) if self.runs is None else _stretches(self.runs)
        number = int(run[-1]) + 1
        if number == 1 or (number == n and self.conditions is None):
            return self._part(slice(n - count)), self._part(slice(n - count, None))  # views, where there may be many
        some = math.ceil(count * number / n)
        if some == number:
            raise CosetError(f"Matching: unseen is {count}, which leaves none of {number} runs to learn.")
        others = (2 * torch.arange(some) + 1) * number // (2 * some)
        out = torch.isin(run, others).to(self.ends.device)
        return self._part(~out), self._part(out.nonzero().squeeze(1)[:count])

    def _part(self, part: slice | Tensor) -> TrainingSet:
        starts, conditions = (None if x is None else x[part] for x in (self.starts, self.conditions))
        return TrainingSet(self.space, self.ends[part], starts, conditions, None)


def _stretches(runs: Tensor) -> Tensor:
    """[n] numbers from zero on of stretches of one run; populations put together count their runs anew."""
    flat = columns_of(runs).cpu()
    return torch.cat([torch.zeros(1, dtype=torch.int64), (flat[1:] != flat[:-1]).any(1).long().cumsum(0)])


def _shared(sym: Symmetry, population: Population) -> list[str]:
    """Buffers that all networks share, as constants of a model do: they are no coordinates."""
    populations = [population.states] if population.starts is None else [population.states, population.starts]

    def same(name: str) -> bool:
        first = population.states[name][:1]
        return all(bool((states[name] == first).all()) for states in populations)

    return [name for name in _buffers(sym, population) if same(name)]


def _floors(sym: Symmetry, population: Population) -> dict[str, float]:
    """Zero for buffers that no network has below it, as variances."""
    return {name: 0.0 for name in _buffers(sym, population) if bool((population.states[name] >= 0).all())}


def _buffers(sym: Symmetry, population: Population) -> list[str]:
    return [name for name in sym.buffers if name in population.states and population.states[name].is_floating_point()]


def _aligned(population: State, room: Space) -> State:
    """The networks in the order of the first one; in canonical form where factors do not count."""
    reference = {name: x[0] for name, x in population.items()}
    if room.geometry != "euclidean":
        return canonicalize(population, room.sym, reference).state
    match = align_many(population, room.sym, reference)
    return room.sym.act(match.element.to(next(iter(population.values())).device), population)


class Coupling(ABC):
    """Pairs of a start and a network, [n, D] each, of which every epoch sees each network once.

    ends: [N, D] the networks. conditions: [N, k] of each, or None.
    """

    def __init__(self, ends: Tensor, conditions: Tensor | None) -> None:
        self.ends, self.conditions = ends, conditions

    def __len__(self) -> int:
        return len(self.ends)

    def refresh(self, generator: torch.Generator) -> None:  # noqa: B027 (most have nothing to do)
        """What is done before each epoch."""

    @abstractmethod
    def starts(self, at: Tensor, generator: torch.Generator) -> Tensor:
        """[n, D] the starts of the networks `at`."""

    def pairs(self, at: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor | None]:
        """Starts, networks and conditions."""
        conditions = None if self.conditions is None else self.conditions[at]
        return self.starts(at, generator), self.ends[at], conditions


class Independent(Coupling):
    """Each time another draw from the base."""

    def __init__(self, ends: Tensor, conditions: Tensor | None, base: BaseDistribution) -> None:
        super().__init__(ends, conditions)
        self.base = base

    def starts(self, at: Tensor, generator: torch.Generator) -> Tensor:
        return self.base.draw(len(at), generator)


class OwnStarts(Coupling):
    """Where the network's own training began: paths cross less, and units keep their places."""

    def __init__(self, ends: Tensor, conditions: Tensor | None, starts: Tensor) -> None:
        super().__init__(ends, conditions)
        self._starts = starts

    def starts(self, at: Tensor, generator: torch.Generator) -> Tensor:
        return self._starts[at]
