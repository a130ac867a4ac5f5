"""Whether a symmetric network computes the same function as before, on the numbers that are written to its file."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from coset.cli import checkpoints
from coset.cli.symmetric_model import SymmetricModel
from coset.core import state as states
from coset.core.errors import CosetError, ModelError
from coset.symmetries.group import Element
from coset.symmetries.verify import TOLERANCE, difference, numbers


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
