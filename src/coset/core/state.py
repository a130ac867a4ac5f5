"""A network as a point: arithmetic on States, checks, and calling a model at one.

A State is a `dict[str, Tensor]` by `state_dict()` name, parameters and persistent buffers. A population is
the same dict with one leading dimension on every tensor. Functions take whatever is one network (`StateLike`: a
mapping, a module, a solution that is no distribution) and return new dicts; the arithmetic returns new tensors that
share no memory with its arguments.

Only floating and complex tensors are coordinates of the point. Integer and bool tensors, such as
BatchNorm's `num_batches_tracked`, are carried along: a result takes them from its first argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from coset.core.errors import ModelError, StateError
from coset.core.functional import functional_call

__all__ = [
    "State",
    "StateLike",
    "add",
    "allclose",
    "as_state",
    "call",
    "check",
    "inner",
    "lerp",
    "mean",
    "norm",
    "of",
    "scale",
    "size",
    "stack",
    "sub",
    "to",
    "unstack",
    "untie",
]

State = Mapping[str, Tensor]


@runtime_checkable
class HasMean(Protocol):
    """A solution, as far as a state can be read from it."""

    @property
    def mean(self) -> State:
        """The mean state."""

    @property
    def is_random(self) -> bool:
        """Whether two samples can differ."""


StateLike = State | nn.Module | HasMean
"""What is one network: a mapping of tensors, a module, or a solution that is no distribution, such as a Dirac."""


def as_state(x: StateLike, where: str = "the state", *, mean: bool = False) -> State:
    """The tensors of one network by name: a mapping as it is (a lazy one stays lazy), a module's as `of` gives them.

    Args:
        x: A mapping of tensors, a module, or a solution.
        where: Whose state it is, for messages: "the first state", "model A".
        mean: Whether the mean of a random solution will do; else it is refused.

    Raises:
        StateError: If `x` is none of these, or random where one network is needed.

    Example:
        >>> list(coset.state.as_state(model)) == list(model.state_dict())
        True
        >>> coset.state.as_state(a) is a.mean
        True
    """
    if isinstance(x, Mapping):
        return x
    if isinstance(x, nn.Module):
        return of(x)
    if not isinstance(x, HasMean):
        name = type(x).__name__
        raise StateError(f"A {name} was given as {where}: give a mapping of tensors by name, a module or a solution.")
    if x.is_random and not mean:
        name = type(x).__name__
        raise StateError(f"A {name}, which is random, was given as {where}: give its mean, or one sample of it.")
    return x.mean


def check(
    state: StateLike,
    like: StateLike | None = None,
    where: str = "the state",
    unknown: Literal["error", "ignore"] = "error",
) -> dict[str, Tensor]:
    """Refuse a state that is not finite, or has not the names, shapes and kinds of `like`.

    Names that hold one tensor object in `like` (see `of`) are tied: they must hold equal tensors in `state`, and one
    that is absent is filled in, since many files store just one.

    Args:
        state: What is checked; tensors are read once, so that it may be lazy.
        like: A state, or a model, that has the names, shapes and kinds that are expected; `state` itself when None.
        where: Whose state it is, for messages: a file name, "model A".
        unknown: Whether names that `like` lacks are an error or left out.

    Returns:
        The tensors of `state` under the names of `like`, in its order.

    Raises:
        StateError: If a tensor is missing, unknown, of another shape or kind, or has NaN or infinite values.

    Example:
        >>> coset.state.check({"w": torch.tensor([1.0, float("nan")])})
        Traceback (most recent call last):
        coset.core.errors.StateError: Tensor 'w' in the state has 1 NaN or infinite of 2 values.
    """
    state = as_state(state, where)
    if like is None:
        like = state = dict(state)
    like = dict(
        as_state(like, "the expected state")
    )  # ties are told by object, and a lazy mapping makes a new object at each look
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


FIRST, SECOND = "the first state", "the second state"


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
        raise StateError(
            f"Tensor '{name}' in {where} has shape {tuple(x.shape)} where {tuple(expected.shape)} is expected."
        )
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


def refuse_unequal_ties(state: State, tied: Mapping[str, str]) -> None:
    """Refuse a state in which two names of one tensor, second -> first, hold different values: one would be lost."""
    firsts: dict[str, str] = {}
    for name in state:
        first = firsts.setdefault(tied.get(name, name), name)
        if first != name:
            refuse_untied(first, name, state[first], state[name], "the state")


def leading_shape(state: State, shapes: Mapping[str, tuple[int, ...]], who: str) -> tuple[int, ...]:
    """() of a state, (n,) of a population, whose tensors have these shapes; StateError says what `who` expects."""
    refuse_names([name for name in shapes if name not in state], [], "the state")
    leads: dict[tuple[int, ...], str] = {}
    for name, shape in shapes.items():
        actual = tuple(state[name].shape)
        extra = len(actual) - len(shape)
        if extra not in (0, 1) or actual[extra:] != shape:
            raise StateError(f"Tensor '{name}' has shape {actual}, {who} expects {shape}.")
        leads.setdefault(actual[:extra], name)
    if len(leads) > 1 and () in leads:
        other = next(name for lead, name in leads.items() if lead)
        raise StateError(f"Tensor '{other}' has a leading dimension, that of a population, which '{leads[()]}' lacks.")
    if len(leads) > 1:
        listed = ", ".join(f"{lead[0]} in '{name}'" for lead, name in leads.items())
        raise StateError(f"A population has one size in all tensors, but here it is: {listed}.")
    return next(iter(leads), ())


def owners(state: State) -> dict[str, str]:
    """For each name the first name that holds the same tensor object."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(x), name) for name, x in state.items()}


