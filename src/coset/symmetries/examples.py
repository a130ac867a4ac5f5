"""Calls of a model: the example it is traced with, and others that it should be the same function for.

A group must hold for every input that a model takes, not only for those of its example. So the example is varied: other
sizes of batches and sequences, other whole numbers, other values.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence, Set, ValuesView
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from coset.core.errors import CosetError
from coset.core.show import Shown, Table
from coset.symmetries.mentions import names_in_code, numbers_in_code

Args = Tensor | tuple[Any, ...]
"""The positional arguments of a model, or its only one."""

Leaf = Any
Rebuild = Callable[[Sequence[Leaf]], Any]
Kind = Literal["size", "number", "flag", "value", "again"]
# Whole numbers up to which a call is tried that may choose one of several heads.
MOST_WAYS = 16
# A number in the code above which no call is tried, as it may be a count of steps.
LARGEST_NUMBER = 128
# Optional arguments up to which tensors are made up for each.
MOST_OPTIONAL = 4


@dataclass(frozen=True, repr=False)
class Example(Shown):
    """One call of a model.

    Args:
        args: Its arguments: a tuple, or a tensor if there is one.
        kwargs: Its named arguments.
        training: Whether modules see `training` set, as auxiliary heads want; norms and dropout stay as in evaluation.

    Example:
        >>> example = coset.Example(digits.test.inputs[:2])
        >>> [group.size for group in coset.symmetry(model, digits.test.inputs[:8], examples=[example]).groups]
        [16]
    """

    args: Args
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    training: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "args", positional(self.args))
        object.__setattr__(self, "kwargs", dict(self.kwargs or {}))

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors that the model is called with, in order."""
        return [x for x in flatten((self.args, self.kwargs))[0] if isinstance(x, Tensor)]

    def replace(self, change: Callable[[Leaf], Leaf]) -> Example:
        """The same call with every tensor and number changed.

        Args:
            change: From a tensor, or another leaf, to what takes its place.
        """
        leaves, rebuild = flatten((self.args, self.kwargs))
        args, kwargs = rebuild([change(leaf) for leaf in leaves])
        return Example(args, kwargs, self.training)

    def copy(self) -> Example:
        """The same call with tensors of its own, which a model may write into."""
        return self.replace(lambda x: x.clone() if isinstance(x, Tensor) else x)

    def _shown(self) -> Table:
        shapes = ", ".join(str(tuple(x.shape)) for x in self.tensors) or "no tensors"
        return Table(f"Example: {shapes}{', in training' if self.training else ''}", [])


@dataclass(frozen=True)
class Variant:
    """An example that differs from another in one respect, for a size along the axes of one name."""

    example: Example
    kind: Kind
    what: str
    axis: str = ""


def positional(args: Args) -> tuple[Any, ...]:
    """The arguments as a tuple; a lone tensor is one of them, where a tuple of it would be its rows."""
    if isinstance(args, Tensor):
        return (args,)
    if not isinstance(args, tuple | list):
        raise CosetError(
            f"What the model is called with is a {type(args).__name__}: give a tuple of its arguments, or a tensor if "
            "there is one, and those that have names as kwargs."
        )
    return tuple(args)


def as_example(call: Example | Args | Mapping[str, Any]) -> Example:
    """An example from what users write: a tensor, a tuple of arguments, or a mapping of named ones.

    Args:
        call: The call, which may be an example already.
    """
    if isinstance(call, Example):
        return call
    return Example((), call) if isinstance(call, Mapping) else Example(call)


def spelled_out(example: Example, forward: Callable[..., Any]) -> Example:
    """The same call with the numbers, flags and names that it leaves to their defaults, so that these are varied, too.

    Args:
        example: The call.
        forward: The method of the model that it calls.
    """
    numbers = {name: x for name, x in _left_out(example, forward).items() if isinstance(x, int | float | str | Enum)}
    return Example(example.args, {**example.kwargs, **numbers}, example.training)


