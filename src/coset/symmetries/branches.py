"""Sizes at which a model goes another way: `if x.shape[1] > self.longest`, found by calling it with symbols for sizes.

Calls at a few sizes tell nothing of a branch that begins elsewhere. So the model is called once on fake tensors whose
sizes are symbols. What it asks of them is written down, and the nearest sizes are looked for that answer otherwise.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.utils._sympy.printers import PythonPrinter

from coset.core.functional import functional_call
from coset.symmetries.examples import Example
from coset.symmetries.mentions import branches, numbers_in_code
from coset.symmetries.trace import mode, quiet

logger = logging.getLogger(__name__)

LARGEST = 1024
MOST_QUESTIONS = 64
MOST_TURNS = 16


def other_branches(model: nn.Module, example: Example) -> dict[int, list[int]]:
    """Sizes of the example's axes -> those nearest to them at which the model asks something and hears another answer.

    Args:
        model: The model, which is not run.
        example: The call whose sizes become symbols.
    """
    if not branches(model):
        return {}
    env = ShapeEnv(specialize_zero_one=False, duck_shape=True)
    try:
        _call(model, example, env)
    except Exception as error:  # whatever a model raises that needs numbers; what it asked before counts
        logger.debug("sizes are not all symbols: %s", error)
    turns: dict[int, list[int]] = {}
    # The name of newer versions of torch, and that of older ones.
    hints = env.backed_var_to_val if hasattr(env, "backed_var_to_val") else env.var_to_val
    questions = list(dict.fromkeys(guard.expr for guard in env.guards))
    # What is asked of two sizes at once is mostly how they broadcast.
    for question in sorted(questions, key=lambda x: len(x.free_symbols))[:MOST_QUESTIONS]:
        sizes = {symbol: int(hints[symbol]) for symbol in question.free_symbols}
        for symbol, size in sizes.items():
            here = turns.setdefault(size, [])
            others = {x: number for x, number in sizes.items() if x is not symbol}
            here += [x for x in _turns(question.xreplace(others), symbol, size) if x not in here]
    counts = [x for x in numbers_in_code(model) if isinstance(x, int) and 1 < x < LARGEST]
    for size in {int(hints[x]) for x in env.replacements if x in hints}:
        # `len(x)` and loops over a size need a number, and then nothing more is asked of it.
        turns.setdefault(size, []).extend(other for x in counts for other in (x, x + 1) if other != size)
    return {size: list(dict.fromkeys(others))[:MOST_TURNS] for size, others in turns.items()}


def _turns(question: Any, symbol: Any, own: int) -> list[int]:
    """The nearest sizes below and above at which a question has another answer than at the own size."""
    answer = sympy.lambdify([symbol], question, modules="math", printer=PythonPrinter())
    turns = []
    for sizes in (range(own - 1, 0, -1), range(own + 1, LARGEST + 1)):
        with contextlib.suppress(ArithmeticError, ValueError, NameError):
            turns += list(itertools.islice((size for size in sizes if not answer(size)), 1))
    return turns


def _call(model: nn.Module, example: Example, env: ShapeEnv) -> None:
    fake = FakeTensorMode(shape_env=env, allow_non_fake_inputs=True)

    def symbolic(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        free: Any = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DUCK] * x.dim())
        return fake.from_tensor(x, symbolic_context=free)

    call = example.copy().replace(symbolic)
    tensors = [*model.named_parameters(), *model.named_buffers()]
    state = {name: fake.from_tensor(x.detach(), static_shapes=True) for name, x in tensors}
    with mode(model, example.training), quiet(), fake, contextlib.suppress(StopIteration), torch.no_grad():
        functional_call(model, state, call.args, dict(call.kwargs))
