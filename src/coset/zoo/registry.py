"""Models by name: `resnet20:width=2,norm=frn`, or anybody's `module:factory`."""

import difflib
import importlib
import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping
from types import UnionType
from typing import Protocol, TypeVar, get_args, get_origin, get_type_hints, runtime_checkable

import torch
from torch import Tensor, nn

from coset.core.errors import ModelError

T = TypeVar("T")

BUILTINS = {
    "mlp": "mlp:MLP",
    "resnet20": "resnet:resnet20",
    "resnet32": "resnet:resnet32",
    "tinyten": "tinyten:TinyTen",
    "googlenet": "googlenet:GoogLeNet",
    "vit": "vit:ViT",
    "gpt": "gpt:GPT",
}
"""Name -> file of this folder and the class or function in it that makes the model."""


@runtime_checkable
class HasExample(Protocol):
    """A model that can make inputs for itself."""

    def example_inputs(self, batch: int = 2, generator: torch.Generator | None = None) -> tuple[Tensor, ...]: ...


def build(spec: str, arguments: Mapping[str, object] | None = None, /, **kwargs: object) -> nn.Module:
    """The model that `spec` names.

    Args:
        spec: `name` or `name:key=value,...` of a built-in model (`mlp:784-512-10` gives its sizes first), or
            `module:factory` of anybody's function or class, which runs its code. Built-in names win.
        arguments: options by name.
        kwargs: more options; none may come twice.

    Returns:
        The model, as its constructor starts it.

    Raises:
        ModelError: there is no such model or option, or the model cannot be built.

    Example:
        >>> model = coset.zoo.build("resnet20:width=2,norm=frn")
        >>> sum(p.numel() for p in model.parameters())
        1085962
    """
    keywords = _merge(spec, arguments or {}, kwargs)
    name, colon, rest = spec.partition(":")
    if is_builtin(spec):
        return _build_builtin(name, _merge(spec, _options(name, rest) if colon else {}, keywords))
    if is_import_path(spec):
        return _build_from_module(name, rest, keywords)
    raise ModelError(
        f"Unknown model {spec!r}{_suggest(name, BUILTINS)}: "
        f"give {', '.join(BUILTINS)} or an import path module:factory."
    )


def is_builtin(spec: str) -> bool:
    """Whether a spec names a model of the zoo, so that building it runs no code but the library's own.

    Args:
        spec: as for `build`.

    Example:
        >>> coset.zoo.is_builtin("mlp:64-16-10")
        True
    """
    return spec.partition(":")[0] in BUILTINS


def is_import_path(spec: str) -> bool:
    """Whether a spec is `module:factory`, so that building it imports the module and calls the factory.

    Args:
        spec: as for `build`.

    Example:
        >>> coset.zoo.is_import_path("my_models:make")
        True
    """
    name, _, rest = spec.partition(":")  # without a colon the rest is empty, which is no identifier
    return not is_builtin(spec) and all(part.isidentifier() for part in (*name.split("."), *rest.split(".")))


def example_input(model: str | nn.Module, batch: int = 2) -> tuple[Tensor, ...]:
    """Inputs to call or trace a model with.

    Args:
        model: of the zoo or with a method `example_inputs(batch, generator)`; or its spec.
        batch: how many examples.

    Returns:
        The positional arguments of a call.

    Raises:
        ModelError: the model has no such method.

    Example:
        >>> (x,) = coset.zoo.example_input("mlp:64-16-10")
        >>> x.shape
        torch.Size([2, 64])
    """
    module = build(model) if isinstance(model, str) else model
    if not isinstance(module, HasExample):
        raise ModelError(f"{type(module).__name__} has no method example_inputs: give example inputs yourself.")
    return module.example_inputs(batch)


def _merge(spec: str, first: Mapping[str, object], second: Mapping[str, object]) -> dict[str, object]:
    twice = sorted(first.keys() & second.keys())
    if twice:
        raise ModelError(f"Model {spec!r}: given twice: {', '.join(twice)}.")
    return {**first, **second}


