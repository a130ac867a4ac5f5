"""A low-loss curve between two networks, one of them moved by the symmetry first."""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import asdict
from pathlib import Path

import torch
from torch import nn

from coset.alignment.align import align as match, as_method
from coset.alignment.method import AlignMethod
from coset.core import state as states
from coset.core.errors import CosetError
from coset.core.files import write_json
from coset.core.functional import resolve
from coset.core.progress import Progress
from coset.core.resume import CHECKPOINT, RunSettings, tensor_digest
from coset.core.state import StateLike
from coset.data import Data, Split, as_split
from coset.paths.connect import Connect, CurveLearner, ends_of
from coset.paths.curve import Curve, load_curve, plain
from coset.paths.pam import PAM, CurveTraining, alternate
from coset.solutions.as_solution import with_order
from coset.solutions.dirac import Dirac
from coset.solutions.gaussian import Gaussian
from coset.solutions.likelihood import likelihood_of
from coset.solutions.load import load
from coset.solutions.solution import Solution
from coset.symmetries.infer import symmetry
from coset.symmetries.symmetry import Symmetry
from coset.training.loop import check_run
from coset.training.network import check_call

log = logging.getLogger(__name__)

COMPARED = 5000  # examples by which units are matched; tatro2020 finds the same match from 2500 on
CURVE, ALIGNED, OBJECTIVES = "curve.safetensors", "aligned.safetensors", "pam.json"
OWN_FILES = (CURVE, ALIGNED, OBJECTIVES, "permutation-*", f"*/{CHECKPOINT}")


def find_curve(
    a: StateLike,
    b: StateLike,
    model: nn.Module,
    data: Data,
    method: Connect | None = None,
    *,
    align: bool | str | AlignMethod = True,
    pam: bool | PAM = False,
    sym: Symmetry | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    out: str | Path | None = None,
    progress: Progress | None = None,
    checkpoint_seconds: float = 60.0,
) -> Curve:
    """A curve from `a` to an image of `b` along which the loss on `data` is low (tatro2020 Eq. 5).

    Args:
        a: A Dirac or a Gaussian, a state or a module.
        b: Another of the same kind.
        model: The network that both are of; its own parameters do not count.
        data: Training examples.
        method: How the curve is learned, and its shape.
        align: Moves `b` by the element of the symmetry that matches it with `a`: by activations when True, else by a
            method of `coset.align`; False leaves it where it is.
        pam: Then permutation and curve are learned in turn, by these settings or those of `PAM()` when True.
        sym: The symmetry of the model, inferred when None.
        seed: Of all random numbers.
        device: Where to train; where `a` lies when None.
        out: A folder for metrics and checkpoints. Called again with the same arguments, this goes on where it was
            stopped, with the same result.
        progress: Told of each epoch.
        checkpoint_seconds: A checkpoint is written after the first epoch that ends so long after the last one.

    Returns:
        The curve; its last point is the image of `b`.

    Raises:
        CosetError: If the ends are of two kinds, PAM meets Gaussians, or `out` holds another run.
        SymmetryError: If the symmetry cannot be inferred: give `sym`, or align=False.

    Example:
        >>> curve = coset.find_curve(a, b, model, digits.train, coset.Connect(epochs=5))
        >>> line = coset.geodesic(a, b)
        >>> low, high = (coset.barrier(path, model, digits.test, points=7).height for path in (curve, line))
        >>> low < high
        True
    """
    settings = Connect() if method is None else method
    alternating = PAM() if pam is True else pam or None
    matching: str | AlignMethod = "activations" if align is True else align or "auto"
    _check_options(settings, alternating, matching)
    check_run(1, checkpoint_seconds, seed)
    first, second = plain(with_order(a, "the first solution")), plain(with_order(b, "the second solution"))
    if type(first) is not type(second):
        kinds = f"a {type(first).__name__} and a {type(second).__name__}"
        raise CosetError(f"A curve is learned between two Diracs or two Gaussians, not between {kinds}.")
    if alternating is not None and not (isinstance(first, Dirac) and isinstance(second, Dirac)):
        raise CosetError("PAM permutes networks and not Gaussians: give Diracs, or pam=False.")
    where = resolve(device, first.mean)
    split = as_split(data).to(where)
    check_call(model, split, where)
    if settings.attack is not None:
        settings.attack.check(*split)
    for q in (first, second):
        likelihood_of(split.targets).check_noise(q.noise)
    more = {
        "ends": [_digest(q) for q in (first, second)],
        "align": repr(matching) if align else None,
        "pam": None if alternating is None else asdict(alternating),
    }
    with RunSettings(settings, seed, model, split, where, more).folder(out, OWN_FILES) as folder:

        def learn() -> Curve:
            folder.claim()
            training = CurveTraining(split, seed, where, folder, progress, checkpoint_seconds)
            group = _symmetry(model, split) if sym is None and (align or alternating is not None) else sym
            ends = first.to(where), second.to(where)
            return _learned(model, settings, ends, training, group, matching if align else None, alternating)

        curve = folder.stage(result=CURVE)
        result = curve.complete(lambda file: load_curve(file, where), learn, lambda learned, file: learned.save(file))
        if folder.path is not None:
            for part in folder.path.glob(f"*/{CHECKPOINT}"):
                part.unlink()
    return result


