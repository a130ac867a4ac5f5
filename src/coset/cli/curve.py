"""`coset curve`: a low-loss curve between two solutions, in a folder that a stopped search goes on from."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import typer

from coset.alignment.methods import METHODS
from coset.alignment.precision import as_in
from coset.alignment.repair import running_norms
from coset.cli import console, methods, outputs, runs
from coset.cli.align import Net
from coset.cli.evaluate import Task, prepare
from coset.core import state as states
from coset.core.errors import CosetError, StateError
from coset.core.files import atomic_write
from coset.core.names import plural
from coset.core.progress import Epoch
from coset.paths.barrier import Barrier, barrier
from coset.paths.connect import Connect
from coset.paths.curve import Curve
from coset.paths.find_curve import CURVE, OBJECTIVES, find_curve
from coset.paths.geodesic import geodesic
from coset.paths.pam import PAM
from coset.plot.barrier import barriers
from coset.plot.page import page
from coset.solutions.attack import PGD
from coset.solutions.dirac import Dirac
from coset.solutions.evaluate import evaluate
from coset.solutions.load import load
from coset.solutions.solution import Solution
from coset.training.folder import SETTINGS

LINE, LEARNED = "straight line", "curve"
ATTACKED = ", attacked"
REPAIRED = "at every point the statistics of norms were recomputed on the training split"


@dataclass(frozen=True)
class Request:
    """The options of the command; `align` is None if the second solution stays where it is."""

    first: Path
    second: Path
    net: Net
    data: str
    out: Path
    align: str | None = "activations"
    pam: bool = False
    robust: bool = False
    settings: tuple[str, ...] = ()
    split: int | None = None
    points: int = 25
    html: Path | None = None
    checkpoint_every: int = 1
    seed: int = 0

    @property
    def ends(self) -> tuple[Path, Path]:
        return self.first, self.second


@dataclass(frozen=True)
class Settable(Connect):
    """What --set can set: the settings of `Connect`, those of PAM as pam.NAME and those of an attack as attack.NAME."""

    attack: PGD = field(default_factory=PGD)
    pam: PAM = field(default_factory=PAM)


# The noise is that of the ends, and the units of an attack are those of the data.
FIXED = ("noise", "attack.mean", "attack.std")


@dataclass(frozen=True)
class Search:
    """What to learn, in the library's terms."""

    connect: Connect
    pam: PAM | None
    attack: dict[str, Any] | None

    @property
    def epochs(self) -> int:
        """Of all parts of the search together."""
        if self.pam is None:
            return self.connect.epochs
        return self.pam.iterations * (self.pam.epochs + self.connect.epochs)

    def place(self, stream: int) -> tuple[str, int]:
        """A name for the part of the search with this stream of random numbers, and the epochs that come before it.

        There is one part with stream 0; or with PAM the permutation and the curve of each iteration, from 1 on.
        """
        if self.pam is None:
            return "curve", 0
        iteration, second = divmod(stream - 1, 2)
        before = iteration * (self.pam.epochs + self.connect.epochs) + second * self.pam.epochs
        return f"{('permutation', 'curve')[second]} {iteration + 1}", before


class Watch:
    """Follows the epochs of all parts; `show` is called with a text and the number of epochs done in all."""

    def __init__(self, search: Search, show: Callable[[str, int], None], announce: Callable[[str], None]) -> None:
        self.first: int | None = None  # the first epoch of this call
        self._search, self._show, self._announce = search, show, announce

    def __call__(self, epoch: Epoch) -> None:
        name, before = self._search.place(epoch.replica)
        done = before + epoch.epoch
        if self.first is None:
            self.first = done
            if done > 1:
                self._announce(f"epoch {done} of {self._search.epochs}, resumed")
        self._show(f"{name}: epoch {epoch.epoch} of {epoch.epochs}, loss {epoch.loss:.4f}", done)


