"""Proximal alternating minimization: a curve and the permutation of its end, in turn (tatro2020 Appendix E)."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from coset.alignment import relaxed
from coset.alignment.repair import running_norms
from coset.assignment import alternate_projections, project_doubly_stochastic, sample_birkhoff
from coset.core.checks import check_positive
from coset.core.errors import CosetError
from coset.core.progress import Progress
from coset.data import Split
from coset.paths.connect import Along, Buffers, Connect, Connecting, Ends, between, ends_of, place
from coset.paths.curve import CURVES, Curve
from coset.solutions.dirac import Dirac
from coset.solutions.likelihood import likelihood_of
from coset.solutions.pgd import perturb
from coset.symmetries.group import Element
from coset.symmetries.serialization import load_element, save_element
from coset.symmetries.symmetry import Symmetry
from coset.training.folder import RowFolder
from coset.training.loop import Course, Problem, drive
from coset.training.network import Network
from coset.training.optimizers import Optimizer
from coset.training.randomness import Randomness

Learned = TypeVar("Learned", bound=Course)


@dataclass(frozen=True, eq=False)
class Work:
    """`folder` is where all is kept, None for nowhere."""

    split: Split
    seed: int
    device: torch.device
    folder: Path | None
    progress: Progress | None
    checkpoint_seconds: float

    def learn(self, ends: Ends, make: Callable[[Problem], Learned], epochs: int, part: str, stream: int) -> Learned:
        """Let what `make` makes go through its epochs, with its checkpoint in the folder `part`.

        `stream` is the number of its random numbers, another one for each part of a search.
        """
        group = [(stream,)]
        randomness = Randomness(self.seed, group, self.device)
        start = ends.mean[:1]
        run = make(Problem(ends.network, start, self.split, likelihood_of(self.split.targets), randomness))
        folders = [] if self.folder is None else [RowFolder(self.folder / part)]
        drive(
            run,
            epochs,
            self.split,
            randomness,
            group,
            folders,
            self.device,
            self.progress,
            self.checkpoint_seconds,
            lambda row: f"Learning ({part})",
        )
        return run


TIMES = 5  # at the middles of so many equal parts of [0, 1]
JUDGED = 1024  # examples at most
BATCH = 512


class PathObjective:
    """Q = mean over times and examples of -log p(y | x, w(t)) + weight_decay / 2 |w(t)|^2 (tatro2020 Eq. 5).

    As in training, norms with running statistics use those of the batch; there is no dropout. An attack starts from
    the same noise each time.
    """

    def __init__(self, settings: Connect, network: Network, split: Split, noise: tuple[float, float] | None) -> None:
        self._settings, self._network, self._noise = settings, network, noise
        some = split.subset(min(JUDGED, len(split)), torch.Generator().manual_seed(0))
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

            def loss(given: Tensor, targets: Tensor = targets) -> Tensor:
                outputs = self._network.aside(point, given)
                return -self._likelihood.log_prob(outputs, targets.unsqueeze(0), noise).flatten(1).sum(1)

            given = inputs.unsqueeze(0)
            if self._settings.attack is not None:
                generator = torch.Generator(inputs.device).manual_seed(0)
                given = perturb(self._settings.attack, loss, given, [generator])
            total += float(loss(given))
        return total / self._examples


ROUNDS = 20  # of alternating projections a step


class Relaxing(Along):
    """min_D E_t[loss(w(t))] + sum |D - 1|^2 / (2 reach), over blocks D that are doubly stochastic (tatro2020 Eq. 34).

    w(t) = (1-t) theta_1 + t D theta_2 + sum_k B_k(t) deviation_k: the control points move with D theta_2, and their
    deviations from the line are held (Eq. 35). The blocks start as identities.
    """

    def __init__(
        self, settings: Connect, problem: Problem, ends: Ends, sym: Symmetry, deviation: Tensor, reach: float
    ) -> None:
        network = problem.network
        self._first, self._deviation, self._reach = ends.mean[0], deviation, reach
        self._second = {name: ends.last.mean[name] for name in network.names}
        self._buffers = ends.buffers
        self._sym = sym
        identity = sym.identity()
        blocks = {group.name: relaxed.matrix_of(identity, group.name) for group in sym.groups}
        self._same = {name: block.to(self._first).unsqueeze(0) for name, block in blocks.items()}
        self._blocks = {name: same.clone() for name, same in self._same.items()}
        super().__init__(settings, problem, ends, list(self._blocks.values()))
        self.optimizer = _Projected(self.optimizer, self.parameters)

    def objective(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        blocks = {name: block[0] for name, block in self._blocks.items()}
        mixed = relaxed.act(self._sym, blocks, self._second)
        second = torch.cat([x.flatten().to(self._first.dtype) for x in mixed.values()])
        weights = self.bent(torch.stack([self._first, second]), self._deviation)
        far = torch.stack([(block - self._same[name]).square().sum() for name, block in self._blocks.items()]).sum()
        lasts = relaxed.act(self._sym, blocks, {name: last for name, (_, last) in self._buffers.items()})
        buffers = {name: (self._buffers[name][0], last.detach()) for name, last in lasts.items()}
        loss, outputs = self.measured(weights, buffers, inputs, targets)
        return loss + self.decay(weights) + far / (2 * self._reach), loss, outputs

    def blocks(self) -> dict[str, Tensor]:
        """The blocks as they stand, doubly stochastic to rounding."""
        return {name: project_doubly_stochastic(block[0].detach()) for name, block in self._blocks.items()}


class _Projected(Optimizer):
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


@dataclass(frozen=True)
class PAM:
    """Settings of the alternation (tatro2020 E.2 and E.4).

    iterations: of both problems in turn. epochs, rate: of the projected gradient steps over doubly stochastic matrices.
    terms: of the Birkhoff-von Neumann decomposition of what they find. samples: permutations drawn from it.
    permutation_reach, curve_reach: nu_P and nu_phi of Eq. 34, which keep an iterate near the one before; the paper does
    not give them, and large ones leave the objective alone. Rates are halved from one iteration to the next. Frozen
    parameters are learned too, since permutations move them.
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
    settings: Connect, pam: PAM, first: Dirac, second: Dirac, model: nn.Module, sym: Symmetry, work: Work
) -> Alternation:
    """The curve from `first` to an image of `second`, and the element that makes the image.

    Each problem starts from the last iterate and is given up for it unless Q plus the proximal term has fallen, with Q
    on fixed examples and times (`coset.paths.pam`): so Q never rises.
    """
    if not sym.groups:
        raise CosetError(f"{type(model).__name__} has no permutations, so PAM has nothing to choose from.")
    element = sym.identity()
    ends = ends_of(first, second, model, work.device, thawed=True)
    objective = PathObjective(settings, ends.network, work.split, ends.noise)
    deviation = torch.zeros(1, settings.bends, ends.mean.shape[1], dtype=ends.mean.dtype, device=work.device)
    found = [objective(ends.mean, ends.buffers, deviation)]
    for k in range(pam.iterations):
        element = _permutation(settings, pam, ends, sym, deviation, objective, work, k) @ element
        ends = ends_of(first, sym.act(element, second), model, work.device, thawed=True)
        found.append(objective(ends.mean, ends.buffers, deviation))
        deviation = _curve(settings, pam, ends, deviation, objective, work, k)
        found.append(objective(ends.mean, ends.buffers, deviation))
        log.info("PAM iteration %d: objective %.6g, %.6g, %.6g", k + 1, *found[-3:])
        for before, after in pairwise(found):
            assert after <= before + ROUNDING * abs(before), f"the objective of PAM rose: {found}"
    return Alternation(ends.curve(settings.curve, deviation[0], None), element, tuple(found))