def distinct(state: State) -> list[str]:
    """The names that hold a tensor object first."""
    return [name for name, owner in owners(state).items() if name == owner]


def tie(state: State, owner: Mapping[str, str]) -> dict[str, Tensor]:
    """`state` with the tensor of its owner under each name; arithmetic makes a new object of each name."""
    return {name: state[owner.get(name, name)] for name in state}


def members(population: State, which: slice | Tensor) -> dict[str, Tensor]:
    """Those that a slice or numbers [m] choose, as a population; numbers may be on any device."""
    return {name: x[which.to(x.device) if isinstance(which, Tensor) else which] for name, x in population.items()}


def inner(a: StateLike, b: StateLike) -> Tensor:
    """<a, b> = sum over coordinates of a_i b_i, multiplied and summed in float64; a scalar tensor.

    For complex tensors this is Re(conj(a_i) b_i), the inner product of real and imaginary parts.

    Args:
        a: A network.
        b: Another with the same names and shapes.

    Example:
        >>> coset.state.inner({"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([3.0, 4.0])}).item()
        11.0
    """
    total = torch.zeros((), dtype=torch.float64)
    for _, x, y in _pairs(a, b):
        if is_coordinate(x):
            total = total.to(x.device) + (_double(x) * _double(y)).sum()
    return total


def norm(a: StateLike) -> Tensor:
    """||a|| = sqrt(<a, a>) in float64; a scalar tensor, with gradient 0 at a = 0.

    Args:
        a: A network.

    Example:
        >>> coset.state.norm({"w": torch.tensor([3.0, 4.0])}).item()
        5.0
    """
    norms = [torch.linalg.vector_norm(_double(x)) for x in as_state(a).values() if is_coordinate(x)]
    return torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros((), dtype=torch.float64)


def add(a: StateLike, b: StateLike) -> dict[str, Tensor]:
    """a + b, in the dtypes of a.

    Args:
        a: A network.
        b: Another with the same names and shapes.

    Example:
        >>> double = coset.state.add(a, a)
        >>> coset.state.allclose(double, coset.state.scale(a, 2))
        True
    """
    return _combine(torch.add, a, b)


