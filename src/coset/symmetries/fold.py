"""Gains of norms moved into the maps that read them, so that what they scale can be turned.

After a norm, x * g is read by W as W (g * x) = (W g) x: with g one and W g in the place of W the function is the same.
In the words of a symmetry this is the element of a scaling with the factors 1 / g, so it takes biases after the gain
and several readers along.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar, overload

import torch
from torch import Tensor, nn

from coset.core.errors import SymmetryError
from coset.core.state import State, as_state
from coset.symmetries.group import MatrixGroup, ScaledAxis, Scaling

if TYPE_CHECKING:
    from coset.symmetries.symmetry import Symmetry

M = TypeVar("M", bound=nn.Module)


def gain_scalings(group: MatrixGroup, scalings: Iterable[Scaling]) -> dict[str, Scaling]:
    """For each gain the scaling that moves it, and no other gain, into its readers."""
    out: dict[str, Scaling] = {}
    for scaling in scalings:
        if scaling.units == group.name and scaling.kind == "scaling" and scaling.exact:
            gains = [m for m in scaling.members if m.tensor in group.gains]
            if len(gains) == 1 and abs(gains[0].power) == 1 and not gains[0].offset:
                out.setdefault(gains[0].tensor, scaling)
    return out


def foldable(group: MatrixGroup, scalings: Sequence[Scaling]) -> bool:
    """Whether all gains of a group can be moved into their readers."""
    return gain_scalings(group, scalings).keys() == set(group.gains)


@overload
def fold(x: M, sym: Symmetry, *, like: State | nn.Module | None = None) -> M: ...


@overload
def fold(x: State, sym: Symmetry, *, like: State | nn.Module | None = None) -> dict[str, Tensor]: ...


def fold(
    x: State | nn.Module, sym: Symmetry, *, like: State | nn.Module | None = None
) -> dict[str, Tensor] | nn.Module:
    """The same function with gains of one: what they did is done by the weights that read them.

    The matrices of `sym.matrices` that name gains act on such networks alone. In few bits products are rounded once.

    Args:
        x: A state or a module; it is left as it was.
        sym: Its symmetry, which says what can be folded.
        like: A network whose gains to take in the place of ones: `fold(fold(a, sym), sym, like=a)` is `a`.

    Returns:
        A state, or a copy of the module.

    Raises:
        SymmetryError: If a gain is zero where something is added after it, which its readers cannot take up.

    Example:
        >>> coset.fold(a, sym).keys() == a.state.keys()
        True
    """
    state = as_state(x)
    folded = dict(state)
    target = as_state(like) if like is not None else {}
    for group in sym.matrices:
        for gain, scaling in gain_scalings(group, sym.scalings).items():
            if gain in folded:
                _fold_one(folded, sym, gain, scaling, target.get(gain))
    if isinstance(x, nn.Module):
        model = copy.deepcopy(x)
        model.load_state_dict(folded)
        return model
    return {name: tensor.clone() if tensor is state.get(name) else tensor for name, tensor in folded.items()}


def _fold_one(state: dict[str, Tensor], sym: Symmetry, gain: str, scaling: Scaling, target: Tensor | None) -> None:
    old = state[gain]
    new = torch.ones_like(old) if target is None else target
    if torch.equal(old, new):
        return
    power = next(m.power for m in scaling.members if m.tensor == gain)
    ratio = (new.double() / old.double()).flatten(-1) ** power
    zero = old.flatten() == 0
    if bool(zero.any()):
        _refuse_lost(state, gain, scaling, power, zero)
    names = dict.fromkeys(m.tensor for m in scaling.members)
    images = sym.act(sym.element(scales={scaling.name: ratio}), {n: state[n] for n in names if n in state})
    for name, image in images.items():
        state[name] = new.clone() if name == gain else image.nan_to_num(0.0, 0.0, 0.0) if bool(zero.any()) else image


def _refuse_lost(state: State, gain: str, scaling: Scaling, power: float, zero: Tensor) -> None:
    """What is added after a gain of zero has nowhere to go."""
    for member in scaling.members:
        if member.tensor != gain and member.power * power > 0 and member.tensor in state:
            lost = state[member.tensor].movedim(_axis(member), -1)[..., zero]
            if bool((lost != 0).any()):
                raise SymmetryError(
                    f"{gain!r} is zero where {member.tensor!r}, which is added after it, is not: it cannot be folded"
                )


def _axis(member: ScaledAxis) -> int:
    assert member.axis is not None
    return member.axis


def untie(model: M) -> M:
    """A copy of the model in which tied parameters are tensors of their own, equal at first.

    A gain before a tied unembedding cannot be folded, as the embedding would change with it: untied, it can.

    Args:
        model: Any module; it is left as it was.

    Example:
        >>> coset.untie(model) is model
        False
    """
    model = copy.deepcopy(model)
    owners: set[int] = set()
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is None:
                continue
            if id(parameter) in owners:
                own = nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
                module._parameters[name] = own
                parameter = own
            owners.add(id(parameter))
    return model
