"""Where flows begin: what networks are before they are trained, with an exact density."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from coset.core import state as states
from coset.core.errors import CosetError
from coset.flow.space import Space, holding, space
from coset.symmetries.symmetry import Symmetry
from coset.training.initialise import fresh
from coset.training.randomness import seeded
from coset.weightspace import sphere

LOOKS = 16  # at fresh models, to know their deviations
LEAST = 0.05  # the deviation of what starts as a constant, beside the largest of its network
HEAVY = 5.0  # a fourth moment, in units of the squared second, from which on the second is that of a few outliers
PER_MAD = 1.4826  # deviations of a normal per median distance from its median


@dataclass(frozen=True, eq=False)
class Base:
    """Independent coordinates: uniform directions on the spheres of `space.ends`, normal ones elsewhere.

    means, stds
        of the flat coordinates of each tensor; those of directions are not looked at
    """

    space: Space
    means: Mapping[str, float]
    stds: Mapping[str, float]

    def __post_init__(self) -> None:
        bad = [name for name in self.space.ends.chart.shapes if not 0 < self.stds.get(name, 0.0) < math.inf]
        if bad:
            raise CosetError(f"The base of a flow needs a positive deviation for '{bad[0]}'.")

    def draw(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """[n, D] on the device of the space, from a generator of any device."""
        where = self._mean.device
        device = where if generator is None else generator.device
        noise = torch.randn((n, self.space.ends.size), generator=generator, device=device).to(where)
        round_part, flat = noise[:, : self._begin], noise[:, self._begin :]
        return self.space.ends.project(torch.cat([round_part, self._mean + self._std * flat], -1))

    def states(self, n: int, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """A population of draws, to begin training with: what `coset.collect` takes as `draw`."""
        return self.space.decode(self.draw(n, generator))

    def log_prob(self, x: Tensor) -> Tensor:
        """[n] log density of `draw`, by area and volume."""
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

    def on(self, space: Space) -> Base:
        """The same numbers in another space: of another width, or on another device."""
        return replace(self, space=space)

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


def measured_base(room: Space, x: Tensor, covers: bool = False) -> Base:
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
            given = room.ends.chart.state(part.double(), wide)
            sums = {name: total + float(of(name, given[name]).sum()) for name, total in sums.items()}
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
    return Base(room, means, {name: max(value, floor) for name, value in stds.items()})


def initial_base(model: nn.Module, room: Space) -> Base:
    """The base with the mean and deviation that each tensor has in fresh models."""
    looks = []
    for k in range(LOOKS):
        with seeded(0, (k,)):
            looks.append(states.of(fresh(model)))
    return measured_base(room, room.encode(states.stack(looks)))


def normal_starts(model: nn.Module, sym: Symmetry, std: float | None = None) -> Base:
    """Networks to begin training with whose density a Euclidean flow knows, and those of canonical networks nearly:
    `coset.collect(..., draw=normal_starts(...).states)`.

    All weights are normal, with deviation `std`, or with mean and deviation of each tensor of fresh models when None.
    Buffers and parameters that are not trained are those of the model.
    """
    fixed = {name for name, _ in model.named_buffers(remove_duplicate=False)}
    fixed |= {name for name, p in model.named_parameters(remove_duplicate=False) if not p.requires_grad}
    room = space(holding(sym, fixed), states.of(model), "euclidean")
    return initial_base(model, room) if std is None else Base(room, {}, dict.fromkeys(room.ends.chart.shapes, std))