def sub(a: StateLike, b: StateLike) -> dict[str, Tensor]:
    """a - b, in the dtypes of a.

    Args:
        a: A network.
        b: Another with the same names and shapes.

    Example:
        >>> coset.state.norm(coset.state.sub(a, a)).item()
        0.0
    """
    return _combine(torch.sub, a, b)


def scale(a: StateLike, factor: float | Tensor) -> dict[str, Tensor]:
    """factor * a, in the dtypes of a.

    Args:
        a: A network.
        factor: A number, or a scalar tensor.

    Example:
        >>> coset.state.scale({"w": torch.ones(2)}, 0.5)
        {'w': tensor([0.5000, 0.5000])}
    """
    tensors = as_state(a).items()
    return {name: (_working(x) * factor).to(x.dtype) if is_coordinate(x) else x.clone() for name, x in tensors}


def lerp(a: StateLike, b: StateLike, t: float | Tensor) -> dict[str, Tensor]:
    """(1 - t) a + t b, in the dtypes of a; exactly a at t = 0 and b at t = 1.

    Args:
        a: A network.
        b: Another with the same names and shapes.
        t: Any number, also outside [0, 1], or a scalar tensor.

    Example:
        >>> coset.state.allclose(coset.state.lerp(a, b, 1.0), b)
        True
    """

    def between(x: Tensor, y: Tensor) -> Tensor:
        # torch.lerp measures from the nearer end, which makes both ends exact.
        return torch.lerp(x, y, t.to(x.device, x.dtype) if isinstance(t, Tensor) else t)

    return _combine(between, a, b)


def stack(states: Iterable[StateLike]) -> dict[str, Tensor]:
    """The population of n states: each (*shape) becomes (n, *shape), in the widest dtype.

    Args:
        states: Networks with the same names and shapes, one or more.

    Example:
        >>> coset.state.size(coset.state.stack([a, b, model]))
        3
    """
    rows = [as_state(state) for state in states]
    if not rows:
        raise StateError("A population needs at least one state.")
    columns: dict[str, list[Tensor]] = {name: [x] for name, x in rows[0].items()}
    for row in rows[1:]:
        for name, _, x in _pairs(rows[0], row):
            columns[name].append(x)
    return {name: torch.stack(column) for name, column in columns.items()}


def unstack(population: State) -> list[dict[str, Tensor]]:
    """The n states of a population, as views of it.

    Args:
        population: Each tensor (n, *shape).

    Example:
        >>> first, second = coset.state.unstack(coset.state.stack([a, b]))
        >>> coset.state.allclose(second, b)
        True
    """
    n = size(population)
    columns = {name: x.unbind() for name, x in population.items()}
    return [{name: column[i] for name, column in columns.items()} for i in range(n)]


def size(population: State) -> int:
    """The number n of states in a population, the first dimension of every tensor.

    Args:
        population: Each tensor (n, *shape).

    Raises:
        StateError: If tensors disagree, so that it is a state and no population.

    Example:
        >>> coset.state.size({"w": torch.zeros(5, 2, 3), "b": torch.zeros(5, 2)})
        5
    """
    lengths: dict[int, str] = {}  # and a tensor of that length
    for name, x in population.items():
        if x.ndim == 0:
            raise StateError(f"Tensor '{name}' has no dimensions, so this is a state and not a population.")
        lengths.setdefault(x.shape[0], name)
    if len(lengths) != 1:
        sizes = ", ".join(f"{n} in '{name}'" for n, name in lengths.items()) or "no tensor at all"
        raise StateError(f"A population has one size in all tensors, but here it is: {sizes}.")
    return next(iter(lengths))


