"""The model that a command names: its module, weights and example inputs, and its symmetry."""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from coset import zoo
from coset.cli import console, files
from coset.cli.console import Display
from coset.core import json_reader, state as states
from coset.core.errors import CosetError, ModelError
from coset.core.json_reader import shown
from coset.symmetries.comparison import TOLERANCE, difference, numbers
from coset.symmetries.group import Element
from coset.symmetries.infer import symmetry
from coset.symmetries.serialization import symmetry_of_file
from coset.symmetries.symmetry import Symmetry

_SIZE = r"[0-9]{1,18}"
_LAYOUT = rf"(?P<shape>{_SIZE}(?:x{_SIZE})*)(?::(?:float|int<(?P<below>{_SIZE})))?"
_SHAPE = re.compile(rf"(?:(?P<name>[A-Za-z_]\w*)=)?{_LAYOUT}")


PERMUTATIONS = "permutations"  # in the place of a file: no matrices


@dataclass(frozen=True)
class ModelSpec:
    """A model as options describe it.

    name: of the zoo, or module:factory. arguments: of the factory, as JSON. inputs: texts such as 2x3x32x32.
    symmetry: a file with its symmetry, or `permutations`. meta: without weights.
    """

    name: str
    arguments: str | None = None
    inputs: Sequence[str] = ()
    symmetry: Path | None = None
    meta: bool = False
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.device == "meta":
            raise CosetError("--device meta holds no numbers: choose cpu or cuda.")
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError) as error:
            raise CosetError(f"--device {self.device} cannot be used: {str(error).splitlines()[0]}.") from error

    def build(self) -> nn.Module:
        """The module, with the same weights at each call; `module:factory` may be a file of the current folder."""
        arguments = _arguments(self.arguments)
        # Only for whoever asks for it, and last: a file here called `torch.py` must not stand in for a library's
        # module.
        if zoo.is_import_path(self.name) and (here := str(Path.cwd())) not in sys.path:
            sys.path.append(here)
        with _reproducible(self.meta):
            return zoo.build(self.name, arguments)

    def example_inputs(self, module: nn.Module) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword inputs: those that options describe, else the module's own."""
        with _reproducible(self.meta):
            if self.inputs:
                return _example_inputs(self.inputs)
            if not isinstance(module, zoo.registry.HasExample):
                raise ModelError(
                    f"{type(module).__name__} has no method example_inputs, so describe its inputs with --input, for "
                    "example --input 2x3x32x32."
                )
            return zoo.example_input(module), {}


def load_weights(module: nn.Module, path: Path, quiet: bool = False) -> None:
    """Put a checkpoint's weights into the module; tensors it does not know are left out, and named unless quiet."""
    source = files.open_checkpoint(path)
    own = states.of(module)
    if not quiet:
        console.warn_unknown(path, [name for name in source if name not in own], "left out")
    weights = {name: source[name] for name in source if name in own}
    checked = states.check(weights, own, where=str(path))
    # Not strict, since a model may keep extra state besides tensors.
    module.load_state_dict(checked, strict=False)


@contextmanager
def _reproducible(meta: bool) -> Iterator[None]:
    """Random numbers from a fixed seed, the caller's generator untouched; on the meta device if asked."""
    with torch.random.fork_rng(devices=[]), torch.device("meta" if meta else "cpu"):
        torch.manual_seed(0)
        yield


def _arguments(text: str | None) -> dict[str, object]:
    if text is None:
        return {}
    arguments = json_reader.parse(text, f"--args {shown(text)}", ModelError)
    if not isinstance(arguments, dict):
        raise ModelError(f"--args {shown(text)} must be a JSON object, such as '{{\"depth\": 3}}'.")
    return arguments


def input_shape(text: str) -> list[int]:
    """The shape of an example input that a text describes."""
    return [int(size) for size in _parse_input(text)["shape"].split("x")]


def _parse_input(text: str) -> re.Match[str]:
    match = _SHAPE.fullmatch(text)
    if match is None or (match["below"] is not None and int(match["below"]) < 1):
        raise ModelError(
            f"--input {shown(text)} cannot be read: write 2x3x32x32 for floats, 2x16:int<100 for integers below 100, "
            "or name=2x16 for a keyword."
        )
    return match


def _example_inputs(texts: Sequence[str]) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    args: list[Tensor] = []
    kwargs: dict[str, Tensor] = {}
    for text in texts:
        match, shape = _parse_input(text), input_shape(text)
        try:
            tensor = torch.randn(shape) if match["below"] is None else torch.randint(int(match["below"]), shape)
        except RuntimeError as error:  # no memory, or a number that fits no integer
            raise ModelError(f"--input {text!r} cannot be made: {str(error).splitlines()[0]}.") from error
        if match["name"] is None:
            args.append(tensor)
        elif match["name"] in kwargs:
            raise ModelError(f"--input {match['name']} is given twice.")
        else:
            kwargs[match["name"]] = tensor
    return tuple(args), kwargs


@dataclass(frozen=True)
class SymmetricModel:
    """A model with its symmetry and example inputs; `module` is None where there are no weights to run."""

    sym: Symmetry
    module: nn.Module | None = None
    inputs: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})


def symmetric_model(spec: ModelSpec, weights: Path, display: Display) -> SymmetricModel:
    """The symmetry is read from a file or inferred, and verified on the weights if there is a model with some."""
    permuting = spec.symmetry is not None and str(spec.symmetry) == PERMUTATIONS
    sym: Symmetry | None = None
    if spec.symmetry is not None and not permuting:
        sym = symmetry_of_file(json_reader.read_text(spec.symmetry, CosetError))
        if not spec.name:
            return SymmetricModel(sym)
    display.stage(f"building {spec.name}")
    module = spec.build()
    args, kwargs = spec.example_inputs(module)
    if not spec.meta:
        load_weights(module, weights, quiet=True)
    if sym is None:
        display.stage(f"inferring the symmetry of {spec.name}")
        sym = symmetry(module, args, kwargs)
        sym = sym.without_matrices() if permuting else sym
    elif not spec.meta:
        display.stage(f"verifying {spec.symmetry} on {spec.name}")
        sym.verify(module, args, kwargs)
    return SymmetricModel(sym, None if spec.meta else module, (args, kwargs))


def check_named(spec: ModelSpec) -> None:
    """Refuse options that say neither a model nor a symmetry."""
    if not spec.name and (spec.symmetry is None or str(spec.symmetry) == PERMUTATIONS):
        raise CosetError("Name the model with --model, or give its symmetry with --symmetry.")


def function_change(
    net: SymmetricModel, state: Mapping[str, Tensor], element: Element, original: Mapping[str, Tensor] | None = None
) -> tuple[float, str] | None:
    """The largest relative change of the output, and the precision; None where there is no model with weights to run.

    original: what the state was made of, where that is not what the output is compared with. The numbers that are
    written are compared, so that rounding of factors in 16 bits counts. A change that is more than rounding is refused.
    """
    if net.module is None:
        return None
    before = {name: state[name] for name in files.tensor_names(state, net.sym)}
    after = net.sym.act(element, before)
    exact = not element.scales and not element.matrices and original is None
    before = before if original is None else {name: original[name] for name in before}
    rounded = [] if exact else [x.dtype for x in before.values() if x.dtype in TOLERANCE]
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