def _left_out(example: Example, forward: Callable[..., Any]) -> dict[str, Any]:
    """The named arguments that a call leaves to their defaults, with these."""
    arguments, parameters = _arguments(example, forward)
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    optional = {name: x.default for name, x in parameters.items() if x.kind in by_name and x.default is not x.empty}
    return {name: default for name, default in optional.items() if name not in arguments}


def _arguments(example: Example, forward: Callable[..., Any]) -> tuple[dict[str, Any], Mapping[str, inspect.Parameter]]:
    """The arguments of a call by name, and all that there are; none where it does not say."""
    try:
        signature = inspect.signature(forward)
        return signature.bind_partial(*positional(example.args), **example.kwargs).arguments, signature.parameters
    except (TypeError, ValueError):  # no signature, or not one for this call
        return {}, {}


def flatten(x: Any) -> tuple[list[Leaf], Rebuild]:
    """Tensors and other leaves of nested containers and objects, and how to put them back.

    Args:
        x: What a model is called with.
    """
    return _flatten(x, (), output=False)


def tensors_in(output: Any) -> list[Tensor]:
    """The tensors of what a model returned, and of what it yields, which is read here.

    A cache is left out: it is what the next call reads, and no result.

    Args:
        output: What the model returned.
    """
    return [x for x in _flatten(output, (), output=True)[0] if isinstance(x, Tensor)]


def _flatten(x: Any, above: tuple[Any, ...], output: bool) -> tuple[list[Leaf], Rebuild]:
    leaves, spec = pytree.tree_flatten(x)
    flat: list[Leaf] = []
    inner: list[tuple[int, Rebuild]] = []
    for leaf in leaves:
        below, rebuild = _open(leaf, above, output)
        flat += below
        inner.append((len(below), rebuild))

    def together(values: Sequence[Leaf]) -> Any:
        at, parts = 0, []
        for count, rebuild in inner:
            parts.append(rebuild(values[at : at + count]))
            at += count
        return pytree.tree_unflatten(parts, spec)

    return flat, together


def _open(leaf: Leaf, above: tuple[Any, ...], output: bool) -> tuple[list[Leaf], Rebuild]:
    """What pytree does not know: other mappings and collections, data classes, and objects with attributes."""
    inside = (*above, leaf)
    if isinstance(leaf, Mapping):
        flat, rebuild = _flatten(dict(leaf), inside, output)

        def mapping(values: Sequence[Leaf]) -> Any:
            items = rebuild(values)
            if not isinstance(leaf, MutableMapping):
                return items
            image = copy.copy(leaf)
            image.update(items)
            return image

        return flat, mapping
    if isinstance(leaf, Set | ValuesView) or (output and isinstance(leaf, Iterator)):
        return _flatten(list(leaf), inside, output)
    is_class = dataclasses.is_dataclass(leaf) and not isinstance(leaf, type)
    if not is_class and (callable(leaf) or isinstance(leaf, Tensor) or (output and _is_cache(leaf))):
        return [leaf], lambda values: values[0]
    attributes = _attributes(leaf)
    if not attributes or any(leaf is one for one in above):
        return [leaf], lambda values: values[0]
    flat, rebuild = _flatten(attributes, inside, output)
    # The numbers of a data class are arguments; of other objects only the tensors are known to be.
    places = [k for k, x in enumerate(flat) if is_class or isinstance(x, Tensor)]
    if not places:
        return [leaf], lambda values: values[0]

    def record(values: Sequence[Leaf]) -> Any:
        image, whole = copy.copy(leaf), list(flat)
        for k, value in zip(places, values, strict=True):
            whole[k] = value
        for name, value in rebuild(whole).items():
            object.__setattr__(image, name, value)
        return image

    return [flat[k] for k in places], record


