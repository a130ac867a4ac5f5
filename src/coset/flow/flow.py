"""A distribution over networks, learned from a population of them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from coset.core.device import matmul_precision, resolve
from coset.core.errors import CosetError, StateError
from coset.core.progress import Progress
from coset.core.state import State, check
from coset.data import Data
from coset.flow.field import Architecture, Prediction, units
from coset.flow.fitted import Asked, Fitted
from coset.flow.fitting import Pairing, Plan, learn
from coset.flow.flow_file import read_flow, write_flow
from coset.flow.guidance import Guidance, guided
from coset.flow.likelihood import Divergence, DivergenceName, ProbeNoise, log_prob, sample_with_log_prob
from coset.flow.matching import Matching
from coset.flow.solvers import Solver, solve
from coset.flow.space import Geometry, holding, space
from coset.populations.population import Population, PopulationLike, states_of
from coset.symmetries.symmetry import Symmetry

log = logging.getLogger(__name__)

BATCH = 512  # networks that are sampled at once


class Flow:
    """Networks as samples: a differential equation leads from untrained networks to trained ones (`weightflow`).

    Its field is equivariant: a flow does not know the order of hidden units, and its density is the same for all of
    them. The arguments are explained by `coset.flow.fitting.Plan`.
    """

    def __init__(
        self,
        sym: Symmetry,
        geometry: Geometry = "geometric",
        coupling: Pairing = "training",
        *,
        architecture: Architecture | None = None,
        predict: Prediction = "velocity",
        conditions: Sequence[str] = (),
        align: bool | None = None,
        group: int = 64,
    ) -> None:
        self.sym = sym
        self.plan = Plan(geometry, coupling, architecture or Architecture(), predict, tuple(conditions), align, group)
        self._fitted: Fitted | None = None

    @staticmethod
    def of(sym: Symmetry, plan: Plan) -> Flow:
        """The flow of a plan, with nothing learned."""
        made = Flow(sym)
        made.plan = plan
        return made

    @property
    def fitted(self) -> Fitted:
        """What was learned; CosetError if nothing was yet."""
        if self._fitted is None:
            raise CosetError("This flow has not been fitted: call fit(population) first.")
        return self._fitted

    def fit(
        self,
        population: PopulationLike,
        method: Matching | None = None,
        *,
        model: nn.Module | None = None,
        data: Data | None = None,
        more: Sequence[tuple[Symmetry, Population]] = (),
        seed: int = 0,
        device: str | torch.device | None = None,
        out: str | Path | None = None,
        progress: Progress | None = None,
        checkpoint_seconds: float = 60.0,
    ) -> Flow:
        """Learn to generate networks like those of `population`, and return this flow.

        model, data
            where given, errors of velocities count by what they do to outputs, too: see `FunctionError`
        more
            populations of other widths, with their symmetries, that are learned together with the first
        out
            a folder for metrics and checkpoints, one after the first step that ends `checkpoint_seconds` after the
            last one; called again with the same arguments, `fit` goes on where it was stopped, with the same result
        progress
            hears of each epoch, and of each step of all of them
        """
        self._fitted = learn(
            self.plan,
            [(self.sym, Population.of(population)), *more],
            method or Matching(),
            model,
            data,
            seed=seed,
            device=device,
            out=out,
            progress=progress,
            checkpoint_seconds=checkpoint_seconds,
        )
        return self

    def sample(
        self,
        n: int,
        steps: int = 32,
        method: str = "heun",
        *,
        noise: float = 0.0,
        guidance: Guidance | None = None,
        condition: Asked | None = None,
        starts: PopulationLike | None = None,
        generator: torch.Generator | None = None,
        batch_size: int = BATCH,
        progress: Progress | None = None,
    ) -> Population:
        """A population of n networks, on the device of the flow: where each is, and where its path began.

        Its labels are the conditions, and `about` says how it was made.

        steps, method, noise
            see `coset.flow.solvers.solve`
        guidance
            data that the networks should do well on
        condition
            for each of the conditions a number for all networks, or one for each
        starts
            a population of n to begin from, instead of draws from the base
        """
        fitted, room = self.fitted, self.fitted.space
        solver = Solver(steps, method, noise, generator, progress)
        begin = None if starts is None else fitted.encode(states_of(starts))
        if begin is not None and len(begin) != n:
            raise CosetError(f"There are {len(begin)} starts for {n} networks: give as many.")
        spread = units(room, fitted.field.standardize)
        x0, x1 = [], []
        for x, field, own in fitted.batches(n, solver, condition, begin, batch_size):
            if guidance is not None:
                field = guided(field, guidance, room.decode, room.manifold, spread, generator)
            x0.append(x)
            with matmul_precision(fitted.precision):
                x1.append(solve(field, x, room.manifold, own))
        how = {"steps": int(steps), "method": method, "noise": float(noise)}
        steered = None if guidance is None else guidance.about
        return self._population(torch.cat(x0), torch.cat(x1), condition, {**how, "guidance": steered})

    def sample_with_log_prob(
        self,
        n: int,
        steps: int = 32,
        method: str = "rk4",
        *,
        divergence: DivergenceName = "hutchinson",
        probes: int = 1,
        noise: ProbeNoise = "rademacher",
        condition: Asked | None = None,
        generator: torch.Generator | None = None,
        batch_size: int = BATCH,
        progress: Progress | None = None,
    ) -> tuple[Population, Tensor]:
        """Networks and the logarithm of their density [n], in one pass: see `coset.flow.likelihood`."""
        fitted, manifold = self.fitted, self.fitted.space.manifold
        fitted.base.refuse_without_density()
        solver, estimate = Solver(steps, method, 0.0, generator, progress), Divergence(divergence, probes, noise)
        x0, x1, logs = [], [], []
        for x, field, own in fitted.batches(n, solver, condition, None, batch_size):
            x0.append(x)
            with matmul_precision(fitted.precision):
                end, density = sample_with_log_prob(field, x, fitted.base.log_prob, manifold, own, estimate)
            x1.append(end)
            logs.append(density)
        ends = torch.cat(x1)
        if brought := int(fitted.space.outside(ends).sum()):
            log.warning(
                "%d of %d networks had %s below zero and were brought back there: their densities are those of where "
                "they were",
                brought,
                len(ends),
                " or ".join(fitted.space.floors),
            )
        about = {"steps": int(steps), "method": method, "divergence": divergence}
        return self._population(torch.cat(x0), ends, condition, about), torch.cat(logs)

    def log_prob(
        self,
        population: PopulationLike,
        steps: int = 32,
        method: str = "rk4",
        *,
        divergence: DivergenceName = "hutchinson",
        probes: int = 1,
        noise: ProbeNoise = "rademacher",
        condition: Asked | None = None,
        generator: torch.Generator | None = None,
        batch_size: int = BATCH,
        progress: Progress | None = None,
    ) -> Tensor:
        """[n] log density of networks: by the volume of weights if Euclidean, of canonical ones if geometric."""
        fitted, manifold = self.fitted, self.fitted.space.manifold
        if fitted.field.predict == "endpoint" and any(block.size == 2 for block in manifold.spheres):
            raise CosetError(
                "Units with two weights lie on circles, which a flow that predicts end points tears where these lie "
                "opposite, so that not all networks have a density: use predict='velocity'."
            )
        fitted.base.refuse_without_density()
        solver, estimate = Solver(steps, method, 0.0, generator, progress), Divergence(divergence, probes, noise)
        logs = []
        points = fitted.encode(states_of(population))
        for x, field, own in fitted.batches(len(points), solver, condition, points, batch_size):
            with matmul_precision(fitted.precision):
                logs.append(log_prob(field, x, fitted.base.log_prob, manifold, own, estimate))
        return torch.cat(logs)

    def _population(self, x0: Tensor, x1: Tensor, condition: Asked | None, how: dict[str, Any]) -> Population:
        """The networks at x1 [n, D], whose paths began at x0 [n, D]."""
        fitted, n = self.fitted, len(x1)
        if lost := int((~x1.isfinite()).any(1).sum()):
            raise StateError(
                f"{lost} of {n} samples have NaN or infinite weights: take more steps, or less guidance or noise."
            )
        labels = {} if fitted.conditions is None else fitted.conditions.values(condition or {}, n)
        flow = {"geometry": self.plan.geometry, "coupling": self.plan.coupling, "predict": self.plan.predict}
        about = {"flow": flow, **how, "trained on": dict(fitted.about)}
        return Population(
            fitted.space.decode(x1),
            fitted.space.decode(x0),
            {name: x.squeeze(1) if x.shape[1] == 1 else x for name, x in labels.items()},
            about,
        )

    def on(self, sym: Symmetry, template: State) -> Flow:
        """The same flow for networks of another width: their symmetry, and one state as a template."""
        own = self.fitted.space
        held = [name for name in sym.axes if name in own.template and name not in own.sym.axes]
        room = space(holding(sym, held), check(template), self.plan.geometry, own.floors).to(self.fitted.device)
        return _flow(sym, self.plan, self.fitted.on(room))

    def to(self, device: str | torch.device) -> Flow:
        """The same flow on a device; its field moves there."""
        return _flow(self.sym, self.plan, self.fitted.on(self.fitted.space.to(resolve(device, {}))))

    def save(self, path: str | Path) -> None:
        """Write one `.safetensors` file, atomically; `Flow.load` reads it."""
        write_flow(path, self.plan, self.fitted)

    @staticmethod
    def load(path: str | Path, device: str | torch.device = "cpu") -> Flow:
        """The flow that `save` wrote to `path`."""
        plan, fitted = read_flow(path)
        return _flow(fitted.space.sym, plan, fitted).to(device)


def _flow(sym: Symmetry, plan: Plan, fitted: Fitted) -> Flow:
    made = Flow.of(sym, plan)
    made._fitted = fitted
    return made