def _permutation(
    settings: Connect,
    pam: PAM,
    ends: Ends,
    sym: Symmetry,
    deviation: Tensor,
    objective: PathObjective,
    work: Work,
    k: int,
) -> Element:
    """The best of the candidates that the relaxed problem suggests (tatro2020 Eq. 51)."""
    part = f"permutation-{k + 1}"
    kept = None if work.folder is None else work.folder / f"{part}.safetensors"
    if kept is not None and kept.exists():
        return load_element(kept)[1]
    steps = replace(settings, optimizer="sgd", epochs=pam.epochs, rate=pam.rate * ANNEALED**k)
    run = work.learn(
        ends,
        lambda problem: Relaxing(steps, problem, ends, sym, deviation, pam.permutation_reach),
        pam.epochs,
        part,
        2 * k + 1,
    )
    best, least = sym.identity(), math.inf
    for candidate in _candidates(sym, run.blocks(), pam, torch.Generator().manual_seed(work.seed)):
        image = sym.act(candidate.to(work.device), ends.last).mean
        points = torch.stack([ends.mean[0], ends.network.flatten(image)])
        buffers = between(ends.network.model, ends.first.mean, image)
        value = objective(points, buffers, deviation) + _moved(sym, candidate) / pam.permutation_reach
        if value < least:  # the first one is the identity, which wins if nothing is better
            best, least = candidate, value
    if kept is not None:
        save_element(kept, sym, best)
    return best


def _curve(
    settings: Connect, pam: PAM, ends: Ends, deviation: Tensor, objective: PathObjective, work: Work, k: int
) -> Tensor:
    """The deviations after another course of learning, or as they were if that did not help."""
    steps = replace(settings, rate=settings.largest_rate * ANNEALED**k)
    run = work.learn(
        ends,
        lambda problem: Connecting(steps, problem, ends, deviation, pam.curve_reach),
        settings.epochs,
        f"curve-{k + 1}",
        2 * k + 2,
    )
    learned = run.deviation.detach()
    far = float((learned - deviation).square().sum(dtype=torch.float64)) / (2 * pam.curve_reach)
    better = objective(ends.mean, ends.buffers, learned) + far <= objective(ends.mean, ends.buffers, deviation)
    return learned if better else deviation


def _candidates(sym: Symmetry, blocks: dict[str, Tensor], pam: PAM, generator: torch.Generator) -> Iterator[Element]:
    """The identity, the nearest permutations, and draws from the Birkhoff-von Neumann decomposition."""
    yield sym.identity()
    yield relaxed.rounded(sym, blocks)
    drawn = {name: sample_birkhoff(x.cpu(), pam.samples, pam.terms, generator) for name, x in blocks.items()}
    for k in range(pam.samples):
        yield sym.element({name: p[k] for name, p in drawn.items()})


def _moved(sym: Symmetry, element: Element) -> float:
    """|P - 1|^2 / 2, the number of units that move."""
    identity = sym.identity()
    return float(sum(int((element[group.name] != identity[group.name]).sum()) for group in sym.groups))
