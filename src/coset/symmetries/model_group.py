"""`Symmetry`: the group, how it acts, and what it could not use."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from coset.symmetries import spec
from coset.symmetries.action import Action
from coset.symmetries.arguments import Args, positional
from coset.symmetries.axes import Axis, Concat, Fixed, Interleave, Product, Units, names
from coset.symmetries.group import Element, Group, IndexSet, Scaling

if TYPE_CHECKING:
    from coset.symmetries.verify import Verification

# Random factors are drawn from exp(N(0, SPREAD^2)): far enough from one to be seen, near enough to stay accurate.
SPREAD = 0.5


@dataclass(frozen=True)
class FixedAxis:
    """An axis, or a part of one, that cannot move, and the op that says so."""

    tensor: str
    axis: int
    size: int
    op: str
    reason: str


@dataclass(frozen=True)
class Symmetry:
    """Permutations and rescalings of a state that leave the model's function unchanged.

    sets
        the index sets by name
    axes
        state tensor -> what each of its axes indexes
    scalings
        groups of units with a free positive factor or sign
    fixed
        what could not be used, and why
    buffers
        the state tensors that are not trained, such as running statistics
    tied
        second names of tensors -> their first name; a state may leave either out
    """

    sets: Mapping[str, IndexSet]
    axes: Mapping[str, tuple[Axis, ...]]
    scalings: tuple[Scaling, ...] = ()
    fixed: tuple[FixedAxis, ...] = ()
    verification: Verification | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    buffers: frozenset[str] = frozenset()
    tied: Mapping[str, str] = field(default_factory=dict)

    @property
    def groups(self) -> tuple[Group, ...]:
        """One group per movable index set, in the order of the state."""
        members: dict[str, list[tuple[str, int]]] = {name: [] for name in self.sets}
        for tensor, axes in self.axes.items():
            for d, axis in enumerate(axes):
                for name in names(axis):
                    members[name].append((tensor, d))
        return tuple(
            Group(known.name, known.size, tuple(members[known.name]), self.copies(known.name), known.over)
            for known in self.sets.values()
            if known.movable and members[known.name]
        )

    def copies(self, name: str) -> int:
        """How many independent orders a set has: one for each combination of the units it lies over."""
        return math.prod(self.sets[base].size for base in self.sets[name].over)

    @property
    def log_order(self) -> float:
        """log of the number of permutations."""
        return sum(group.log_order for group in self.groups)

    def element(
        self, permutations: Mapping[str, Tensor] | None = None, scales: Mapping[str, Tensor] | None = None
    ) -> Element:
        """The element with these permutations and factors; what is not named stays as it is."""
        units = {scaling.name: scaling.units for scaling in self.scalings}
        return Element(self.sets, permutations or {}, scales or {}, units)

    def identity(self) -> Element:
        return self.element()

    def random(
        self, generator: torch.Generator | None = None, *, batch: int | None = None, scalings: bool = False
    ) -> Element:
        """A uniform permutation; with ``scalings`` also random factors and signs of the exact scalings.

        ``batch`` draws that many elements at once, to act on a population of as many states.
        """
        device = generator.device if generator is not None else torch.device("cpu")
        lead = () if batch is None else (batch,)

        def shape(name: str, copies: int, size: int) -> tuple[int, ...]:
            fibred = name in self.sets and self.sets[name].over
            return (*lead, copies, size) if fibred else (*lead, size)

        permutations = {
            known.name: torch.rand(
                shape(known.name, self.copies(known.name), known.size), generator=generator, device=device
            ).argsort(-1)
            for known in self.sets.values()
            if known.movable
        }
        scales: dict[str, Tensor] = {}
        for scaling in self.scalings if scalings else ():
            noise = torch.randn(
                shape(scaling.units, scaling.copies, scaling.size),
                generator=generator,
                device=device,
                dtype=torch.float64,
            )
            if scaling.exact:
                scales[scaling.name] = noise.sign() if scaling.kind == "sign" else (SPREAD * noise).exp()
        return self.element(permutations, scales)

    def missing(self, names: Collection[str]) -> list[str]:
        """The tensors that a state with these names lacks; of tied ones, one is enough."""
        present = {self.tied.get(name, name) for name in names}
        return [name for name in self.axes if name not in names and self.tied.get(name, name) not in present]

    def cycles(self, generator: torch.Generator | None = None) -> Element:
        """A permutation without fixed points: each group's units in random order, each moved on to the next."""
        orders = self.random(generator).permutations
        return self.element({name: torch.empty_like(p).scatter_(-1, p, p.roll(1, -1)) for name, p in orders.items()})

    def act(self, element: Element, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The image of a state; tensors the symmetry does not mention pass through.

        A batch of elements sends one state to a population: every tensor then gets the leading dimension.
        """
        action = Action(self.axes, self.scalings, element)
        images = {name: action.on(name, tensor) for name, tensor in state.items()}
        if action.batch and all(state[name].dim() == len(self.axes[name]) for name in state.keys() & self.axes.keys()):
            for name in state.keys() - self.axes.keys():
                images[name] = images[name].expand(*action.batch, *images[name].shape).clone()
        return images

    def verify(
        self,
        model: nn.Module,
        args: Args,
        kwargs: Mapping[str, Any] | None = None,
        trials: int = 3,
    ) -> float:
        """Largest relative output deviation under random elements; SymmetryError if the function changes."""
        from coset.symmetries.verify import check

        return check(self, model, positional(args), kwargs, trials=trials).deviation

    def to_json(self) -> str:
        used = {name for axes in self.axes.values() for axis in axes for name in names(axis)}
        raw = {
            "groups": {name: spec.set_to_json(known) for name, known in self.sets.items() if name in used},
            "tensors": {name: [spec.axis_to_json(axis) for axis in axes] for name, axes in self.axes.items()},
            "scalings": {scaling.name: spec.scaling_to_json(scaling) for scaling in self.scalings},
            "fixed": [[f.tensor, f.axis, f.size, f.op, f.reason] for f in self.fixed],
            "buffers": [name for name in self.axes if name in self.buffers],
            "tied": dict(self.tied),
        }
        return json.dumps(raw, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Symmetry:
        """Read a symmetry that inference or a person wrote; see :mod:`coset.symmetries.spec`."""
        raw = spec.parse(text)
        sets = spec.sets_from_json(raw["groups"])
        axes: dict[str, tuple[Axis, ...]] = {}
        for tensor, entries in raw["tensors"].items():
            where = f"tensor {tensor!r}"
            axes[tensor] = tuple(
                spec.axis_from_json(entry, sets, f"{where} axis {d}") for d, entry in enumerate(entries)
            )
            spec.check_bases(where, axes[tensor], sets)
        scalings = tuple(spec.scaling_from_json(n, r, sets, axes) for n, r in raw.get("scalings", {}).items())
        fixed = tuple(FixedAxis(*entry) for entry in raw.get("fixed", ()))
        buffers, tied = frozenset(raw.get("buffers", ())), raw.get("tied", {})
        return cls(sets, axes, scalings, fixed, buffers=buffers, tied=tied)


def simplify(axis: Axis) -> Axis:
    """Join neighbouring fixed factors and blocks, which say nothing apart."""
    if isinstance(axis, Units) or not isinstance(axis, Product | Concat | Interleave):
        return axis
    parts = [simplify(part) for part in axis.parts]
    if all(isinstance(part, Fixed) for part in parts):
        return Fixed(axis.size)
    if isinstance(axis, Interleave):
        return Interleave(tuple(parts))
    merged: list[Axis] = []
    for part in parts:
        if merged and isinstance(part, Fixed) and isinstance(merged[-1], Fixed):
            size = merged[-1].size * part.size if isinstance(axis, Product) else merged[-1].size + part.size
            merged[-1] = Fixed(size)
        else:
            merged.append(part)
    return type(axis)(tuple(merged))
