"""Tensors of the state that no example reaches: other heads, early exits, experts that are never asked.

Nothing is known of what they read, but its size. So the units that they may read are fixed: those on an axis of equal
size; for an input axis of which there is none, those that a flattened map of units may hold, or else a concatenation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import nn

from coset.symmetries.tape import Tape, Value
from coset.symmetries.terms import Cause, Term, freeze, leaves

WITH_OUTPUTS_FIRST = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""Layers whose weight has its outputs on the first axis, and its inputs on the second."""
WITHOUT_INPUTS = (nn.Embedding, nn.EmbeddingBag)


def unreached(parameters: Mapping[str, Value], tape: Tape, buffers: Iterable[str]) -> list[str]:
    """Names of tensors that no step reads; of buffers only those that are numbers along an axis.

    Args:
        parameters: The values of all tensors of the state.
        tape: What the examples compute.
        buffers: The names of those tensors that are not trained.
    """
    read = {operand.value for step in tape.steps for operand in step.ins}
    idle = {name for name in buffers if name in parameters and not any(leaves(t) for t in parameters[name].axes)}
    return [name for name, value in parameters.items() if value not in read and name not in idle]


def freeze_what_they_may_read(
    names: Iterable[str], parameters: Mapping[str, Value], tape: Tape, model: nn.Module
) -> None:
    """Fix all units that may be inputs or outputs of these tensors.

    Args:
        names: The tensors that no example reaches.
        parameters: The values of all tensors of the state.
        tape: What the examples compute; what is fixed has no factor either.
        model: Says which axes of the tensors are inputs.
    """
    names = list(names)
    reached = [value for name, value in parameters.items() if name not in set(names)]
    whole: dict[int, list[Term]] = {}
    units: set[Term] = set()
    for value in reached:
        for term in value.axes:
            whole.setdefault(term.size, []).extend(leaves(term))
            units.update(leaves(term))
    for name in names:
        cause = Cause("", f"may be read by {name}, which no example reaches")
        for axis, term in enumerate(parameters[name].axes):
            if term.size == 1:
                continue
            shared = whole.get(term.size, [])
            if not shared and _reads(model, name, axis, len(parameters[name].axes)):
                flat = [leaf for leaf in units if term.size % leaf.size == 0]
                shared = flat or [leaf for leaf in units if leaf.size <= term.size]
            for leaf in shared:
                freeze(leaf, cause)
                tape.unused.add(leaf)
    # A factor of all units at once would be seen, too.
    for value in reached:
        if any(leaf in tape.unused for term in value.axes for leaf in leaves(term)):
            tape.silent.add(value)


def _reads(model: nn.Module, name: str, axis: int, rank: int) -> bool:
    """Whether an axis of a tensor may be one of inputs."""
    try:
        module = model.get_submodule(name.rpartition(".")[0])
    except AttributeError:
        return True
    if isinstance(module, WITH_OUTPUTS_FIRST):
        return rank > 1 and axis == 1
    return not isinstance(module, WITHOUT_INPUTS) and rank > 1