def _attributes(x: Any) -> dict[str, Any]:
    by_class = (getattr(kind, "__slots__", ()) for kind in type(x).__mro__)
    names = [name for some in by_class for name in ([some] if isinstance(some, str) else some)]
    slots = {name: getattr(x, name) for name in names if not name.startswith("__") and hasattr(x, name)}
    return {**slots, **getattr(x, "__dict__", {})}


def _is_cache(x: Any) -> bool:
    return any("cache" in kind.__name__.lower() for kind in type(x).__mro__)


def variants(model: nn.Module, example: Example, *, thorough: bool = True) -> Iterator[Variant]:
    """Other calls that the model may take, and may not: each kind of size, then numbers, then values.

    Args:
        model: Says which arguments the example leaves out, and what may be said in place of a name.
        example: The call that is varied.
        thorough: Whether to try many sizes; a few otherwise.
    """
    yield from other_sizes(example, thorough)
    yield from other_numbers(model, example)
    yield from other_values(example)


def other_sizes(
    example: Example, thorough: bool, turns: Mapping[int, Collection[int]] | None = None
) -> Iterator[Variant]:
    """Calls with other sizes; the arguments are those of `resizings`."""
    for resizing in resizings(example, thorough, turns):
        what = f"{resizing.other} in place of {resizing.axis}"
        yield Variant(resizing.of(example), "size", what, resizing.axis)


def other_numbers(model: nn.Module, example: Example) -> Iterator[Variant]:
    """Calls with other numbers, flags and names among the arguments.

    Args:
        model: As for `variants`.
        example: The call that is varied.
    """
    named = [x for x in numbers_in_code(model) if x >= 0]

    def numbers(leaf: float) -> Sequence[float]:
        near = _numbers_near(leaf)
        if isinstance(leaf, bool):
            return near
        steps = (0, 1) if isinstance(leaf, int) else (0, 0.01, -0.01)
        beside = [x + step for x in named if isinstance(x, float) or isinstance(leaf, int) for step in steps]
        further = [x for x in beside if x != leaf and isinstance(x, type(leaf)) and x <= LARGEST_NUMBER]
        return list(dict.fromkeys([*near, *further]))

    yield from _other_settings(model, example, numbers)


def detours(model: nn.Module, example: Example) -> Iterator[Variant]:
    """Calls that may go another way through the model: in training, by other sizes, numbers and flags.

    Args:
        model: As for `variants`.
        example: The call that is varied.
    """
    yield Variant(Example(example.args, example.kwargs, training=True), "value", "training mode")
    yield from (variant for variant in variants(model, example) if variant.kind != "value")
    yield from _other_settings(model, example, _ways)
    yield from _with_more(model, example)


def resizings(
    example: Example, thorough: bool, turns: Mapping[int, Collection[int]] | None = None
) -> Iterator[Resizing]:
    """Other sizes for axes of equal size, which may be one and the same thing, such as time, or not.

    Args:
        example: The call whose sizes are varied.
        thorough: Whether to try many sizes; a few otherwise.
        turns: Sizes -> those to try in their place, instead of ones that are near.
    """

    def others(size: int, thorough: bool) -> Collection[int]:
        return _sizes_near(size, thorough) if turns is None else turns.get(size, ())

    tensors = example.tensors
    # An index beyond a table ends a CUDA context, so there sizes only shrink.
    growing = not any(x.is_cuda for x in tensors)
    for size in dict.fromkeys(size for x in tensors for size in x.shape if size):
        axes = sorted({axis for x in tensors for axis in range(x.dim()) if x.shape[axis] == size})
        later = tuple(axis for axis in axes if axis)
        together = dict.fromkeys(which for which in (later, tuple(axes)) if len(which) > 1)
        for which in [*together, *((axis,) for axis in axes)]:
            many = thorough and (which in together or not set(which) & set(later[1:]))
            for other in others(size, many):
                if other < size or growing:
                    yield Resizing(size, other, which)
        for axis in later if thorough else ():
            # Images and captions may have an axis of the same size that is not the same thing.
            which_tensors = [k for k, x in enumerate(tensors) if axis < x.dim() and x.shape[axis] == size]
            for k in which_tensors if len(which_tensors) > 1 else ():
                for other in others(size, False):
                    if other < size or growing:
                        yield Resizing(size, other, (axis,), k)


