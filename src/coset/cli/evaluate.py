"""`coset evaluate`: how good a solution is on the test split of a data set, and its evidence lower bound."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import typer
from torch import nn

from coset import data
from coset.cli import console, model
from coset.cli.align import Net
from coset.core import state as states
from coset.core.errors import CosetError, ModelError
from coset.core.functional import evaluating
from coset.inference.elbo import elbo
from coset.solutions.evaluate import evaluate
from coset.solutions.gaussian import Gaussian
from coset.solutions.load import load
from coset.solutions.solution import Solution


@dataclass(frozen=True)
class Request:
    """The options of the command; `prior_variance` is that of the evidence lower bound, None without one."""

    solution: Path
    net: Net
    data: str
    split: int | None = None
    samples: int = 128
    prior_variance: float | None = None
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Task:
    """A model, and data that it takes; `scored` is the name of the split that solutions are measured on."""

    module: nn.Module
    sets: data.DataSet
    scored: str

    @property
    def split(self) -> data.Split:
        return self.sets.test if self.scored == "test" else self.sets.train

    @property
    def target_std(self) -> float | None:
        """Of the targets of a regression, in the units of the data; None for classes."""
        scale = self.sets.target_scale
        return None if scale is None else float(scale.std)

    @property
    def notes(self) -> list[str]:
        """What a reader of the scores should know."""
        notes = []
        if self.scored == "train":
            notes.append(f"{self.sets.name} has no test targets, so these are scores on the training split")
        if self.target_std is not None:
            notes.append(f"targets are standardized: times {self.target_std:.4g} the rmse is in the units of the data")
        return notes


def run(request: Request, as_json: bool) -> None:
    """Measure and print."""
    with console.steps(quiet=as_json) as say:
        q = load(request.solution, request.net.device)
        if request.prior_variance is not None:
            require_gaussian(q, request.solution, "an ELBO")
            if not 0 < request.prior_variance < math.inf:
                raise CosetError(f"--prior-variance must be positive and finite, not {request.prior_variance}.")
        say(f"building {request.net.model} and reading {request.data}")
        task = prepare(request.net, request.data, request.split)
        states.check(q.mean, states.of(task.module), str(request.solution))
        say(f"evaluating {request.solution}")
        generator = torch.Generator().manual_seed(request.seed)
        found = evaluate(q, task.module, task.split, request.samples, generator=generator)
        report: dict[str, Any] = {
            "solution": str(request.solution),
            "kind": type(q).__name__,
            "data": request.data,
            "split": request.split,
            "evaluated_on": task.scored,
            **asdict(found),
            "target_std": task.target_std,
        }
        if request.prior_variance is not None:
            say("estimating the evidence lower bound")
            draws = torch.Generator(request.net.device).manual_seed(request.seed)
            bound = elbo(q, task.module, task.sets.train, request.prior_variance, request.samples, generator=draws)
            report["elbo"] = {
                "value": bound.value,
                "error": bound.error,
                "log_likelihood": bound.log_likelihood,
                "divergence": bound.divergence,
                "examples": bound.examples,
                "prior_variance": request.prior_variance,
            }
    if as_json:
        typer.echo(json.dumps(report, indent=1, allow_nan=False))
    else:
        _show(q, task, report)


def prepare(net: Net, name: str, split: int | None) -> Task:
    """The model, and the data set `name` with its images as vectors where the model takes nothing else."""
    module = model.build(net.model, net.arguments)
    sets = data.load(name, split, net.device)
    try:
        _try(module, sets, net)
    except ModelError:
        if sets.train.inputs.ndim == 2:
            raise
        flat = data.load(name, split, net.device, flatten=True)
        try:
            _try(module, flat, net)
        except ModelError:
            flat = sets  # whoever runs the model next says what is wrong
        sets = flat
    # Snelson's test inputs are a grid without targets.
    known = not sets.test.targets.is_floating_point() or bool(sets.test.targets.isfinite().all())
    return Task(module, sets, "test" if known else "train")


def _try(module: nn.Module, sets: data.DataSet, net: Net) -> None:
    with evaluating(module, torch.device(net.device)) as ready, torch.no_grad():
        states.call(ready, states.of(ready), (sets.train.inputs[:2],))


def require_gaussian(q: Solution, path: Path, what: str) -> None:
    """Refuse a solution that has no density with independent coordinates."""
    if not isinstance(q, Gaussian):
        raise CosetError(
            f"{path} holds a {type(q).__name__}, and {what} is known for Gaussians with independent coordinates, such "
            "as `coset fit --method vi` finds."
        )


def _show(q: Solution, task: Task, report: dict[str, Any]) -> None:
    out = console.stdout()
    rows = [("nll", f"{report['nll']:.4f}", _error(report["nll_error"]))]
    if report["accuracy"] is not None:
        rows += [("accuracy", f"{report['accuracy']:.2%}", "")]
        rows += [(name, f"{report[name]:.4f}", "") for name in ("ece", "brier")]
    else:
        rows += [("rmse", f"{report['rmse']:.4f}", "")]
    if report["spread"] is not None:
        rows += [("spread of the nll", f"{report['spread']:.4f}", "")]
    out.print(f"{q} on the {task.scored} split of {task.sets.name}")
    out.print()
    out.print(console.table("Scores", ("", "value", "± error"), rows, numbers=("value",)))
    for note in task.notes:
        out.print(note)
    if (bound := report.get("elbo")) is not None:
        rows = [
            ("log likelihood", f"{bound['log_likelihood']:,.2f}", _error(bound["error"])),
            ("divergence", f"{bound['divergence']:,.2f}", ""),
            ("ELBO", f"{bound['value']:,.2f}", _error(bound["error"])),
            ("ELBO per example", f"{bound['value'] / bound['examples']:.4f}", ""),
        ]
        out.print()
        out.print(console.table("Evidence", ("nats", "value", "± error"), rows, numbers=("value",)))
        out.print(f"of {bound['examples']:,} training examples, under the prior N(0, {bound['prior_variance']:g})")


def _error(value: float | None) -> str:
    return "" if not value else f"{value:.1g}"
