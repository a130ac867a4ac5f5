"""Where the units of a network can be seen in its forward pass, for any model.

The pass runs at a state s and at g s. A tensor of the pass shows an axis along a dimension where the second run has
the numbers of the first, moved as g moves that axis. Nothing needs to be known about the architecture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from coset.alignment.matrix_blocks import best_matrices
from coset.core import state as states
from coset.core.errors import ModelError
from coset.core.functional import evaluation_mode
from coset.core.state import State
from coset.symmetries.group import Axis, Element, Fixed, Units, blocks, names
from coset.symmetries.symmetry import Action, Symmetry

SiteKind = Literal["pre", "post", "other", "copy"]
See = Callable[[int, SiteKind, Tensor], None]

# Of one tensor, or of one and a threshold. Others, such as a square inside a norm, are no activation functions.
ACTIVATIONS = (
    "relu", "relu6", "leaky_relu", "rrelu_with_noise", "prelu", "_prelu_kernel", "elu", "selu", "celu", "gelu", "silu",
    "mish", "sigmoid", "hardsigmoid", "log_sigmoid_forward", "tanh", "hardtanh", "hardswish", "softplus", "softshrink",
    "hardshrink", "threshold", "clamp", "clamp_min", "clamp_max", "maximum", "minimum", "sin",
)  # fmt: skip
# They repeat the numbers of another tensor, as views do.
COPIES = ("clone", "_to_copy", "_unsafe_view", "copy")
# The right axis must explain a tensor this many times better than no move does.
CONTRAST = 30.0
# How far a turned activation may be from where it should be.
TURNED = 1e-2
# A spread below this much of the largest entry is rounding.
NOISE = 1e-6
# Enough positions of a tensor to tell axes apart.
ROWS = 64
MOST_TRIALS = 16


@dataclass(frozen=True)
class Site:
    """A dimension of an activation that shows the units of an axis.

    number
        which of the activations that `watch` shows
    kind
        input ("pre") or output ("post") of an activation function, the output of another op, or a copy of one
    """

    number: int
    dim: int
    axis: Axis
    kind: SiteKind


def sites(
    sym: Symmetry,
    model: nn.Module,
    state: State,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    generator: torch.Generator | None = None,
    copies: bool = False,
) -> list[Site]:
    """Every place before or after an activation function that shows units which can move, in the order of the pass.

    Units that no activation function meets, as on the residual stream of a transformer, get the outputs of other
    ops instead. A set that lies over others (the inner units of heads) is seen where these are on the same
    dimension. Units that are all alike at the given state and inputs cannot be told apart and are not seen. With
    `copies` also where an op repeats the numbers of another tensor.
    """
    generator = generator if generator is not None else torch.Generator().manual_seed(0)
    axes = _candidates(sym)
    sizes = {axis.size for axis in axes}
    with evaluation_mode(model):
        first = _ForwardPass(model, state, args, kwargs, sizes)
        candidates: dict[tuple[int, int], list[Axis]] = {
            key: [axis for axis in axes if axis.size == rows.shape[-1]] for key, rows in first.rows.items()
        }
        spread: dict[tuple[int, int], float] = {}
        for trial in range(MOST_TRIALS if axes else 0):
            element = sym.random(generator) if trial else sym.cycles(generator)
            second = _ForwardPass(model, sym.act(element, state), args, kwargs, sizes)
            same_pass(model, first.ops, second.ops)
            where = {axis: sources(axis, element) for axis in axes}
            for key, rows in first.rows.items():
                if trial == 0:
                    spread[key] = _distance(second.rows[key], rows)
                    candidates[key] = candidates[key] if spread[key] > NOISE * float(rows.abs().max()) else []
                error = {
                    axis: _distance(second.rows[key], rows[:, where[axis].to(rows.device)]) for axis in candidates[key]
                }
                candidates[key] = [axis for axis in candidates[key] if CONTRAST * error[axis] <= spread[key]]
            if trial and all(len(axes) <= 1 for axes in candidates.values()):
                break
    every = [Site(*key, axes[0], first.kinds[key[0]]) for key, axes in candidates.items() if axes]
    every = [site for site in every if copies or site.kind != "copy"]
    active = {name for site in every if site.kind in ("pre", "post") for name in units_on(sym, site.axis)}
    return [site for site in every if site.kind in ("pre", "post") or units_on(sym, site.axis) - active]


def turning_sites(
    sym: Symmetry, every: Sequence[Site], model: nn.Module, state: State, args: tuple[Any, ...]
) -> dict[int, set[str]]:
    """Of the groups of matrices, those that each activation shows as vectors: when they turn, it turns with them.

    A square of each unit, inside a norm, moves with the units and does not turn.
    """
    noise = sym.random(torch.Generator().manual_seed(0), matrices=True).matrices
    # Orthogonal ones, which are their own inverse transpose.
    element = sym.element(
        matrices={group.name: best_matrices(group.kind, noise[group.name])[1] for group in sym.matrices}
    )
    shown: dict[int, set[str]] = {}
    candidates = {
        (site.number, name): site
        for site in every
        for name in element.matrices
        if name in names(site.axis) and places(sym, site.axis, name) is not None
    }
    first: dict[int, Tensor] = {}
    numbers = {number for number, _ in candidates}

    def keep(number: int, _: SiteKind, x: Tensor) -> None:
        if number in numbers:
            first[number] = x.clone()

    def compare(number: int, _: SiteKind, x: Tensor) -> None:
        for name in element.matrices:
            site = candidates.get((number, name))
            if site is None:
                continue
            before, after = (_vectors(sym, site, name, y) for y in (first[number], x))
            expected = _turned(before, element.matrices[name].to(before), name, sym)
            if float((after - expected).norm()) <= TURNED * float(after.norm()):
                shown.setdefault(number, set()).add(name)

    with evaluation_mode(model):
        watch(model, state, args, None, keep)
        watch(model, sym.act(element, state), args, None, compare)
    return shown


def _vectors(sym: Symmetry, site: Site, name: str, x: Tensor) -> Tensor:
    """[samples, k, copies, units]"""
    at = places(sym, site.axis, name)
    assert at is not None
    return x.movedim(site.dim, -1).flatten(0, -2)[:, at.to(x.device)]


def _turned(x: Tensor, m: Tensor, name: str, sym: Symmetry) -> Tensor:
    """What vectors are once matrices acted on their units."""
    m = m if sym.sets[name].over else m.unsqueeze(0)
    if not sym.sets[name].movable:
        return torch.einsum("xnij,sjxn->sixn", m, x)
    return torch.einsum("xij,skxj->skxi", m, x)


def units_on(sym: Symmetry, axis: Axis) -> set[str]:
    """The sets of units that an axis shows; see `places`."""
    return {name for name in names(axis) if sym.sets[name].movable and places(sym, axis, name) is not None}


def places(sym: Symmetry, axis: Axis, name: str) -> Tensor | None:
    """[k, copies, units]: the k positions at which each unit of a set stands on an axis; None for no such.

    Only those count that move with this set and the ones it lies over alone, so that the move of the axis is linear
    in one permutation. Heads are not shown by heads x inner units: the inner units are, copy by copy.
    """
    group = sym.sets[name]
    together = [*group.over, name]
    positions: list[Tensor] = []
    for block in blocks(torch.arange(axis.size), (axis,)):
        units = [label.units for label in block.labels if label.units and sym.sets[label.units].movable]
        if any(len(block.where(one)) != 1 for one in together) or not set(units) <= set(together):
            continue
        last = [block.where(one)[0] for one in together]
        rest = [d for d in range(block.values.dim()) if d not in last]
        positions.append(block.values.permute(*rest, *last).reshape(-1, sym.copies(name), group.size))
    return torch.cat(positions) if positions else None


def sources(axis: Axis, element: Element) -> Tensor:
    """(n,) positions: entry i of the moved axis is entry sources[i] of the axis."""
    return Action({"": (axis,)}, (), (), element).on("", torch.arange(axis.size))


def watch(
    model: nn.Module, state: State, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None, see: See
) -> list[str]:
    """Run the model at a state and show `see` all its activations; the ops they belong to, in order.

    An activation is a floating tensor that depends on the inputs: what an op makes, and what enters an activation
    function. Views and copies are left out, as are by-products of an op (saved statistics, masks). The tensor may
    be overwritten later in the pass.
    """
    mode = _Watch(see, [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)])
    with mode:
        states.call(model, state, args, dict(kwargs or {}))
    return mode.ops


def same_pass(model: nn.Module, expected: Sequence[str], ops: Sequence[str]) -> None:
    """Refuse a model that does not run the same ops each time: its activations cannot be compared by number."""
    if list(ops) != list(expected):
        pairs = zip(expected, ops, strict=False)
        at = next((k for k, (x, y) in enumerate(pairs) if x != y), min(len(expected), len(ops)))
        raise ModelError(
            f"{type(model).__name__} runs other ops for other weights or batches (from activation {at} on), so its "
            "activations cannot be compared: use another method to align"
        )


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, see: See, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.see = see
        self.ops: list[str] = []
        self.dependent = WeakTensorKeyDictionary()
        self._mark(inputs)

    def _mark(self, tensors: Sequence[Tensor]) -> None:
        for x in tensors:
            self.dependent[x] = True

    def _show(self, op: str, kind: SiteKind, x: Tensor) -> None:
        if x.is_floating_point():
            self.see(len(self.ops), kind, x)
            self.ops.append(op)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        dependent = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor) and x in self.dependent]
        op = func.overloadpacket.__name__.removesuffix("_")
        if dependent and op in ACTIVATIONS:
            self._show(op, "pre", dependent[0])
        result = func(*args, **(kwargs or {}))
        if dependent:
            self._mark([x for x in pytree.tree_leaves(result) if isinstance(x, Tensor)])
            if not func.is_view:
                # Of several results the first is the value; a list is several values.
                value = result[0] if isinstance(result, tuple) else result
                for x in pytree.tree_leaves(value):
                    if isinstance(x, Tensor):
                        kind: SiteKind = "post" if op in ACTIVATIONS else "copy" if op in COPIES else "other"
                        self._show(op, kind, x)
        return result


class _ForwardPass:
    """Some rows of every activation of one pass, along each dimension that may show units.

    rows
        (number, dimension) -> [at most ROWS, units]
    """

    def __init__(
        self,
        model: nn.Module,
        state: State,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | None,
        sizes: set[int],
    ) -> None:
        self.sizes = sizes
        self.rows: dict[tuple[int, int], Tensor] = {}
        self.kinds: dict[int, SiteKind] = {}
        self.ops = watch(model, state, args, kwargs, self._see)

    def _see(self, number: int, kind: SiteKind, x: Tensor) -> None:
        self.kinds[number] = kind
        for dim, size in enumerate(x.shape):
            count = x.numel() // max(1, size)
            if size in self.sizes and count:
                rows = torch.linspace(0, count - 1, min(count, ROWS), dtype=torch.float64, device=x.device).long()
                self.rows[number, dim] = x.movedim(dim, -1).reshape(count, size)[rows]


def _candidates(sym: Symmetry) -> list[Axis]:
    """The distinct axes of the state, and parts of them, that show units and move by themselves."""
    every = dict.fromkeys(part for axes in sym.axes.values() for axis in axes for part in _parts(axis))
    return [
        axis
        for axis in every
        if all(set(sym.sets[name].over) <= names(axis) for name in names(axis)) and units_on(sym, axis)
    ]


def _parts(axis: Axis) -> Iterator[Axis]:
    yield axis
    if not isinstance(axis, Units | Fixed):
        for part in axis.parts:
            yield from _parts(part)


def _distance(x: Tensor, y: Tensor) -> float:
    return float((x - y).abs().max())