def _learned(
    model: nn.Module,
    connect: Connect,
    ends: tuple[Dirac | Gaussian, Dirac | Gaussian],
    training: CurveTraining,
    sym: Symmetry | None,
    matching: str | AlignMethod | None,
    pam: PAM | None,
) -> Curve:
    """The curve, after the second end was aligned if there is a way to do so."""
    first, second = ends
    if matching is not None and sym is not None:
        aligned = training.folder.stage(result=ALIGNED)
        # Kept, as a match on CUDA may come out otherwise the next time.
        second = aligned.complete(
            lambda file: plain(load(file, training.device)),
            lambda: _aligned(first, ends[1], sym, matching, model, training),
            lambda image, file: image.save(file),
        )
    if pam is not None and sym is not None and isinstance(first, Dirac) and isinstance(second, Dirac):
        alternation = alternate(connect, pam, first, second, model, sym, training)
        objectives = {"objectives": alternation.objectives}
        training.folder.stage(result=OBJECTIVES).finish(lambda file: write_json(file, objectives))
        return alternation.curve
    learner = CurveLearner(connect, ends_of(first, second, model, training.device))
    return learner.curve(training.learn(learner, "curve-1", 0))


def _check_options(settings: Connect, pam: PAM | None, matching: str | AlignMethod) -> None:
    if not isinstance(settings, Connect):
        raise CosetError(f"The method of a curve is a coset.Connect, not a {type(settings).__name__}.")
    if not (pam is None or isinstance(pam, PAM)):
        raise CosetError(f"pam is True, False or a coset.PAM, not {pam!r}.")
    as_method(matching)


def _digest(q: Solution) -> str:
    """What an end is known by: its numbers, names and noise, in whatever order they are."""
    description, tensors = q.pack()
    names = sorted(tensors)
    words = hashlib.sha256(json.dumps([description, names], sort_keys=True).encode()).hexdigest()[:16]
    return words + tensor_digest(tensors[name] for name in names)


def _symmetry(model: nn.Module, split: Split) -> Symmetry:
    """The group of the model, traced where it lies."""
    home = next(iter(states.of(model).values())).device
    return symmetry(model, (split.inputs[:2].to(home),))


def _aligned(
    a: Dirac | Gaussian,
    b: Dirac | Gaussian,
    sym: Symmetry,
    matching: str | AlignMethod,
    model: nn.Module,
    training: CurveTraining,
) -> Dirac | Gaussian:
    """`b` next to `a`."""
    split, device = training.split, training.device
    some = split.subset(min(COMPARED, len(split)), torch.Generator().manual_seed(training.seed))
    result = match(a, b, sym, matching, model, some, device=device)
    log.info(
        "aligned in %.2f s: objective %.6g, %.6g before", result.seconds, result.objective, result.identity_objective
    )
    return sym.act(result.element.to(device), b)
