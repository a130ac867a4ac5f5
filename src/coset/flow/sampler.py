"""What a flow samples with, once it has been fitted: points to begin from, and the field that leads on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from coset.core.errors import CosetError, StateError
from coset.core.state import State, check, refuse_names
from coset.flow.conditions import Conditions
from coset.flow.coordinates import BaseDistribution, Space
from coset.flow.solvers import Solver, VelocityFunction
from coset.flow.velocity_network import VelocityNetwork

ConditionValues = Mapping[str, Tensor | float]
"""For each condition a number for all networks, or one for each."""


@dataclass(frozen=True, eq=False, repr=False)
class FlowSampler:
    """field: the velocities. base: where they begin. precision: in which the network of the field runs.

    about: what is known of the population that it was learned from, as JSON can hold it. networks: how many those were.
    """

    field: VelocityNetwork
    base: BaseDistribution
    conditions: Conditions | None
    precision: str
    about: Mapping[str, Any]
    networks: int = 0

    def rows(self) -> list[tuple[object, ...]]:
        """What a table shows of it."""
        groups = ", ".join(f"{group.size} {group.name}" for group in self.space.sym.groups) or "none"
        weights = sum(p.numel() for p in self.field.network.parameters())
        model = self.about.get("model")
        return [
            ("fitted", f"yes, {weights:,} weights on {self.device}, {self.precision}"),
            (
                "networks",
                f"{self.networks:,} of {self.space.ends.size:,} coordinates{'' if model is None else f', {model}'}",
            ),
            ("hidden units", groups),
        ]

    @property
    def space(self) -> Space:
        return self.field.space

    @property
    def device(self) -> torch.device:
        return self.space.device

    def on(self, space: Space) -> FlowSampler:
        """The same for networks of another width, or on another device, to which its tensors move."""
        device = space.device
        conditions = None if self.conditions is None else self.conditions.to(device)
        field = self.field.to(device).on(space)
        return replace(self, field=field, base=self.base.on(space), conditions=conditions)

    def encode(self, population: State) -> Tensor:
        """[n, D] of networks from any device."""
        networks = check(population, where="the population")
        refuse_names([], [name for name in networks if name not in self.space.template], "the population")
        for name in self.space.shared:
            if name in networks and bool((networks[name] != self.space.template[name].to(networks[name])).any()):
                raise StateError(
                    f"Tensor '{name}' differs from that of the networks that this flow was learned from, which all had "
                    "the same: it knows nothing of others."
                )
        return self.space.encode(networks)

    def batches(
        self,
        n: int,
        solver: Solver,
        condition: ConditionValues | None,
        points: Tensor | None,
        batch_size: int,
    ) -> Iterator[tuple[Tensor, VelocityFunction, Solver]]:
        """Some points [m, D] at a time, of `points` [n, D] or draws from the base, with the field that leads on.

        And the solver, which tells of its progress in all batches.
        """
        if not (isinstance(n, Integral) and isinstance(batch_size, Integral)) or n < 1 or batch_size < 1:
            raise CosetError(f"n and batch_size must be whole numbers above zero, not {n} and {batch_size}.")
        if self.conditions is None and condition:
            raise CosetError("This flow has no conditions: fit it with conditions= the labels that it should know.")
        matrix = None
        if self.conditions is not None:
            matrix = self.conditions.matrix(condition or {}, n)
            self.conditions.warn_if_far(matrix)
        batches = torch.split(torch.arange(n, device=self.device), batch_size)
        for number, at in enumerate(batches):
            x = self.base.draw(len(at), solver.generator) if points is None else points[at]
            velocity = self._velocity(None if matrix is None else matrix[at])
            yield x, velocity, solver.in_batch(number, len(batches))

    def _velocity(self, condition: Tensor | None) -> VelocityFunction:
        def velocity(x: Tensor, t: Tensor) -> Tensor:
            times = len(x) // len(condition) if condition is not None else 1  # several copies for a divergence
            repeated = None if condition is None else condition.repeat(times, 1)
            with torch.autocast(x.device.type, torch.bfloat16, enabled=self.precision == "bfloat16"):
                v: Tensor = self.field(x, t, repeated)
            return v.to(x.dtype)

        return velocity