def mean(population: State, weights: Tensor | Sequence[float] | None = None) -> dict[str, Tensor]:
    """sum_i w_i x_i / sum_i w_i over the population, summed in float64.

    Integer and bool tensors are those of the first state.

    Args:
        population: Each tensor (n, *shape).
        weights: One number a state, with a positive sum; equal when None.

    Example:
        >>> coset.state.mean({"w": torch.tensor([[0.0], [4.0]])}, [1, 3])
        {'w': tensor([3.])}
    """
    n = size(population)
    w = torch.as_tensor([1.0] * n if weights is None else weights, dtype=torch.float64)
    if w.shape != (n,):
        raise StateError(f"A population of {n} needs {n} weights, not weights of shape {tuple(w.shape)}.")
    total = w.sum()
    if not 0 < total < torch.inf:
        raise StateError(f"The weights of a mean must have a positive, finite sum, not {total.item()}.")
    w = w / total

    def average(x: Tensor) -> Tensor:
        if not is_coordinate(x):
            return x[0].clone()
        wide = x.to(torch.complex128 if x.is_complex() else torch.float64)
        return torch.einsum("n,n...->...", w.to(wide), wide).to(x.dtype)

    return {name: average(x) for name, x in population.items()}


def to(
    state: StateLike, device: str | torch.device | None = None, dtype: torch.dtype | None = None
) -> dict[str, Tensor]:
    """The state on another device or in another precision; a tensor already there is not copied.

    Args:
        state: A network.
        device: Where to; where each tensor is when None.
        dtype: Of the floating tensors; as they are when None.

    Example:
        >>> coset.state.to(a, dtype=torch.float64)["layers.0.bias"].dtype
        torch.float64
    """
    tensors = as_state(state).items()
    return {name: x.to(device=device, dtype=dtype if x.is_floating_point() else None) for name, x in tensors}


def allclose(a: StateLike, b: StateLike, rtol: float = 1e-5, atol: float = 1e-8) -> bool:
    """Whether names and shapes agree, |a_i - b_i| <= atol + rtol |b_i|, and other tensors are equal.

    Args:
        a: A network.
        b: Another.
        rtol: Relative tolerance.
        atol: Absolute tolerance.

    Example:
        >>> coset.state.allclose(a, coset.state.scale(a, 1.001)), coset.state.allclose(a, a)
        (False, True)
    """
    a, b = as_state(a, FIRST), as_state(b, SECOND)
    if a.keys() != b.keys():
        return False
    for name in a:
        x = a[name]
        y = b[name].to(x.device)
        if x.shape != y.shape or not same_kind(x, y):
            return False
        if not is_coordinate(x):
            if not bool((x == y).all()):
                return False
        elif not torch.allclose(_double(x), _double(y), rtol=rtol, atol=atol):
            return False
    return True


def of(model: nn.Module) -> dict[str, Tensor]:
    """The State of a model: detached copies by `state_dict()` name, without non-persistent buffers.

    Two names of one parameter (tied weights) are both there and hold the same tensor object, so that a
    change, or a gradient, of one is that of the other.

    Args:
        model: Any module; extra state that it keeps besides is left out.

    Example:
        >>> {name: tuple(x.shape) for name, x in coset.state.of(torch.nn.Linear(3, 2)).items()}
        {'weight': (2, 3), 'bias': (2,)}
    """
    copies: dict[int, Tensor] = {}
    state = {}
    for name, x in _persistent(model).items():
        if id(x) not in copies:
            copies[id(x)] = x.detach().clone()
        state[name] = copies[id(x)]
    return state


def untie(model: nn.Module, state: StateLike) -> dict[str, Tensor]:
    """`state`, or a population, with one name for each tensor of `model`, the others checked to equal it.

    `call` does this by itself. Inside `torch.vmap` values cannot be compared: there, untie the population
    first and map over the result.

    Args:
        model: Says which names are one tensor.
        state: A network of this kind, or a population of them.

    Raises:
        StateError: If names are missing or unknown, or tied ones differ.

    Example:
        >>> len(coset.state.untie(model, a)) == len(a.mean)  # nothing is tied here
        True
    """
    where = f"the state for {type(model).__name__}"
    state = as_state(state, where)
    own = _persistent(model)
    names: dict[int, list[str]] = {}
    for name, x in own.items():
        names.setdefault(id(x), []).append(name)
    present = [[name for name in tied if name in state] for tied in names.values()]
    missing = [tied[0] for tied, some in zip(names.values(), present, strict=True) if not some]
    refuse_names(missing, [name for name in state if name not in own], where)
    result = {}
    for first, *others in present:
        result[first] = state[first]
        for name in others:
            refuse_untied(first, name, result[first], state[name], where)
    return result


