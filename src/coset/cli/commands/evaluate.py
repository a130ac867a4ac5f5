"""`coset evaluate`: how good a solution is on the test split of a data set, and its evidence lower bound."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coset.cli import console
from coset.cli.console import open_display
from coset.cli.options import (
    ArgsOption,
    DeviceOption,
    JsonOption,
    ModelOption,
    SeedOption,
    SolutionArgument,
    SplitOption,
)
from coset.core.errors import CosetError

if TYPE_CHECKING:
    from coset.cli.experiment import Experiment


def evaluate(
    solution: SolutionArgument,
    model: ModelOption,
    data: Annotated[str, typer.Option(help="A data set, such as mnist: its test split.")],
    samples: Annotated[int, typer.Option(help="Networks drawn from a random solution.", min=1)] = 128,
    elbo: Annotated[
        bool, typer.Option("--elbo", help="Also the evidence lower bound of the training split, of a Gaussian.")
    ] = False,
    prior_variance: Annotated[
        float | None, typer.Option(help="Of the prior, for --elbo; 1 if not given, as in vi.")
    ] = None,
    split: SplitOption = None,
    args: ArgsOption = None,
    device: DeviceOption = "cpu",
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Measure how good a solution is: its loss, accuracy and calibration, or the error of a regression.

    Example: coset evaluate run/replica-0/solution.safetensors --model mlp:64-64-10 --data digits --elbo
    """
    from dataclasses import asdict

    import torch

    from coset.cli.experiment import Experiment
    from coset.cli.model import ModelSpec
    from coset.cli.solution_file import load_gaussian
    from coset.core import state as states
    from coset.inference.elbo import elbo as evidence_bound
    from coset.solutions.evaluate import evaluate as measure
    from coset.solutions.load import load

    if prior_variance is not None and not elbo:
        raise CosetError("--prior-variance is that of the evidence lower bound: ask for it with --elbo.")
    variance = 1.0 if prior_variance is None else prior_variance
    spec = ModelSpec(model, args, device=device)
    with open_display(quiet=json) as display:
        q = load_gaussian(solution, "an ELBO", device) if elbo else load(solution, device)
        if not 0 < variance < math.inf:
            raise CosetError(f"--prior-variance must be positive and finite, not {variance}.")
        display.stage(f"building {model} and reading {data}")
        experiment = Experiment.of(spec, data, split)
        states.check(q.mean, states.of(experiment.module), str(solution))
        display.stage(f"evaluating {solution}")
        generator = torch.Generator().manual_seed(seed)
        scores = measure(q, experiment.module, experiment.split, samples, generator=generator)
        report: dict[str, Any] = {
            "solution": str(solution),
            "kind": type(q).__name__,
            "data": data,
            "split": split,
            "evaluated_on": experiment.split_name,
            **asdict(scores),
            "target_std": experiment.target_std,
        }
        if elbo:
            display.stage("estimating the evidence lower bound")
            draws = torch.Generator(device).manual_seed(seed)
            train = experiment.dataset.train
            bound = evidence_bound(q, experiment.module, train, variance, samples, generator=draws)
            report["elbo"] = {
                "value": bound.value,
                "error": bound.error,
                "log_likelihood": bound.log_likelihood,
                "divergence": bound.divergence,
                "examples": bound.examples,
                "prior_variance": variance,
            }
    console.print_json(report) if json else _show(str(q), experiment, report)


def _show(solution: str, experiment: Experiment, report: dict[str, Any]) -> None:
    out = console.stdout()
    rows = [("nll", f"{report['nll']:.4f}", _error(report["nll_error"]))]
    if report["accuracy"] is not None:
        rows += [("accuracy", f"{report['accuracy']:.2%}", "")]
        rows += [(name, f"{report[name]:.4f}", "") for name in ("ece", "brier")]
    else:
        rows += [("rmse", f"{report['rmse']:.4f}", "")]
    if report["spread"] is not None:
        rows += [("spread of the nll", f"{report['spread']:.4f}", "")]
    out.print(f"{solution} on the {experiment.split_name} split of {experiment.dataset.name}")
    out.print()
    out.print(console.table("Scores", ("", "value", "± error"), rows, numbers=("value",)))
    for note in experiment.notes:
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
