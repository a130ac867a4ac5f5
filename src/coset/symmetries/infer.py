"""From a model to its `Symmetry`: trace it, infer what is free, and look for calls that show it to be too much."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import torch
from torch import nn

from coset.core import state as states
from coset.core.errors import SymmetryError
from coset.core.functional import named_tensors, pairs_in_one_memory
from coset.symmetries.comparison import generic
from coset.symmetries.equivariance import inequivariant_ops
from coset.symmetries.examples import Args, Example, Variant, as_example, detours, other_numbers, spelled_out
from coset.symmetries.interpreter import build, infer
from coset.symmetries.mentions import unmentioned
from coset.symmetries.reach import freeze_what_they_may_read, unreached
from coset.symmetries.shared_memory import tie
from coset.symmetries.symmetry import Symmetry
from coset.symmetries.tape import NONLINEAR
from coset.symmetries.terms import Cause, freeze
from coset.symmetries.trace import Trace, another_size, single, touched, trace
from coset.symmetries.verify import CounterexampleError, EvaluationOnlyError, MatricesError, check, confirmed

logger = logging.getLogger(__name__)

MOST_TRACES = 12
MOST_FROZEN = 12
MOST_NAMED = 5

Unreached = Literal["freeze", "refuse", "ignore"]


def symmetry(
    model: nn.Module,
    args: Args,
    kwargs: Mapping[str, Any] | None = None,
    *,
    examples: Sequence[Example | Args | Mapping[str, Any]] = (),
    unreached: Unreached = "freeze",
    strict: bool = False,
    verify: bool = True,
) -> Symmetry:
    """Infer the symmetry group of a model in evaluation mode, and verify it by running the model.

    The model is traced with `torch.export`, every axis of every tensor gets a term, and the rule of each op unifies
    terms. Units that stay free are the group. It is then checked for the example and for calls with other sizes and
    values, on the model's weights and random ones; where the model computes something else there, such as another
    branch, it is traced there too. A model on the meta device has no weights to run: it is traced at a second size.

    Args:
        model: Any module that `torch.export` can trace. It is left as it was.
        args: What the model is called with, such as a batch of inputs: a tuple, or a tensor if there is one argument.
        kwargs: Its named arguments.
        examples: Further calls that the group must hold for: arguments as above, a mapping of named ones, or an
            `Example`, which may be in training mode.
        unreached: What to do about parameters that no example reaches, such as other heads: `freeze` the units that
            they may read, `refuse` the model, or `ignore` them.
        strict: Raise where an op has no rule, or where the group holds under a condition. Otherwise what such an op
            touches is fixed, and listed in `Symmetry.fixed`, and conditions stand in `Symmetry.notes`.
        verify: Whether to run the model under random elements of the group.

    Returns:
        The groups of interchangeable units with the scalings of units that leave the function unchanged.

    Raises:
        SymmetryError: If the model cannot be traced, if an op has no rule and `strict` is set, or if a rule is wrong
            and the function changes; it names the ops.

    Example:
        >>> sym = coset.symmetry(model, digits.test.inputs[:8])
        >>> [(group.name, group.size) for group in sym.groups]
        [('layers.0', 16)]
    """
    if unreached not in get_args(Unreached):
        raise SymmetryError(f"unreached={unreached!r} is none of {', '.join(map(repr, get_args(Unreached)))}")
    first, *more = (as_example(call) for call in [Example(args, kwargs or {}), *examples])
    model = single(model, first)
    first, *more = (spelled_out(example, model.forward) for example in (first, *more))
    search = _Inference(model, first, more, unreached, strict)
    real = verify and not any(tensor.is_meta for tensor in model.state_dict().values())
    return search.verified() if real else search.at_two_sizes()


class _Inference:
    """The group that holds for all calls that were met: those given, and those that showed it to be too large."""

    def __init__(
        self, model: nn.Module, first: Example, more: Sequence[Example], unreached: Unreached, strict: bool
    ) -> None:
        self.model = model
        self.unreached = unreached
        self.strict = strict
        self.seconds = dict.fromkeys(("export", "inference", "verification"), 0.0)
        self.notes: list[str] = []
        self.others = [Variant(example, "value", f"example {k} of `examples`") for k, example in enumerate(more, 1)]
        self.traces: list[Trace] = []
        self.aside: set[str] = set()
        self.resized = False
        self.evaluation_only: set[str] = set()
        self.immovable: set[str] = set()  # names of groups whose matrices change the function
        for example in (first, *more):
            self._trace(example)
        if any(buffer is not None for trace in self.traces for buffer in trace.mutated):
            self.others.append(Variant(first, "again", "a second call of the same module"))
        self._infer()
        if self.inference.meets_zeros:
            # A loop over one step tells nothing of its recurrent weights; one over two does.
            self._trace_another_size()
        for variant in other_numbers(model, first) if self.inference.meets_zeros else ():
            if variant.kind == "number" and touched(model, variant.example) is not None:
                self._trace_also(variant)
            if not self.inference.meets_zeros or len(self.traces) >= MOST_TRACES:
                break
        self._reach()

    def _trace(self, example: Example) -> None:
        start = time.perf_counter()
        self.traces.append(trace(self.model, example))
        self.seconds["export"] += time.perf_counter() - start

    def _infer(self) -> None:
        start = time.perf_counter()
        self.inference = infer(self.traces, self.strict)
        tensors = dict(named_tensors(self.model))
        values = self.inference.parameters
        for a, b in pairs_in_one_memory({name: tensors[name] for name in values}):
            tie(self.inference.tape, values[a], tensors[a], values[b], tensors[b])
        self.seconds["inference"] += time.perf_counter() - start

    def _reach(self) -> None:
        """What the examples do not reach is looked for by other calls; what is left is dealt with as was asked for."""
        if self.unreached == "ignore" or not self._unreached():
            return
        example = self.traces[0].example
        self.aside = unmentioned(self.model, self._unreached())
        dead = self._unreached() & (touched(self.model, example) or set())
        if dead:
            # Loops drop what their last step computes for the next; another size has more of them.
            self._trace_another_size()
        for detour in detours(self.model, example):
            missing = self._unreached()
            if not missing:
                return
            if (touched(self.model, detour.example) or set()).isdisjoint(
                missing - (set() if detour.example.training else dead)
            ):
                continue
            self._trace_also(detour)
        # What the example computes in vain matters to no call of its kind.
        self.aside |= dead
        self._freeze_unreached()

    def _unreached(self) -> set[str]:
        return unreached(self.inference.parameters, self.inference.read, self._buffers()) - self.aside

    def _buffers(self) -> set[str]:
        return {name for name, _ in self.model.named_buffers(remove_duplicate=False)}

    def _freeze_unreached(self) -> None:
        names = sorted(self._unreached(), key=list(self.inference.parameters).index)
        if not names or self.unreached == "ignore":
            return
        listing = ", ".join(names[:MOST_NAMED]) + (f" and {len(names) - MOST_NAMED} more" * (len(names) > MOST_NAMED))
        if self.unreached == "refuse" or self.strict:
            raise SymmetryError(
                f"no example reaches {listing}, so it is not known which units they read; give calls that use them as "
                "examples=[...], or leave it to unreached='freeze'"
            )
        freeze_what_they_may_read(names, self.inference.parameters, self.inference.tape, self.model)
        self.notes = [
            f"no example reaches {listing}: the units that they may read are fixed; examples=[...] that use them free "
            "these, unreached='ignore' leaves them aside"
        ]

    def _build(self) -> Symmetry:
        start = time.perf_counter()
        aliases = self.traces[0].aliases
        sym = build(self.inference, aliases)
        sym = replace(
            sym,
            scalings=tuple(
                replace(s, evaluation_only=s.evaluation_only or s.name in self.evaluation_only) for s in sym.scalings
            ),
            notes=(*sym.notes, *self.notes),
            matrices=tuple(group for group in sym.matrices if group.name not in self.immovable),
            buffers=frozenset(self._buffers() & aliases.keys()),
            tied={name: first for name, first in aliases.items() if name != first},
        )
        self.seconds["inference"] += time.perf_counter() - start
        return replace(sym, seconds=dict(self.seconds))

    def at_two_sizes(self) -> Symmetry:
        """Without verification: the model is traced once more, with all sizes changed that it lets change."""
        self._trace_another_size()
        self._freeze_unreached()
        sym = self._build()
        # Pairs that turn are known by running the model alone.
        return replace(sym, matrices=tuple(group for group in sym.matrices if group.kind != "phase"))

    def _trace_another_size(self) -> None:
        other = None if self.resized else another_size(self.model, self.traces[0].example)
        self.resized = True
        if other is None:
            return
        try:
            self._trace(other)
        except SymmetryError as error:
            logger.info("not traced at another size: %s", error)
        else:
            self._infer()

    def verified(self) -> Symmetry:
        """What the model's function agrees with. Where another call shows a mistake, that call is traced too."""
        freezing: list[CounterexampleError] = []
        while True:
            sym = self._build()
            start = time.perf_counter()
            phases = {group.name for group in sym.matrices if group.kind == "phase"}
            rejected = phases - confirmed(sym, self.model, self.traces[0].example, phases) if phases else set()
            if rejected:
                self.immovable |= rejected
                continue
            try:
                verification = check(sym, self.model, self.traces[0].example, others=self.others)
            except CounterexampleError as error:
                if not freezing and self._trace_there(error.variant):
                    continue
                if error.matrices and not error.groups and not error.scalings:
                    self.immovable |= set(error.matrices)
                    continue
                if self.strict or not (error.groups or error.scalings) or len(freezing) >= MOST_FROZEN:
                    raise SymmetryError(f"{error}{self._blame()}") from error
                freezing.append(error)
                self._freeze(sym, error)
            except EvaluationOnlyError as error:
                self.evaluation_only |= set(error.scalings)
            except MatricesError as error:
                logger.warning("%s; they are left out", error)
                self.immovable |= set(error.matrices)
            except SymmetryError as error:
                if self.strict or not self._freeze_conditional():
                    raise SymmetryError(f"{error}{self._blame()}") from error
            else:
                self.seconds["verification"] += time.perf_counter() - start
                return replace(sym, verification=verification, seconds=dict(self.seconds))

    def _trace_there(self, variant: Variant) -> bool:
        """Whether tracing this call can show more: it is of another size, and was not traced yet."""
        if variant.kind not in ("size", "number", "flag") or len(self.traces) >= MOST_TRACES:
            return False
        if any(trace.example is variant.example for trace in self.traces):
            return False
        if not self._trace_also(variant):
            return False
        self._freeze_unreached()
        return True

    def _trace_also(self, variant: Variant) -> bool:
        """Whether another call could be traced; inference then knows of it."""
        try:
            self._trace(variant.example)
        except SymmetryError as error:
            logger.info("not traced with %s: %s", variant.what, error)
            return False
        self.others.append(variant)
        self._infer()
        return True

    def _freeze(self, sym: Symmetry, error: CounterexampleError) -> None:
        """What no trace explains is fixed: the units that break the function, or the factors of their tensors."""
        tape, values = self.inference.tape, self.inference.parameters
        blamed = dict.fromkeys(error.groups, "units") or dict.fromkeys(error.scalings, "factors")
        for group in sym.groups:
            if group.name in error.groups:
                freeze(self.inference.names[group.name], Cause("", f"the function changes with {error.variant.what}"))
        for scaling in sym.scalings:
            if scaling.name in error.scalings and not error.groups:
                for name in dict.fromkeys(member.tensor for member in scaling.members):
                    tape.map(values[self.traces[0].aliases[name]], NONLINEAR)
        self.notes.append(
            f"the {' and '.join(dict.fromkeys(blamed.values()))} of {', '.join(map(repr, blamed))} are fixed, as the "
            f"function changes with {error.variant.what}"
        )

    def _freeze_conditional(self) -> bool:
        """Whether there were units that hold where scores differ, if they do not at the example itself."""
        tape = self.inference.tape
        units = [leaf for leaf in tape.conditional if not leaf.frozen]
        for leaf in units:
            freeze(leaf, Cause("", "the example has equal scores, which are told apart by position"))
        return bool(units)

    def _blame(self) -> str:
        # At random weights, so that ties in the model's own blame no rule.
        weights = generic(states.of(self.model), torch.Generator().manual_seed(0))
        ops = inequivariant_ops(self.traces[0], self.inference.values, weights)
        return f"; the rule of {', '.join(ops)} is wrong" if ops else ""
