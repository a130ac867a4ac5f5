"""Proximal alternating minimization: a curve and the permutation of its end, in turn (tatro2020 Appendix E)."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from coset.alignment import relaxed
from coset.assignment import sample_birkhoff
from coset.curves.buffers import between
from coset.curves.connect import Connect, Connecting
from coset.curves.ends import Ends, ends_of
from coset.curves.objective import Objective
from coset.curves.relaxing import Relaxing
from coset.curves.work import Work
from coset.errors import CosetError
from coset.inference.stepping import check_positive
from coset.paths import Curve
from coset.solutions import Dirac
from coset.symmetries import Element, Symmetry
from coset.symmetries.replay import load_element, save_element

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
    on fixed examples and times (`coset.curves.objective`): so Q never rises.
    """
    if not sym.groups:
        raise CosetError(f"{type(model).__name__} has no permutations, so PAM has nothing to choose from.")
    element = sym.identity()
    ends = ends_of(first, second, model, work.device, thawed=True)
    objective = Objective(settings, ends.network, work.split, ends.noise)
    deviation = torch.zeros(1, settings.bends, ends.mean.shape[1], dtype=ends.mean.dtype, device=work.device)
    found = [objective(ends.mean, ends.buffers, deviation)]
    for k in range(pam.iterations):
        element = _permutation(settings, pam, ends, sym, deviation, objective, work, k) @ element
        ends = ends_of(first, second.push(sym, element), model, work.device, thawed=True)
        found.append(objective(ends.mean, ends.buffers, deviation))
        deviation = _curve(settings, pam, ends, deviation, objective, work, k)
        found.append(objective(ends.mean, ends.buffers, deviation))
        log.info("PAM iteration %d: objective %.6g, %.6g, %.6g", k + 1, *found[-3:])
        for before, after in pairwise(found):
            assert after <= before + ROUNDING * abs(before), f"the objective of PAM rose: {found}"
    return Alternation(ends.curve(settings.curve, deviation[0], None), element, tuple(found))


def _permutation(
    settings: Connect, pam: PAM, ends: Ends, sym: Symmetry, deviation: Tensor, objective: Objective, work: Work, k: int
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
        image = ends.last.push(sym, candidate.to(work.device)).mean
        points = torch.stack([ends.mean[0], ends.network.flatten(image)])
        buffers = between(ends.network.model, ends.first.mean, image)
        value = objective(points, buffers, deviation) + _moved(sym, candidate) / pam.permutation_reach
        if value < least:  # the first one is the identity, which wins if nothing is better
            best, least = candidate, value
    if kept is not None:
        save_element(kept, sym, best)
    return best


def _curve(
    settings: Connect, pam: PAM, ends: Ends, deviation: Tensor, objective: Objective, work: Work, k: int
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
