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
from coset.core.device import resolve
from coset.core.errors import CosetError
from coset.core.files import write_json
from coset.core.progress import Progress
from coset.core.state import State
from coset.data import Data, Split, as_split
from coset.paths.connect import Connect, Connecting, ends_of
from coset.paths.curve import Curve, load_curve, plain
from coset.paths.pam import PAM, Work, alternate
from coset.solutions.as_solution import with_order
from coset.solutions.dirac import Dirac
from coset.solutions.gaussian import Gaussian
from coset.solutions.likelihood import likelihood_of
from coset.solutions.load import load
from coset.solutions.solution import Solution
from coset.symmetries.infer import symmetry
from coset.symmetries.symmetry import Symmetry
from coset.training.folder import CHECKPOINT, SETTINGS, digest, open_folder
from coset.training.loop import check_run
from coset.training.network import check_call

log = logging.getLogger(__name__)

COMPARED = 5000  # examples by which units are matched; tatro2020 finds the same match from 2500 on
CURVE, ALIGNED, OBJECTIVES = "curve.safetensors", "aligned.safetensors", "pam.json"


def find_curve(
    a: State | Solution,
    b: State | Solution,
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

    align: move `b` by the element of the model's symmetry that matches it with `a`: by activations when True, else by a
    method of `coset.align`; False leaves it where it is. pam: then let the permutation and the curve be learned in turn
    (`PAM`). method: how the curve is learned, and its shape. sym: of the model, inferred when None. Of Diracs and
    Gaussians; the last point of the result is
    the image of `b`.

    `out` is a folder for metrics and checkpoints, one after the first epoch that ends `checkpoint_seconds` after the
    last one: called again with the same arguments, this goes on where it was stopped, with the same result. Same
    arguments, same result.
    """
    settings = Connect() if method is None else method
    alternating = PAM() if pam is True else pam or None
    matching: str | AlignMethod = "activations" if align is True else align or "auto"
    _check_options(settings, alternating, matching)
    check_run(1, checkpoint_seconds, seed)
    first, second = plain(with_order(a)), plain(with_order(b))
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
    path = None
    if out is not None:
        given = {
            "ends": [_known(q) for q in (first, second)],
            "align": repr(matching) if align else None,
            "pam": None if alternating is None else asdict(alternating),
        }
        folder = open_folder(out, settings, seed, model, split, where, **given)
        path = folder.path
        if (path / CURVE).exists() and (path / SETTINGS).exists():
            _drop_checkpoints(path)
            return load_curve(path / CURVE, where)
        _refuse_strangers(path)
        folder.write_settings()
    first, second = first.to(where), second.to(where)
    if sym is None and (align or alternating is not None):
        sym = _symmetry(model, split)
    if align and sym is not None:
        second = _aligned(first, second, sym, matching, model, split, seed, path)
    work = Work(split, seed, where, path, progress, checkpoint_seconds)
    if alternating is not None and sym is not None and isinstance(first, Dirac) and isinstance(second, Dirac):
        found = alternate(settings, alternating, first, second, model, sym, work)
        if path is not None:
            write_json(path / OBJECTIVES, {"objectives": found.objectives})
        curve = found.curve
    else:
        ends = ends_of(first, second, model, where)
        run = work.learn(ends, lambda problem: Connecting(settings, problem, ends), settings.epochs, "curve-1", 0)
        curve = run.curve()
    if path is not None:
        curve.save(path / CURVE)
        _drop_checkpoints(path)
    return curve


def _check_options(settings: Connect, pam: PAM | None, matching: str | AlignMethod) -> None:
    if not isinstance(settings, Connect):
        raise CosetError(f"The method of a curve is a coset.Connect, not a {type(settings).__name__}.")
    if not (pam is None or isinstance(pam, PAM)):
        raise CosetError(f"pam is True, False or a coset.PAM, not {pam!r}.")
    as_method(matching)


def _known(q: Solution) -> str:
    """What an end is known by: its numbers, names and noise, in whatever order they are."""
    description, tensors = q.pack()
    names = sorted(tensors)
    words = hashlib.sha256(json.dumps([description, names], sort_keys=True).encode()).hexdigest()[:16]
    return words + digest(tensors[name] for name in names)


def _drop_checkpoints(path: Path) -> None:
    for checkpoint in path.glob(f"*/{CHECKPOINT}"):
        checkpoint.unlink()


def _refuse_strangers(path: Path) -> None:
    """Files that this would go on from belong to a run, which is known by its settings."""
    if not (path / SETTINGS).exists():
        for name in (CURVE, ALIGNED, *(file.name for file in path.glob("permutation-*"))):
            if (path / name).exists():
                raise CosetError(f"{path} holds a file {name} that is of no run: choose another folder.")


def _symmetry(model: nn.Module, split: Split) -> Symmetry:
    """The group of the model, traced where it lies."""
    home = next(iter(states.of(model).values())).device
    return symmetry(model, (split.inputs[:2].to(home),))


def _aligned(
    a: Dirac | Gaussian,
    b: Dirac | Gaussian,
    sym: Symmetry,
    method: str | AlignMethod,
    model: nn.Module,
    split: Split,
    seed: int,
    path: Path | None,
) -> Dirac | Gaussian:
    """`b` moved next to `a`; kept in the folder, as a match on CUDA may come out otherwise the next time."""
    file = None if path is None else path / ALIGNED
    if file is not None and file.exists():
        return plain(load(file, split.inputs.device))
    some = split.subset(min(COMPARED, len(split)), torch.Generator().manual_seed(seed))
    found = match(a, b, sym, method, model, some, device=split.inputs.device)
    log.info("aligned in %.2f s: objective %.6g, %.6g before", found.seconds, found.objective, found.identity_objective)
    moved = sym.act(found.element.to(split.inputs.device), b)
    if file is not None:
        moved.save(file)
    return moved
