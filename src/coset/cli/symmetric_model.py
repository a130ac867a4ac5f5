"""The symmetry of a model that the command line names, and whether an element of it leaves the function as it was."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from coset.cli import checkpoints
from coset.cli.model_spec import ModelSpec, load_weights
from coset.cli.progress import Display
from coset.core import state as states
from coset.core.errors import CosetError, ModelError
from coset.symmetries.group import Element
from coset.symmetries.infer import symmetry
from coset.symmetries.symmetry import Symmetry
from coset.symmetries.verify import TOLERANCE, difference, numbers


@dataclass(frozen=True)
class SymmetricModel:
    """A model with its symmetry and example inputs; `module` is None where there are no weights to run."""

    sym: Symmetry
    module: nn.Module | None = None
    inputs: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})


def symmetric_model(spec: ModelSpec, weights: Path, display: Display) -> SymmetricModel:
    """The symmetry is read from a file or inferred, and verified on the weights if there is a model with some."""
    sym = Symmetry.from_json(_text(spec.symmetry)) if spec.symmetry is not None else None
    if sym is not None and not spec.name:
        return SymmetricModel(sym)
    display.stage(f"building {spec.name}")
    module = spec.build()
    args, kwargs = spec.example_inputs(module)
    if not spec.meta:
        load_weights(module, weights, quiet=True)
    if sym is None:
        display.stage(f"inferring the symmetry of {spec.name}")
        sym = symmetry(module, args, kwargs)
    elif not spec.meta:
        display.stage(f"verifying {spec.symmetry} on {spec.name}")
        sym.verify(module, args, kwargs)
    return SymmetricModel(sym, None if spec.meta else module, (args, kwargs))


def check_named(spec: ModelSpec) -> None:
    """Refuse options that say neither a model nor a symmetry."""
    if not spec.name and spec.symmetry is None:
        raise CosetError("Name the model with --model, or give its symmetry with --symmetry.")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CosetError(f"--symmetry {path} cannot be read: {error}.") from error


def function_change(net: SymmetricModel, state: Mapping[str, Tensor], element: Element) -> tuple[float, str] | None:
    """The largest relative change of the output, and the precision; None where there is no model with weights to run.

    The numbers that are written are compared, so that rounding of factors in 16 bits counts. A change that is more
    than rounding is refused.
    """
    if net.module is None:
        return None
    before = {name: state[name] for name in checkpoints.tensor_names(state, net.sym)}
    after = net.sym.act(element, before)
    rounded = [x.dtype for x in before.values() if x.dtype in TOLERANCE] if element.scales else []
    own = next((x.dtype for x in net.module.parameters() if x.is_floating_point()), torch.float32)
    for dtype in (torch.float64, own):
        try:
            outputs = [_outputs(net, one, dtype) for one in (before, after)]
        except ModelError:
            if dtype == own:
                raise
            continue  # some models convert to float32 on the way
        change = difference(outputs[1], outputs[0])
        limit = max(TOLERANCE.get(one, TOLERANCE[torch.float32]) for one in (dtype, *rounded))
        if not change <= limit:
            raise CosetError(f"The aligned network computes another function: its output changes by {change:.1e}.")
        return change, str(dtype).removeprefix("torch.")
    raise AssertionError


def _outputs(net: SymmetricModel, state: Mapping[str, Tensor], dtype: torch.dtype) -> list[Tensor]:
    assert net.module is not None
    module = copy.deepcopy(net.module).to(dtype).eval()
    args, kwargs = pytree.tree_map(
        lambda x: x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x, net.inputs
    )
    full = states.check(states.to(state, dtype=dtype), states.of(module), "the second checkpoint", unknown="ignore")
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # models that draw random numbers draw the same ones
        return numbers(states.call(module, full, args, kwargs))