RESIZABLE = (torch.strided, torch.sparse_coo)


@dataclass(frozen=True)
class Resizing:
    """Another size for those of some axes that have one size, in all tensors or only in one."""

    size: int
    other: int
    axes: tuple[int, ...]
    only: int | None = None

    @property
    def axis(self) -> str:
        where = "" if self.only is None else f" of tensor {self.only}"
        return f"{self.size} on axis {' and '.join(map(str, self.axes))}{where}"

    def of(self, example: Example) -> Example:
        """The example with these axes cut short, or gone through again."""
        count = itertools.count()

        def resize(x: Leaf) -> Leaf:
            if not isinstance(x, Tensor) or x.layout not in RESIZABLE or self.only not in (None, next(count)):
                return x
            for axis in range(x.dim()):
                if x.shape[axis] == self.size and axis in self.axes:
                    x = x.index_select(axis, torch.arange(self.other, device=x.device) % self.size)
            return x

        return example.replace(resize)


def _sizes_near(size: int, thorough: bool) -> list[int]:
    close = [size + 1, size - 1, 2 * size, size // 2, 1, 2, 4 * size] if thorough else [size + 1, size // 2]
    return [other for other in dict.fromkeys(close) if other >= 1 and other != size]


def _other_settings(
    model: nn.Module, example: Example, numbers: Callable[[float], Sequence[float]]
) -> Iterator[Variant]:
    """Numbers may be counts of steps, flags and names may choose a branch, and what is optional may be left out."""
    leaves, rebuild = flatten((example.args, example.kwargs))
    for k, leaf in enumerate(leaves):
        kind: Kind = "flag" if isinstance(leaf, bool | str | Enum) else "number"
        others: Sequence[Leaf] = (
            [other for other in type(leaf) if other is not leaf]
            if isinstance(leaf, Enum)
            else numbers(leaf)
            if isinstance(leaf, int | float)
            else _names_beside(model, leaf)
        )
        for other in others:
            args, kwargs = rebuild([*leaves[:k], other, *leaves[k + 1 :]])
            yield Variant(Example(args, kwargs, example.training), kind, f"{other!r} in place of {leaf!r}")
    yield from _with_less(model, example)


def _with_less(model: nn.Module, example: Example) -> Iterator[Variant]:
    """Without an optional argument: a named one, or the last by place."""
    arguments, parameters = _arguments(example, model.forward)
    for k, name in enumerate(arguments):
        named, last = name in example.kwargs, k + 1 == len(example.args)
        if parameters[name].default is None and arguments[name] is not None and (named or last):
            args = example.args if named else example.args[:-1]
            kwargs = {other: x for other, x in example.kwargs.items() if other != name}
            yield Variant(Example(args, kwargs, example.training), "flag", f"{name} left out")


def _with_more(model: nn.Module, example: Example) -> Iterator[Variant]:
    """An optional argument may be like one that is there, as targets are."""
    for name, default in _left_out(example, model.forward).items():
        for x in example.tensors if default is None else ():
            call = Example(example.args, {**example.kwargs, name: x.clone()}, example.training)
            yield Variant(call, "flag", f"{name} given")


def with_optional(model: nn.Module, example: Example, sizes: Collection[int]) -> Iterator[Variant]:
    """Calls that give an argument which the example leaves out, such as a state to begin with or a residual.

    Args:
        model: As for `variants`.
        example: The call that is varied.
        sizes: How many units such a tensor may have along its last axis.
    """
    names = [name for name, default in _left_out(example, model.forward).items() if default is None]
    real = [x for x in example.tensors if x.dim() and x.shape[0] and not x.is_meta]
    for name in names if len(names) <= MOST_OPTIONAL else ():
        for x in real[:1]:
            leads = dict.fromkeys([tuple(x.shape[:-1]), (x.shape[0],), (1, x.shape[0])])
            for size, lead in itertools.product(dict.fromkeys(sizes), leads):
                generator = torch.Generator().manual_seed(size)
                guess = torch.randn((*lead, size), generator=generator).to(x.device)
                guess = guess.to(x.dtype) if x.is_floating_point() else guess
                for value in (guess, (guess, guess)):
                    call = Example(example.args, {**example.kwargs, name: value}, example.training)
                    yield Variant(call, "flag", f"{name} given")


def _ways(leaf: float) -> Sequence[float]:
    """Numbers that may choose one of several heads."""
    return range(MOST_WAYS) if isinstance(leaf, int) and not isinstance(leaf, bool) else ()


def _names_beside(model: nn.Module, name: Leaf) -> list[str]:
    """What may be said in place of a name: those of other parts, and those in the code."""
    if not isinstance(name, str):
        return []
    parts = [list(module) for module in model.modules() if isinstance(module, nn.ModuleDict | nn.ParameterDict)]
    beside = [other for keys in parts if name in keys for other in keys]
    return [other for other in dict.fromkeys([*beside, *names_in_code(model)]) if other != name]


def _numbers_near(leaf: float) -> Sequence[float]:
    if isinstance(leaf, bool):
        return [not leaf]
    if isinstance(leaf, float):
        return [other for other in dict.fromkeys((0.0, 2 * leaf, leaf / 2, leaf / 4, 1.0, -leaf)) if other != leaf]
    near = dict.fromkeys((leaf + 1, leaf - 1, leaf + 2, 2 * leaf, 1))
    return [other for other in near if other != leaf and (other >= 0 or leaf < 0)]


def other_values(example: Example) -> Iterator[Variant]:
    """Zeros, negatives, equal rows and padding; whole numbers stay among those of the example.

    Args:
        example: The call that is varied.
    """

    def changed(real: Callable[[Tensor], Tensor], whole: Callable[[Tensor], Tensor]) -> Callable[[Leaf], Leaf]:
        def change(x: Leaf) -> Leaf:
            if not isinstance(x, Tensor) or not x.numel() or x.dtype == torch.bool or x.layout is not torch.strided:
                return x
            return real(x) if x.is_floating_point() or x.is_complex() else x if counts(x) else whole(x)

        return change

    def repeated(x: Tensor) -> Tensor:
        return x[:1].expand_as(x).clone() if x.dim() else x

    def equal(x: Tensor) -> Tensor:
        return torch.full_like(x, int(x.flatten()[0]))

    def padded(x: Tensor) -> Tensor:
        """The end of the second axis, if there are as many, is zero; else the last row."""
        x, axis = x.clone(), min(1, x.dim() - 1)
        if x.dim():
            x.narrow(axis, x.shape[axis] // 2, x.shape[axis] - x.shape[axis] // 2).zero_()
        return x

    def last_row(x: Tensor) -> Tensor:
        x = x.clone()
        if x.dim():
            x[-1:] = 0
        return x

    def floor(x: Tensor) -> Tensor:
        return torch.full_like(x, int(x.min()))

    def backwards(x: Tensor) -> Tensor:
        return x.flip(x.dim() - 1) if x.dim() else x

    ways: list[tuple[str, Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = [
        ("zeros", torch.zeros_like, floor),
        ("negatives", torch.neg, backwards),
        ("equal rows", repeated, equal),
        ("padding", padded, floor),
        ("a row of zeros", last_row, repeated),
    ]
    for what, real, whole in ways:
        yield Variant(example.replace(changed(real, whole)), "value", what)


def counts(x: Tensor) -> bool:
    """Whether whole numbers look like offsets or positions, which only make sense in their order."""
    flat = x.flatten()
    return x.dim() == 1 and len(flat) > 0 and int(flat[0]) == 0 and bool((flat.diff() >= 0).all())