def run(request: Request, as_json: bool) -> None:
    """Learn, measure and print; a search that is refused leaves no folder."""
    start = time.perf_counter()
    outputs.check("--html", request.html, [".html"], request.ends)
    if request.align is not None and request.align not in METHODS:
        raise CosetError(f"--align must be one of {', '.join(METHODS)}, not {request.align!r}.")
    _check_folder(request.out)
    search = read(request.settings, request.pam, request.robust)
    given = [_end(path, request) for path in request.ends]
    with console.steps(quiet=as_json) as say:
        say(f"building {request.net.model} and reading {request.data}")
        task = prepare(request.net, request.data, request.split)
    a, b = (fitting(q, task, path) for q, path in zip(given, request.ends, strict=True))
    attack = None if search.attack is None else PGD.of(task.sets, **search.attack)
    settings = replace(search.connect, attack=attack)
    try:
        doing = "learning" if request.align is None else "aligning and learning"
        with runs.undone(request.out), outputs.writing("--out", request.out), _watch(search, doing, as_json) as watch:
            curve = find_curve(
                a,
                b,
                task.module,
                task.sets.train,
                request.align or False,
                search.pam or False,
                settings,
                seed=request.seed,
                device=request.net.device,
                out=request.out,
                progress=watch,
                checkpoint_every=request.checkpoint_every,
            )
    except KeyboardInterrupt:
        console.complain("stopped", "the same command goes on from the last checkpoint.")
        raise
    with console.steps(quiet=as_json) as say:
        say(f"evaluating the ends on the {task.scored} split")
        scores = [evaluate(q, task.module, task.split, generator=torch.Generator().manual_seed(0)) for q in (a, b)]
        results = measured(curve, task, request.points, say)
        if attack is not None:
            results |= measured(curve, task, request.points, say, attack)
    if request.html is not None:
        text = page(f"Curve between {request.first} and {request.second}", rows(results), [barriers(results)])
        with outputs.writing("--html", request.html), atomic_write(request.html) as temporary:
            temporary.write_text(text, encoding="utf-8")
    report = {
        "model": request.net.model,
        "data": request.data,
        "split": request.split,
        "seed": request.seed,
        "device": request.net.device,
        "settings": asdict(settings),
        "align": request.align,
        "pam": None if search.pam is None else asdict(search.pam) | _objectives(request.out),
        "epochs": search.epochs,
        "first_epoch": watch.first,
        "evaluated_on": task.scored,
        "target_std": task.target_std,
        "repaired": bool(running_norms(task.module)),
        "ends": [{"solution": str(path), **asdict(score)} for path, score in zip(request.ends, scores, strict=True)],
        "line": summary(results[LINE]),
        "curve": summary(results[LEARNED]),
        "robust": None
        if attack is None
        else {"line": summary(results[LINE + ATTACKED]), "curve": summary(results[LEARNED + ATTACKED])},
        "output": str(request.out / CURVE),
        "seconds": time.perf_counter() - start,
    }
    if as_json:
        typer.echo(json.dumps(report, indent=1, allow_nan=False))
    else:
        _show(report, results, task, request)


def read(given: tuple[str, ...], pam: bool, robust: bool) -> Search:
    """The settings that NAME=VALUE give, refused if they are of a part that was not asked for."""
    parts: dict[str, dict[str, Any]] = {"": {}, "pam": {}, "attack": {}}
    for key, value in methods.read(Settable, "a curve", given, FIXED).items():
        part, _, name = key.rpartition(".")
        parts[part][name] = value
    for part, wanted, option in (("pam", pam, "--pam"), ("attack", robust, "--robust")):
        if parts[part] and not wanted:
            raise CosetError(f"--set {part}.{next(iter(parts[part]))} is of no use without {option}.")
    PGD(**parts["attack"])  # before the data, which its units come from, is read
    return Search(Connect(**parts[""]), PAM(**parts["pam"]) if pam else None, parts["attack"] if robust else None)


def fitting(q: Solution, task: Task, path: Path) -> Solution:
    """The solution, refused unless it is one of the model; a Dirac in its precision."""
    checked = states.check(q.mean, states.of(task.module), str(path))
    return as_in(task.module, Dirac(checked, q.noise)) if isinstance(q, Dirac) else q


