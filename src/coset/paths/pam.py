"""Proximal alternating minimization: a curve and the permutation of its end, in turn (tatro2020 Appendix E)."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from coset.alignment import relaxed
from coset.alignment.repair import running_norms
from coset.assignment import alternate_projections, project_doubly_stochastic, sample_birkhoff
from coset.core.errors import CosetError
from coset.core.progress import Progress
from coset.core.resume import RunFolder
from coset.core.show import ShownSettings
from coset.data import Split
from coset.paths.connect import AlongCurve, Buffers, Connect, CurveLearner, Ends, between, ends_of, place
from coset.paths.curve import CURVES, Curve
from coset.solutions.dirac import Dirac
from coset.solutions.likelihood import likelihood_of
from coset.solutions.pgd import perturb
from coset.symmetries.group import Element
from coset.symmetries.serialization import load_element, save_element
from coset.symmetries.symmetry import Symmetry
from coset.training.loop import Loop, Minibatch, MinibatchRun, release
from coset.training.network import Network, Randomness, Tensors, TrainingProblem
from coset.training.optimizers import Optimizer, check_positive

Wrap = Callable[[Optimizer, list[Tensor]], Optimizer]
"""From an optimizer and what it moves to another one."""


@dataclass(frozen=True, eq=False)
class CurveTraining:
    """On what a curve is learned, and the folder where it is kept."""

    split: Split
    seed: int
    device: torch.device
    folder: RunFolder
    progress: Progress | None
    checkpoint_seconds: float

    def learn(self, learner: AlongCurve, part: str, stream: int, wrap: Wrap | None = None) -> Tensors:
        """The parameters of a learner after its epochs, with its checkpoint in the folder `part`.

        stream: the number of its random numbers, another one for each part of a search. wrap: what takes the place of
        its optimizer.
        """
        group = [(stream,)]
        randomness = Randomness(self.seed, group, self.device)
        network, start = learner.ends.network, learner.ends.mean[:1]
        problem = TrainingProblem(network, start, self.split, likelihood_of(self.split.targets), randomness)
        run = MinibatchRun(problem, learner.connect, learner)
        if wrap is not None:
            run.optimizer = wrap(run.optimizer, run.trained)
        loop = Loop(
            learner.connect.epochs,
            group,
            randomness,
            self.device,
            stages=[self.folder.stage(part)],
            progress=self.progress,
            checkpoint_seconds=self.checkpoint_seconds,
            split=self.split,
            name=lambda index: f"Learning ({part})",
        )
        loop.drive(run)
        parameters = run.parameters
        release(run)
        return parameters


TIMES = 5  # at the middles of so many equal parts of [0, 1]
COMPARED = 1024  # examples at most
BATCH = 512


class PathObjective:
    """Q = mean over times and examples of -log p(y | x, w(t)) + weight_decay / 2 |w(t)|^2 (tatro2020 Eq. 5).

    As in training, norms with running statistics use those of the batch; there is no dropout. An attack starts from
    the same noise each time.
    """

    def __init__(self, settings: Connect, network: Network, split: Split, noise: tuple[float, float] | None) -> None:
        self._settings, self._network, self._noise = settings, network, noise
        some = split.subset(min(COMPARED, len(split)), torch.Generator().manual_seed(0))
        parts = -(-len(some) // BATCH)  # that differ by one at most: a norm needs more than a few
        self._batches = list(zip(some.inputs.tensor_split(parts), some.targets.tensor_split(parts), strict=True))
        self._examples = len(some)
        self._likelihood = likelihood_of(split.targets)

    @torch.no_grad()
    def __call__(self, ends: Tensor, buffers: Buffers, deviation: Tensor) -> float:
        """Of the curve with the ends (2, p) whose inner control points deviate by (1, bends, p) from the line.

        `buffers` are those of the two ends.
        """
        self._network.model.eval()
        for norm in running_norms(self._network.model).values():
            norm.train()
        times = (torch.arange(TIMES, device=ends.device, dtype=ends.dtype) + 0.5) / TIMES
        inner = CURVES[self._settings.curve].basis(times, self._settings.bends + 1)[:, 1:-1]
        total = 0.0
        for t, weights in zip(times, inner, strict=True):
            place(self._network.model, buffers, t.view(1))
            point = torch.lerp(ends[0], ends[1], t) + torch.einsum("b,bp->p", weights, deviation[0])
            total += self._loss(point.unsqueeze(0), float(t)) / TIMES
            total += self._settings.weight_decay / 2 * float(point.square().sum(dtype=torch.float64)) / TIMES
        return total

    def _loss(self, point: Tensor, t: float) -> float:
        noise = None if self._noise is None else (1 - t) * self._noise[0] + t * self._noise[1]

        total = 0.0
        for inputs, targets in self._batches:

            def loss(inputs: Tensor, targets: Tensor = targets) -> Tensor:
                outputs = self._network.aside(point, inputs)
                return -self._likelihood.log_prob(outputs, targets.unsqueeze(0), noise).flatten(1).sum(1)

            batch = inputs.unsqueeze(0)
            if self._settings.attack is not None:
                generator = torch.Generator(inputs.device).manual_seed(0)
                batch = perturb(self._settings.attack, loss, batch, [generator])
            total += float(loss(batch))
        return total / self._examples


ROUNDS = 20  # of alternating projections a step


@dataclass(frozen=True, eq=False)
class PermutationLearner(AlongCurve):
    """min_D E_t[loss(w(t))] + sum |D - 1|^2 / (2 reach), over blocks D that are doubly stochastic (tatro2020 Eq. 34).

    w(t) = (1-t) theta_1 + t D theta_2 + sum_k B_k(t) deviation_k: the control points move with D theta_2, and their
    deviations from the line are held (Eq. 35). The blocks, (1, n, n) by group, start as identities.
    """

    sym: Symmetry
    deviation: Tensor
    reach: float

    def parameters(self, problem: TrainingProblem) -> Tensors:
        identity = self.sym.identity()
        return {
            group.name: relaxed.matrix_of(identity, group.name).to(problem.context.mean).unsqueeze(0).clone()
            for group in self.sym.groups
        }

    def objective(
        self, problem: TrainingProblem, parameters: Tensors, batch: Minibatch
    ) -> tuple[Tensor, Tensor, Tensor]:
        ends, t = problem.context, self.time(problem, batch)
        blocks = {name: block[0] for name, block in parameters.items()}
        last = {name: self.ends.last.mean[name] for name in problem.network.names}
        mixed = relaxed.act(self.sym, blocks, last)
        second = torch.cat([x.flatten().to(ends.mean.dtype) for x in mixed.values()])
        weights = self.point(t, torch.stack([ends.mean[0], second]), self.deviation)
        far = torch.stack([(block - _identity(block)).square().sum() for block in parameters.values()]).sum()
        lasts = relaxed.act(self.sym, blocks, {name: last for name, (_, last) in ends.buffers.items()})
        buffers = {name: (ends.buffers[name][0], last.detach()) for name, last in lasts.items()}
        loss, outputs = self.loss(problem, batch, t, weights, buffers)
        return loss + self.decay(weights) + far / (2 * self.reach), loss, outputs


def _identity(block: Tensor) -> Tensor:
    return torch.eye(block.shape[-1], dtype=block.dtype, device=block.device)


class ProjectedOptimizer(Optimizer):
    """Steps that end in the Birkhoff polytope; blocks of one size are projected together."""

    def __init__(self, inner: Optimizer, blocks: Sequence[Tensor]) -> None:
        self._inner = inner
        self._alike = [
            [block for block in blocks if block.shape == shape] for shape in dict.fromkeys(x.shape for x in blocks)
        ]
        self.state = inner.state

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], rate: Tensor) -> None:
        self._inner.step(gradients, rate)
        for blocks in self._alike:
            projected = alternate_projections(torch.stack(blocks), ROUNDS)
            for block, new in zip(blocks, projected, strict=True):
                block.copy_(new)


log = logging.getLogger(__name__)

ANNEALED = 0.5  # the rates of an iteration, of those before (tatro2020 E.2)
ROUNDING = 1e-6  # of sums on a device that does not repeat them exactly


@dataclass(frozen=True, repr=False)
class PAM(ShownSettings):
    """Settings of the alternation (tatro2020 E.2 and E.4).

    Rates are halved from one iteration to the next. Frozen parameters are learned too, since permutations move them.
    The paper does not give its reaches; large ones leave the objective alone.

    Args:
        iterations: Of both problems in turn.
        epochs: Of the projected gradient steps over doubly stochastic matrices.
        rate: Of these steps.
        terms: Of the Birkhoff-von Neumann decomposition of the matrices that they end at.
        samples: Permutations drawn from it.
        permutation_reach: nu_P of Eq. 34, which keeps a permutation near the one before.
        curve_reach: nu_phi of Eq. 34, which keeps a curve near the one before.

    Raises:
        CosetError: If a setting is not positive.

    Example:
        >>> short = coset.PAM(epochs=1, samples=2)
        >>> curve = coset.find_curve(a, b, model, digits.train, coset.Connect(epochs=1), align=False, pam=short)
        >>> len(curve.points)
        3
    """

    iterations: int = 1
    epochs: int = 20
    rate: float = 0.1
    terms: int = 10
    samples: int = 32
    permutation_reach: float = 1e4
    curve_reach: float = 1e6

    def __post_init__(self) -> None:
        check_positive(self, *(field.name for field in fields(self)))


class Alternation(NamedTuple):
    """objectives: Q at the start, and after each of the two problems of each iteration; it never rises."""

    curve: Curve
    element: Element
    objectives: tuple[float, ...]


def alternate(
    connect: Connect, pam: PAM, first: Dirac, second: Dirac, model: nn.Module, sym: Symmetry, training: CurveTraining
) -> Alternation:
    """The curve from `first` to an image of `second`, and the element that makes the image.

    Each problem starts from the last iterate and is given up for it unless Q plus the proximal term has fallen, with Q
    on fixed examples and times (`PathObjective`): so Q never rises.
    """
    if not sym.groups:
        raise CosetError(f"{type(model).__name__} has no permutations, so PAM has nothing to choose from.")
    element = sym.identity()
    ends = ends_of(first, second, model, training.device, thawed=True)
    objective = PathObjective(connect, ends.network, training.split, ends.noise)
    deviation = torch.zeros(1, connect.bends, ends.mean.shape[1], dtype=ends.mean.dtype, device=training.device)
    iterate = _Iterate(connect, pam, sym, training, objective, ends, deviation)
    values = [iterate.value(iterate.deviation)]
    for k in range(pam.iterations):
        element = iterate.best_permutation(k) @ element
        ends = ends_of(first, sym.act(element, second), model, training.device, thawed=True)
        iterate = replace(iterate, ends=ends)
        values.append(iterate.value(iterate.deviation))
        iterate = replace(iterate, deviation=iterate.better_curve(k))
        values.append(iterate.value(iterate.deviation))
        log.info("PAM iteration %d: objective %.6g, %.6g, %.6g", k + 1, *values[-3:])
        for before, after in pairwise(values):
            assert after <= before + ROUNDING * abs(before), f"the objective of PAM rose: {values}"
    return Alternation(ends.curve(connect.curve, iterate.deviation[0], None), element, tuple(values))


@dataclass(frozen=True, eq=False)
class _Iterate:
    """Where the alternation stands: the ends, and how far the control points deviate from the line between them."""

    connect: Connect
    pam: PAM
    sym: Symmetry
    training: CurveTraining
    objective: PathObjective
    ends: Ends
    deviation: Tensor

    def value(self, deviation: Tensor) -> float:
        """Q of the curve between the ends with other control points."""
        return self.objective(self.ends.mean, self.ends.buffers, deviation)

    def best_permutation(self, k: int) -> Element:
        """The best of the candidates that the relaxed problem suggests (tatro2020 Eq. 51)."""
        part = f"permutation-{k + 1}"
        stage = self.training.folder.stage(result=f"{part}.safetensors")

        def search() -> Element:
            pam, rate = self.pam, self.pam.rate * ANNEALED**k
            steps = replace(self.connect, optimizer="sgd", epochs=pam.epochs, rate=rate)
            reach = pam.permutation_reach
            learner = PermutationLearner(steps, self.ends, self.sym, self.deviation, reach)
            parameters = self.training.learn(learner, part, 2 * k + 1, ProjectedOptimizer)
            blocks = {name: project_doubly_stochastic(block[0].detach()) for name, block in parameters.items()}
            best, least = self.sym.identity(), math.inf
            for candidate in _candidates(self.sym, blocks, pam, torch.Generator().manual_seed(self.training.seed)):
                value = self._value_of(candidate) + _units_that_move(self.sym, candidate) / reach
                if value < least:  # the first one is the identity, which wins if nothing is better
                    best, least = candidate, value
            return best

        return stage.complete(
            lambda file: load_element(file)[1], search, lambda element, file: save_element(file, self.sym, element)
        )

    def _value_of(self, candidate: Element) -> float:
        """Q if the last end were permuted."""
        ends = self.ends
        image = self.sym.act(candidate.to(self.training.device), ends.last).mean
        points = torch.stack([ends.mean[0], ends.network.flatten(image)])
        return self.objective(points, between(ends.network.model, ends.first.mean, image), self.deviation)

    def better_curve(self, k: int) -> Tensor:
        """The deviations after another course of learning, or as they were if that did not help."""
        steps = replace(self.connect, rate=self.connect.largest_rate * ANNEALED**k)
        learner = CurveLearner(steps, self.ends, self.deviation, self.pam.curve_reach)
        deviation = self.training.learn(learner, f"curve-{k + 1}", 2 * k + 2)["mean"].detach()
        far = float((deviation - self.deviation).square().sum(dtype=torch.float64)) / (2 * self.pam.curve_reach)
        return deviation if self.value(deviation) + far <= self.value(self.deviation) else self.deviation


def _candidates(sym: Symmetry, blocks: dict[str, Tensor], pam: PAM, generator: torch.Generator) -> Iterator[Element]:
    """The identity, the nearest permutations, and draws from the Birkhoff-von Neumann decomposition."""
    yield sym.identity()
    yield relaxed.rounded(sym, blocks)
    draws = {name: sample_birkhoff(x.cpu(), pam.samples, pam.terms, generator) for name, x in blocks.items()}
    for k in range(pam.samples):
        yield sym.element({name: p[k] for name, p in draws.items()})


def _units_that_move(sym: Symmetry, element: Element) -> float:
    """|P - 1|^2 / 2."""
    identity = sym.identity()
    return float(sum(int((element[group.name] != identity[group.name]).sum()) for group in sym.groups))
