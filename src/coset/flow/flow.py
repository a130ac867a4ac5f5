"""A distribution over networks, learned from a population of them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from coset.core.errors import CosetError, StateError
from coset.core.functional import matmul_precision, resolve
from coset.core.progress import Progress
from coset.core.show import Shown, Table
from coset.core.state import StateLike, as_state, check
from coset.data import Data
from coset.flow.coordinates import Geometry, sharing, space
from coset.flow.flow_file import read_flow, write_flow
from coset.flow.guidance import Guidance, guided
from coset.flow.likelihood import Divergence, DivergenceName, ProbeNoise, log_prob, sample_with_log_prob
from coset.flow.matching import CouplingName, FlowPlan, FlowProblem, Matching, learn
from coset.flow.sampler import ConditionValues, FlowSampler
from coset.flow.solvers import Solver, solve
from coset.flow.velocity_network import Architecture, Prediction, units
from coset.populations.population import Population, PopulationLike, states_of
from coset.symmetries.symmetry import Symmetry
from coset.training.loop import check_run

log = logging.getLogger(__name__)

BATCH = 512  # networks that are sampled at once


class Flow(Shown):
    """A distribution over networks, learned from a population: networks as samples (`weightflow`).

    A differential equation leads from untrained networks to trained ones. Its field of velocities is equivariant: a
    flow does not know the order of hidden units, and its density is the same for all orders.

    Args:
        sym: The symmetry of the networks.
        geometry: "euclidean" takes weights as they are, joined by straight lines; "normalized" makes positive factors
            canonical, so that the weights into a ReLU unit have norm one, and joins by straight lines, too;
            "geometric" joins canonical networks by geodesics on the product of spheres and flat space.
        coupling: Which start belongs to which network. "training": its own, which the population must know. "ot": the
            closest of new ones in groups, modulo permutations if no hidden units meet. "independent": any new one.
        architecture: Of the network that computes velocities.
        predict: Whether that network predicts the "velocity", or the "endpoint" of a path.
        conditions: Names of labels of the population that samples can be asked for.
        align: Whether to bring all networks in the order of the first one before; by default where the coupling is
            not "training".
        group: How many networks are matched together by the coupling "ot".

    Raises:
        CosetError: If an argument is none of its choices, or `align` meets the coupling "training".

    Example:
        >>> flow = coset.Flow(sym, architecture=coset.Architecture(width=32, depth=1, heads=2))
        >>> flow.fit(population, coset.Matching(epochs=2)).sample(3)
        Population(3 networks of 1,210 weights) on cpu...
    """

    def __init__(
        self,
        sym: Symmetry,
        geometry: Geometry = "geometric",
        coupling: CouplingName = "training",
        *,
        architecture: Architecture | None = None,
        predict: Prediction = "velocity",
        conditions: Sequence[str] = (),
        align: bool | None = None,
        group: int = 64,
    ) -> None:
        network = architecture or Architecture()
        self.sym = sym
        self.plan = FlowPlan(geometry, coupling, network, predict, tuple(conditions), align, group)
        self._sampler: FlowSampler | None = None

    @staticmethod
    def of(sym: Symmetry, plan: FlowPlan) -> Flow:
        """The flow of a plan, with nothing learned.

        Args:
            sym: The symmetry of the networks.
            plan: The other arguments of `Flow`.
        """
        flow = Flow(sym)
        flow.plan = plan
        return flow

    @property
    def sampler(self) -> FlowSampler:
        """What was learned: the field, the base, and what is known of the population; CosetError if nothing was yet."""
        if self._sampler is None:
            raise CosetError("This flow has not been fitted: call fit(population) first.")
        return self._sampler

    def fit(
        self,
        population: PopulationLike,
        method: Matching | None = None,
        *,
        model: nn.Module | None = None,
        data: Data | None = None,
        more: Sequence[tuple[Symmetry, PopulationLike]] = (),
        seed: int = 0,
        device: str | torch.device | None = None,
        out: str | Path | None = None,
        progress: Progress | None = None,
        checkpoint_seconds: float = 60.0,
    ) -> Flow:
        """Learn to generate networks like those of a population.

        Args:
            population: A `Population`, tensors [n, ...] by name, or a list of states, modules or solutions. The
                coupling "training" needs a population that knows its starts, and conditions need its labels.
            method: How the flow is learned.
            model: With `data`: errors of velocities then count by what they do to outputs, too, which makes samples
                accurate (see `OutputLoss`).
            data: Examples that outputs are measured on; of their targets only the kind counts.
            more: Populations of other widths, with their symmetries, that are learned together with the first.
            seed: Of the field's weights, batches and starts: same arguments, same flow.
            device: Where to learn; by default where the population is.
            out: A folder for metrics and checkpoints. Called again with the same arguments, `fit` goes on where it was
                stopped, with the same result.
            progress: Hears of each epoch, and of each step of all of them.
            checkpoint_seconds: How long to go on until the next checkpoint is written, after a step.

        Returns:
            This flow.

        Raises:
            CosetError: If it diverges, if the population lacks starts or labels, or if `out` holds another run.
            StateError: If networks are not finite, or have no coordinates in the geometry.

        Example:
            >>> flow = coset.Flow(sym, architecture=coset.Architecture(width=32, depth=1, heads=2))
            >>> flow = flow.fit(population, coset.Matching(epochs=2), model=model, data=digits.train)
        """
        method = method or Matching()
        check_run(1, checkpoint_seconds, seed)
        populations = [(own, Population.of(networks)) for own, networks in ((self.sym, population), *more)]
        where = resolve(device, populations[0][1].states)
        problem = FlowProblem.of(self.plan, populations, method, (model, data), where, seed)
        learn(problem, method, seed, out, progress, checkpoint_seconds)
        about, count = populations[0][1].about, sum(len(own) for _, own in populations)
        self._sampler = FlowSampler(problem.field, problem.base, problem.conditions, method.precision, about, count)
        return self

    def sample(
        self,
        n: int,
        steps: int = 32,
        method: str = "heun",
        *,
        noise: float = 0.0,
        guidance: Guidance | None = None,
        condition: ConditionValues | None = None,
        starts: PopulationLike | None = None,
        generator: torch.Generator | None = None,
        batch_size: int = BATCH,
        progress: Progress | None = None,
    ) -> Population:
        """Generate networks.

        Args:
            n: How many.
            steps: Of the solver, for each network.
            method: Of the solver: "euler", "midpoint", "heun" or "rk4"; in the geometry "euclidean", or for networks
                without spheres, also the adaptive "dopri5", "dopri8", "bosh3" and "adaptive_heun", which need
                torchdiffeq and choose their own steps.
            noise: Before each step networks move by as much times a Gaussian (`weightflow`: 0.05).
            guidance: Data that the networks should do well on.
            condition: For each of the conditions a number for all networks, or one for each, [n] or [n, k].
            starts: n networks to begin from, instead of draws from the base.
            generator: Of the draws; torch's global one when None.
            batch_size: Networks that are sampled at once.
            progress: Hears of the steps of all batches.

        Returns:
            A population on the device of the flow: where each network is, and where its path began. Its labels are
            the conditions, and `about` says how it was made.

        Raises:
            StateError: If weights come out infinite, as by too much guidance.
            CosetError: If the flow has not been fitted, or conditions are missing.

        Example:
            >>> flow = coset.Flow(sym, architecture=coset.Architecture(width=32, depth=1, heads=2))
            >>> samples = flow.fit(population, coset.Matching(epochs=2)).sample(4, steps=8)
            >>> print(samples)
            Population(4 networks of 1,210 weights)
        """
        sampler, room = self.sampler, self.sampler.space
        solver = Solver(steps, method, noise, generator, progress)
        points = None if starts is None else sampler.encode(states_of(starts))
        if points is not None and len(points) != n:
            raise CosetError(f"There are {len(points)} starts for {n} networks: give as many.")
        spread = units(room, sampler.field.standardize)
        x0, x1 = [], []
        for x, field, own in sampler.batches(n, solver, condition, points, batch_size):
            if guidance is not None:
                field = guided(field, guidance, room.decode, room.manifold, spread, generator)
            x0.append(x)
            with matmul_precision(sampler.precision):
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
        condition: ConditionValues | None = None,
        generator: torch.Generator | None = None,
        batch_size: int = BATCH,
        progress: Progress | None = None,
    ) -> tuple[Population, Tensor]:
        """Generate networks along with the logarithm of their density, in one pass.

        Args:
            n: How many.
            steps: Of the solver, which make an error of their own: compare two numbers of steps.
            method: Of the solver, as for `sample`.
            divergence: "hutchinson" takes one gradient of the field for each of `probes` random vectors at every
                stage: log q is then unbiased, and q is not. "exact" takes one for each weight.
            probes: How many random vectors.
            noise: Their entries: "rademacher" (signs) or "gaussian".
            condition: As for `sample`.
            generator: Of the draws and probes; torch's global one when None.
            batch_size: Networks that are sampled at once.
            progress: Hears of the steps of all batches.

        Returns:
            The population, as `sample` gives it, and log densities [n] in float64, by the volume of weights if the
            geometry is Euclidean, and by area and volume of canonical ones if it is geometric.

        Raises:
            CosetError: If the geometry is "normalized", in which there is no density.

        Example:
            >>> flow = coset.Flow(sym, architecture=coset.Architecture(width=32, depth=1, heads=2))
            >>> flow = flow.fit(population, coset.Matching(epochs=2))
            >>> samples, log_prob = flow.sample_with_log_prob(2, steps=4)
            >>> log_prob.shape
            torch.Size([2])
        """
        sampler, manifold = self.sampler, self.sampler.space.manifold
        sampler.base.refuse_without_density()
        solver, estimate = Solver(steps, method, 0.0, generator, progress), Divergence(divergence, probes, noise)
        x0, x1, logs = [], [], []
        for x, field, own in sampler.batches(n, solver, condition, None, batch_size):
            x0.append(x)
            with matmul_precision(sampler.precision):
                end, density = sample_with_log_prob(field, x, sampler.base.log_prob, manifold, own, estimate)
            x1.append(end)
            logs.append(density)
        ends = torch.cat(x1)
        if brought := int(sampler.space.outside(ends).sum()):
            log.warning(
                "%d of %d networks had %s below zero and were brought back there: their densities are those of where "
                "they were",
                brought,
                len(ends),
                " or ".join(sampler.space.floors),
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
        condition: ConditionValues | None = None,
        generator: torch.Generator | None = None,
        batch_size: int = BATCH,
        progress: Progress | None = None,
    ) -> Tensor:
        """The log density of networks, by the volume of weights if Euclidean, of canonical ones if geometric.

        Args:
            population: A `Population`, tensors [n, ...] by name, or a list of states, modules or solutions.
            steps: Of the solver, back to where the flow begins.
            method: Of the solver, as for `sample`.
            divergence: As for `sample_with_log_prob`.
            probes: How many random vectors it takes.
            noise: Their entries.
            condition: As for `sample`.
            generator: Of the probes; torch's global one when None.
            batch_size: Networks at once.
            progress: Hears of the steps of all batches.

        Returns:
            [n] in float64.

        Raises:
            CosetError: If the geometry is "normalized", in which there is no density.
            StateError: If networks are not like those that the flow was learned from.

        Example:
            >>> flow = coset.Flow(sym, architecture=coset.Architecture(width=32, depth=1, heads=2))
            >>> flow = flow.fit(population, coset.Matching(epochs=2))
            >>> flow.log_prob(population, steps=4).shape
            torch.Size([8])
        """
        sampler, manifold = self.sampler, self.sampler.space.manifold
        if sampler.field.predict == "endpoint" and any(block.size == 2 for block in manifold.spheres):
            raise CosetError(
                "Units with two weights lie on circles, which a flow that predicts end points tears where these lie "
                "opposite, so that not all networks have a density: use predict='velocity'."
            )
        sampler.base.refuse_without_density()
        solver, estimate = Solver(steps, method, 0.0, generator, progress), Divergence(divergence, probes, noise)
        logs = []
        points = sampler.encode(states_of(population))
        for x, field, own in sampler.batches(len(points), solver, condition, points, batch_size):
            with matmul_precision(sampler.precision):
                logs.append(log_prob(field, x, sampler.base.log_prob, manifold, own, estimate))
        return torch.cat(logs)

    def _population(self, x0: Tensor, x1: Tensor, condition: ConditionValues | None, how: dict[str, Any]) -> Population:
        """The networks at x1 [n, D], whose paths began at x0 [n, D]."""
        sampler, n = self.sampler, len(x1)
        if lost := int((~x1.isfinite()).any(1).sum()):
            raise StateError(
                f"{lost} of {n} samples have NaN or infinite weights: take more steps, or less guidance or noise."
            )
        labels = {} if sampler.conditions is None else sampler.conditions.values(condition or {}, n)
        flow = {"geometry": self.plan.geometry, "coupling": self.plan.coupling, "predict": self.plan.predict}
        about = {"flow": flow, **how, "trained on": dict(sampler.about)}
        return Population(
            sampler.space.decode(x1),
            sampler.space.decode(x0),
            {name: x.squeeze(1) if x.shape[1] == 1 else x for name, x in labels.items()},
            about,
        )

    def on(self, sym: Symmetry, template: StateLike) -> Flow:
        """The same flow for networks of another width.

        Args:
            sym: Their symmetry.
            template: One of them: a state, a module or a solution.
        """
        template = as_state(template, "the template")
        own = self.sampler.space
        shared = [name for name in sym.axes if name in own.template and name not in own.sym.axes]
        room = space(sharing(sym, shared), check(template), self.plan.geometry, own.floors).to(self.sampler.device)
        return _flow(sym, self.plan, self.sampler.on(room))

    def to(self, device: str | torch.device) -> Flow:
        """The same flow on another device; its field moves there.

        Args:
            device: Such as "cuda".
        """
        return _flow(self.sym, self.plan, self.sampler.on(self.sampler.space.to(resolve(device, {}))))

    def save(self, path: str | Path) -> None:
        """Write one file, atomically; `Flow.load` reads it.

        Args:
            path: Its name, which ends in `.safetensors`.

        Raises:
            StateError: If it cannot be written.
        """
        write_flow(path, self.plan, self.sampler)

    @staticmethod
    def load(path: str | Path, device: str | torch.device = "cpu") -> Flow:
        """The flow that `save` wrote.

        Args:
            path: The file.
            device: Where its tensors go.

        Raises:
            StateError: If the file is no flow, or half of one.
        """
        plan, sampler = read_flow(path)
        return _flow(sampler.space.sym, plan, sampler).to(device)

    def _shown(self) -> Table:
        plan = self.plan
        network = ", ".join(f"{name} {value}" for name, value in asdict(plan.architecture).items() if name != "kind")
        rows: list[tuple[object, ...]] = [
            ("network", f"{plan.architecture.kind}: {network}; predicts the {plan.predict}"),
            ("conditions", ", ".join(plan.conditions) or "none"),
        ]
        if self._sampler is None:
            rows.append(("fitted", "no"))
        else:
            rows += self._sampler.rows()
        return Table(f"{plan.geometry} flow, coupling {plan.coupling}", rows)


def _flow(sym: Symmetry, plan: FlowPlan, sampler: FlowSampler) -> Flow:
    flow = Flow.of(sym, plan)
    flow._sampler = sampler
    return flow
