"""What a State must be before it is used: the right names, shapes and kinds, and finite."""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from coset.errors import StateError

State = Mapping[str, Tensor]


def check(
    state: State,
    like: State | None = None,
    where: str = "the state",
    unknown: Literal["error", "ignore"] = "error",
) -> dict[str, Tensor]:
    """Raise `StateError` if `state` is not finite or does not have the names, shapes and kinds of `like`.

    Returns the tensors of `state` under the names of `like`, in its order; `unknown` says whether other names
    are an error or left out. Names that hold one tensor object in `like` (see `of`) are tied: they must
    hold equal tensors in `state`, and one that is absent is filled in, since many files store just one.
    `where` says in messages whose state it is: a file name, "model A".
    """
    if like is None:
        like = state = dict(state)
    like = dict(like)  # ties are told by object, and a lazy mapping makes a new object at each look
    present = {id(x): name for name, x in like.items() if name in state}
    missing = [name for name, x in like.items() if name not in state and id(x) not in present]
    refuse_names(missing, [n for n in state if n not in like] if unknown == "error" else [], where)

    source = {name: name if name in state else present[id(x)] for name, x in like.items()}
    tensors = {name: state[name] for name in set(source.values())}
    checked = {name: tensors[source[name]] for name in like}
    first: dict[int, str] = {}
    for name, x in checked.items():
        if not isinstance(x, Tensor):
            raise StateError(f"'{name}' in {where} is {type(x).__name__} and not a tensor.")
        expected = like[name]
        refuse_layout(name, x, expected, where)
        twin = first.setdefault(id(expected), name)
        refuse_untied(twin, name, checked[twin], x, where)
        if not is_finite(x):
            bad = int((~torch.isfinite(x.float() if x.element_size() == 1 else x)).sum())  # which knows no 8-bit floats
            raise StateError(f"Tensor '{name}' in {where} has {bad} NaN or infinite of {x.numel()} values.")
    return checked


def is_coordinate(x: Tensor) -> bool:
    """Whether the tensor is part of the point that a State is; integers and bools are carried along."""
    return x.is_floating_point() or x.is_complex()


def is_finite(x: Tensor) -> bool:
    """Whether no value is NaN or infinite, in one pass and without copies: NaN is the least and the largest of all."""
    return bool(finite_rows(x.unsqueeze(0)).all())


def finite_rows(x: Tensor) -> Tensor:
    """[n] of which of n tensors [n, ...] `is_finite` is true."""
    if not is_coordinate(x) or x.numel() == 0:
        return torch.ones(len(x), dtype=torch.bool, device=x.device)
    real = torch.view_as_real(x.detach().resolve_conj()) if x.is_complex() else x.detach()
    wide = real.float() if real.element_size() == 1 else real
    low, high = wide.aminmax() if len(x) == 1 else wide.reshape(len(x), -1).aminmax(dim=1)  # the former is faster
    return (low.isfinite() & high.isfinite()).reshape(len(x))


def same_kind(x: Tensor, y: Tensor) -> bool:
    """Whether both are floating, both complex, or both neither."""
    return x.is_floating_point() == y.is_floating_point() and x.is_complex() == y.is_complex()


def refuse_names(missing: Sequence[str], unknown: Sequence[str], where: str) -> None:
    """Refuse a state that lacks names or has unknown ones."""
    if missing and unknown:
        raise StateError(f"Missing {_listing(missing)}, and unknown {_listing(unknown)} in {where}.")
    if missing:
        raise StateError(f"Missing {_listing(missing)} in {where}.")
    if unknown:
        raise StateError(f"Unknown {_listing(unknown)} in {where}.")


def _listing(names: Sequence[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:4])
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"


def refuse_layout(name: str, x: Tensor, expected: Tensor, where: str) -> None:
    """Refuse a tensor of another shape, or of another kind (floating, complex, other)."""
    # Without this, torch would broadcast: a bias of shape (1,) is a silent error.
    if x.shape != expected.shape:
        shape, wanted = tuple(x.shape), tuple(expected.shape)
        raise StateError(f"Tensor '{name}' in {where} has shape {shape} where {wanted} is expected.")
    if not same_kind(x, expected):
        raise StateError(f"Tensor '{name}' in {where} is {x.dtype} where {expected.dtype} is expected.")


def refuse_untied(first: str, second: str, x: Tensor, y: Tensor, where: str) -> None:
    """Refuse unequal tensors under two names of one tensor."""
    try:
        equal = x is y or torch.equal(x, y)
    except RuntimeError as error:  # inside vmap, or on two devices
        raise StateError(
            f"'{first}' and '{second}' in {where} are tied but cannot be compared here, so give one of them."
        ) from error
    if not equal:
        raise StateError(f"'{first}' and '{second}' in {where} are tied in the model but differ.")
