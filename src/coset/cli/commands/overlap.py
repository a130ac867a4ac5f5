"""`coset overlap`: whether the equivalent modes of a posterior overlap, so that its symmetry matters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from coset.cli import console
from coset.cli.console import open_display
from coset.cli.options import (
    ArgsOption,
    DeviceOption,
    InputOption,
    JsonOption,
    ModelOption,
    SeedOption,
    SolutionArgument,
)

if TYPE_CHECKING:
    from coset.solutions.overlap import Overlap


def overlap(
    solution: SolutionArgument,
    model: ModelOption,
    entropy: Annotated[str, typer.Option(help="importance, infonce, bethe or exact.")] = "importance",
    samples: Annotated[int, typer.Option(help="Networks drawn from the posterior.", min=2)] = 64,
    elements: Annotated[
        int, typer.Option(help="Permutations of each, of importance and infonce; more narrow the bounds.", min=2)
    ] = 20,
    args: ArgsOption = None,
    input: InputOption = None,
    device: DeviceOption = "cpu",
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Tell whether the equivalent modes of a Gaussian posterior overlap, so that symmetrization can change it.

    Example: coset overlap run/replica-0/solution.safetensors --model mlp:64-64-10
    """
    from typing import get_args

    import torch

    from coset.cli.model import ModelSpec
    from coset.cli.settings import choice
    from coset.cli.solution_file import load_gaussian
    from coset.core import state as states
    from coset.solutions.overlap import overlap as measure
    from coset.solutions.overlap_estimators import Entropy
    from coset.symmetries.infer import symmetry

    spec = ModelSpec(model, args, input or (), device=device)
    estimator = choice("--entropy", entropy, get_args(Entropy))
    with open_display(quiet=json) as display:
        q = load_gaussian(solution, "the overlap")
        display.stage(f"inferring the symmetry of {model}")
        module = spec.build()
        module.load_state_dict(states.check(q.mean, states.of(module), str(solution)), strict=False)
        sym = symmetry(module, *spec.example_inputs(module))
        display.stage(f"measuring the overlap, {samples} samples")
        generator = torch.Generator(device).manual_seed(seed)
        result = measure(q.to(device), sym, estimator, samples, elements, generator=generator)
    if json:
        console.print_json({"solution": str(solution), "entropy": entropy, **_record(result)})
    else:
        _show(result)


def _record(overlap: Overlap) -> dict[str, object]:
    return {
        "index": overlap.index,
        "information": overlap.information,
        "error": overlap.error,
        "lower": overlap.lower,
        "upper": overlap.upper,
        "log_order": overlap.log_order,
        "sets": {
            name: {"information": information, "log_order": order}
            for name, (information, order) in overlap.of_sets.items()
        },
        "sentence": overlap.sentence,
    }


def _show(overlap: Overlap) -> None:
    out = console.stdout()
    columns = ("units moved", "information", "± error", "lower", "upper", "log|G|", "index")
    numbers = (f"{overlap.information:.2f}", f"{overlap.error:.1g}", f"{overlap.lower:.2f}", f"{overlap.upper:.2f}")
    rows = [("all", *numbers, f"{overlap.log_order:.2f}", f"{overlap.index:z.3f}")]
    rows += [
        (f"{name} alone", f"{information:.2f}", "", "", "", f"{order:.2f}", f"{1 - information / order:z.3f}")
        for name, (information, order) in overlap.of_sets.items()
    ]
    out.print(console.table("Overlap of equivalent modes, in nats", columns, rows, numbers=columns[1:]))
    out.print(overlap.sentence)