def _options(name: str, text: str) -> dict[str, object]:
    """`width=2,norm=frn` as a dict, values read as JSON where they are JSON and as strings otherwise."""
    options: dict[str, object] = {}
    for index, item in enumerate(text.split(",")):
        key, equals, value = item.partition("=")
        if name == "mlp" and index == 0 and not equals:
            options["sizes"] = _sizes(item)
        elif not (key.isidentifier() and value):
            raise ModelError(f"Model '{name}:{text}': cannot read {item!r}, write key=value.")
        elif key in options:
            raise ModelError(f"Model '{name}:{text}': given twice: {key}.")
        else:
            options[key] = _value(value)
    return options


def _sizes(text: str) -> list[int]:
    if not re.fullmatch(r"\d{1,9}(-\d{1,9})*", text):
        raise ModelError(f"Model 'mlp:{text}': cannot read the sizes, write for example mlp:784-512-10.")
    return [int(part) for part in text.split("-")]


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _build_builtin(name: str, options: dict[str, object]) -> nn.Module:
    file, _, attribute = BUILTINS[name].partition(":")
    factory: Callable[..., nn.Module] = getattr(importlib.import_module(f"coset.zoo.{file}"), attribute)
    parameters = inspect.signature(factory).parameters
    hints = get_type_hints(factory.__init__ if inspect.isclass(factory) else factory)
    for key, value in options.items():
        if key not in parameters:
            raise ModelError(
                f"Model {name!r} has no option {key!r}{_suggest(key, parameters)}: it takes {', '.join(parameters)}."
            )
        if not _fits(value, hints[key]):
            raise ModelError(f"Model {name!r}: {key} must be {inspect.formatannotation(hints[key])}, got {value!r}.")
    for key, parameter in parameters.items():
        if parameter.default is parameter.empty and key not in options:
            raise ModelError(f"Model {name!r} needs {key}.")
    return _call(name, factory, options)


def _fits(value: object, hint: object) -> bool:
    """Whether a value has the type of an annotation; a bool is no number, an int is a float."""
    if isinstance(hint, UnionType):
        return any(_fits(value, option) for option in get_args(hint))
    if isinstance(value, bool) or hint is bool:
        return isinstance(value, bool) and hint is bool
    if hint is float:
        return isinstance(value, int | float)
    kind = get_origin(hint) or hint
    return isinstance(kind, type) and isinstance(value, kind)


def _build_from_module(module_name: str, path: str, arguments: dict[str, object]) -> nn.Module:
    try:
        value: object = importlib.import_module(module_name)
    except Exception as error:  # an import runs the user's code, which may raise anything
        raise ModelError(
            f"Cannot import {module_name!r}{_suggest(module_name, BUILTINS)}: {_reason(error)}."
        ) from error
    for part in path.split("."):
        # Some packages import lazily, when an attribute is asked for: again any error.
        try:
            value = getattr(value, part)
        except AttributeError:
            raise ModelError(f"Module {module_name!r} has no {path!r}{_suggest(part, dir(value))}.") from None
        except Exception as error:
            raise ModelError(f"Cannot import {path!r} from {module_name!r}: {_reason(error)}.") from error
    spec = f"{module_name}:{path}"
    if not callable(value):
        raise ModelError(f"{spec!r} has type {type(value).__name__}: name a function or class that makes a model.")
    model = _call(spec, value, arguments)
    if not isinstance(model, nn.Module):
        raise ModelError(f"{spec!r} returned a value of type {type(model).__name__}, not a torch.nn.Module.")
    return model


def _call(spec: str, factory: Callable[..., T], arguments: Mapping[str, object]) -> T:
    try:
        return factory(**arguments)
    except ModelError:
        raise
    except Exception as error:  # the user's code, or torch refusing a size, may raise anything
        raise ModelError(f"Model {spec!r} cannot be built: {_reason(error)}.") from error


def _reason(error: Exception) -> str:
    """The first line of an error, without its full stop."""
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__


def _suggest(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(names), n=2)
    return f" (did you mean {' or '.join(close)}?)" if close else ""