def measured(
    curve: Curve, task: Task, points: int, say: console.Steps, attack: PGD | None = None
) -> dict[str, Barrier]:
    """The loss on the straight line between the ends of the curve, and on the curve, with norms recomputed."""
    repair = task.sets.train if running_norms(task.module) else None
    suffix = "" if attack is None else ATTACKED
    found = {}
    for name, path in ((LINE, geodesic(curve.points[0], curve.points[-1])), (LEARNED, curve)):
        say(f"{name}{suffix}: {points} points")

        def tick(done: int, total: int, name: str = name) -> None:
            say.tick(f"{name}{suffix}: point {done} of {total}")

        found[name + suffix] = barrier(
            path, task.module, task.split, points, repair=repair, progress=tick, attack=attack
        )
    return found


def summary(found: Barrier) -> dict[str, Any]:
    """All numbers as JSON has them, and the highest loss and the mean and least accuracy of the points."""
    highest = max(found.loss)
    return {
        "highest_loss": highest if math.isfinite(highest) else None,
        "mean_accuracy": None if found.accuracy is None else sum(found.accuracy) / len(found.accuracy),
        "least_accuracy": None if found.accuracy is None else min(found.accuracy),
        **json.loads(found.to_json()),
    }


def rows(results: dict[str, Barrier]) -> list[dict[str, str]]:
    """A line for each path."""
    made = []
    for name, result in results.items():
        row = {"path": name, "highest loss": f"{max(result.loss):.4f}", "barrier (nats)": f"{result.height:.4f}"}
        if result.accuracy is not None:
            row["mean accuracy"] = f"{sum(result.accuracy) / len(result.accuracy):.2%}"
            row["least accuracy"] = f"{min(result.accuracy):.2%}"
        made.append(row)
    return made


def _check_folder(out: Path) -> None:
    """Refuse a folder of other things: find_curve would go on from files with the names of its own."""
    if out.is_dir() and not (out / SETTINGS).exists() and any(not path.name.startswith(".") for path in out.iterdir()):
        raise CosetError(f"--out {out} holds other files: choose a new folder.")


def _end(path: Path, request: Request) -> Solution:
    try:
        q = load(path, request.net.device)
    except StateError as error:  # of two files, the one that it is about must be named
        raise error if str(path) in str(error) else StateError(f"{path}: {error}") from error
    for option, wanted in (("--pam", request.pam), ("--robust", request.robust)):
        if wanted and not isinstance(q, Dirac):
            raise CosetError(f"{option} is for single networks, and {path} holds a {type(q).__name__}: leave it out.")
    return q


def _objectives(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / OBJECTIVES).read_text(encoding="utf-8"))
    return found


@contextmanager
def _watch(search: Search, doing: str, quiet: bool) -> Iterator[Watch]:
    with runs.epochs(search.epochs, 0, doing, quiet) as (show, announce):
        yield Watch(search, show, announce)


def _show(report: dict[str, Any], results: dict[str, Barrier], task: Task, request: Request) -> None:
    out = console.stdout()
    table = rows(results)
    columns = tuple(table[0])
    title = f"Curve of {report['model']} on {report['data']}, {plural(report['epochs'], 'epoch')}"
    out.print(console.table(title, columns, [tuple(row.values()) for row in table], numbers=columns[1:]))
    ends = [f"{end['nll']:.4f}" for end in report["ends"]]
    if task.sets.classes:
        ends = [f"{text} ({end['accuracy']:.2%})" for text, end in zip(ends, report["ends"], strict=True)]
    out.print(f"ends: {report['evaluated_on']} loss {' and '.join(ends)}")
    if request.align is not None:
        out.print(f"the second end was aligned to the first by {request.align}")
    if report["pam"] is not None:
        out.print(f"objective of PAM: {', '.join(f'{value:.4f}' for value in report['pam']['objectives'])}")
    if report["repaired"]:
        out.print(REPAIRED)
    for note in task.notes:
        out.print(note)
    if report["first_epoch"] is None:
        out.print("the curve was learned before, so nothing was trained")
    out.print(f"wrote {report['output']}{'' if request.html is None else f' and {request.html}'}")
    out.print(f"{report['seconds']:.1f} s")