def call(
    model: nn.Module, state: StateLike, args: Tensor | tuple[Any, ...], kwargs: dict[str, Any] | None = None
) -> Any:
    """`model(*args, **kwargs)` with the tensors of `state` in place of its own; neither is changed.

    Differentiable in `state`. The gradient of tied names goes to the one that comes first in the model,
    unless both hold the same tensor object.

    Args:
        model: The module to call, which keeps its own tensors.
        state: The network to call it as.
        args: Its arguments: a tuple, or a tensor if there is one.
        kwargs: Its named arguments.

    Returns:
        What the model returns.

    Raises:
        StateError: If the state does not fit the model.
        ModelError: If the model cannot be called on these arguments.

    Example:
        >>> coset.state.call(model, a, digits.test.inputs[:2]).shape
        torch.Size([2, 10])
    """
    tensors = untie(model, state)
    buffers = dict(model.named_buffers(remove_duplicate=False))
    own: dict[str, Tensor] = {**dict(model.named_parameters(remove_duplicate=False)), **buffers}
    for name, x in tensors.items():
        refuse_layout(name, x, own[name], f"the state for {type(model).__name__}")
    # A forward pass may write into buffers (BatchNorm's running statistics), so it gets copies, also of the
    # non-persistent ones, which no state has.
    replaced = {id(own[name]) for name in tensors}
    tensors.update({n: x for n, x in model.named_buffers() if id(x) not in replaced})
    tensors = {name: x.clone() if name in buffers else x for name, x in tensors.items()}
    try:
        return functional_call(model, tensors, args, kwargs)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        inputs = [x for x in (args if isinstance(args, tuple) else (args,)) if isinstance(x, Tensor)]
        shapes = ", ".join(str(tuple(x.shape)) for x in inputs) or "no tensors"
        reason = str(error).splitlines()[0].rstrip(".")
        raise ModelError(f"{type(model).__name__} cannot be called on inputs of shape {shapes}: {reason}.") from error


def _persistent(model: nn.Module) -> dict[str, Tensor]:
    """The model's own parameters and persistent buffers; its `state_dict()` may hold extra state besides."""
    own = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    own.update(name for name, _ in model.named_buffers(remove_duplicate=False))
    return {name: x for name, x in model.state_dict(keep_vars=True).items() if name in own}


def _double(x: Tensor) -> Tensor:
    """Real float64 values; a complex tensor as its real and imaginary parts."""
    return (torch.view_as_real(x.resolve_conj()) if x.is_complex() else x).to(torch.float64)


def _working(x: Tensor) -> Tensor:
    """At least float32: 8-bit floats have no arithmetic, and 16-bit ones round at every step."""
    return x.float() if x.element_size() < 4 else x


def _combine(function: Callable[[Tensor, Tensor], Tensor], a: StateLike, b: StateLike) -> dict[str, Tensor]:
    """`function` on each pair of coordinates, in the dtypes of a; the other tensors of a."""
    return {
        name: function(_working(x), y.to(_working(x).dtype)).to(x.dtype) if is_coordinate(x) else x.clone()
        for name, x, y in _pairs(a, b)
    }


def _pairs(a: StateLike, b: StateLike) -> Iterator[tuple[str, Tensor, Tensor]]:
    """(name, a[name], b[name]) of two states that match; tensors are read once, as either may be lazy."""
    a, b = as_state(a, FIRST), as_state(b, SECOND)
    refuse_names([n for n in a if n not in b], [n for n in b if n not in a], SECOND)
    for name in a:
        x, y = a[name], b[name]
        refuse_layout(name, y, x, SECOND)
        yield name, x, y
