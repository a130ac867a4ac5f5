"""Which attributes the code of a model's own classes asks for when it is called.

A layer that an older version has left behind is in the state, and no call can reach it: no method that `forward` leads
to says its name. Where code looks attributes up by names that it makes, nothing can be told.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any

from torch import nn

BY_OTHER_NAMES = frozenset({
    "getattr", "vars", "eval", "exec", "attrgetter", "methodcaller", "operator", "__dict__", "__getattr__",
    "_modules", "_parameters", "_buffers", "modules", "named_modules", "children", "named_children", "parameters",
    "named_parameters", "buffers", "named_buffers", "get_submodule", "get_parameter", "get_buffer", "state_dict",
})  # fmt: skip
MOST_FUNCTIONS = 2000
LONGEST_NAME = 32
MOST_CONSTANTS = 24


def unmentioned(model: nn.Module, names: Iterable[str]) -> set[str]:
    """Those tensors that no call of the model can ask for.

    Args:
        model: The model; the code of its classes is read, and not that of torch.
        names: Tensors of its state.
    """
    names = list(names)
    words = _words(model) if names else None
    return set() if words is None else {name for name in names if not _reachable(model, name, words)}


def _reachable(model: nn.Module, name: str, words: set[str]) -> bool:
    parent: Any = model
    for part in name.split("."):
        if isinstance(parent, nn.Module) and not _of_torch(type(parent)) and part not in words:
            # What a class of one's own holds as a container is reached by iterating over it.
            return isinstance(parent, nn.Sequential | nn.ModuleList | nn.ModuleDict)
        parent = getattr(parent, part, None)
    return True


def names_in_code(model: nn.Module) -> list[str]:
    """Strings in the code that a call leads to, which an argument may be compared with.

    Args:
        model: The model; the code of its classes is read, and not that of torch.
    """
    names = (x for x in _constants(model) if isinstance(x, str) and 0 < len(x) <= LONGEST_NAME and not x.isspace())
    return list(dict.fromkeys(names))[:MOST_CONSTANTS]


def numbers_in_code(model: nn.Module) -> list[float]:
    """Numbers in the code that a call leads to, which an argument may be compared with.

    Args:
        model: As for `names_in_code`.
    """
    numbers = (x for x in _constants(model) if isinstance(x, int | float) and not isinstance(x, bool))
    return list(dict.fromkeys(numbers))[:MOST_CONSTANTS]


def branches(model: nn.Module) -> bool:
    """Whether a call leads to code of the model's own that goes one way or another.

    Args:
        model: As for `names_in_code`.
    """
    return any(
        "_IF_" in step.opname or step.opname == "COMPARE_OP" or step.argval in ("min", "max")
        for function in _code(model)
        for code in _nested(function.__code__)
        for step in dis.get_instructions(code)
    )


def _nested(code: CodeType) -> Iterator[CodeType]:
    """A function's code, and those inside it, such as comprehensions."""
    yield code
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from _nested(part)


def _constants(model: nn.Module) -> list[Any]:
    """The constants of the code that a call leads to, and those that its classes and modules hold."""
    functions = _code(model)
    words = {word for function in functions for word in _names(function.__code__)}
    holders = [*_classes(model), *(module for module in model.modules() if not _of_torch(type(module)))]
    attributes = [value for holder in holders for name, value in vars(holder).items() if name in words]
    literals = [x for function in functions for code in _nested(function.__code__) for x in code.co_consts]
    return [*_opened(literals), *_opened(attributes)]


def _opened(values: Iterable[Any]) -> Iterator[Any]:
    for x in values:
        yield from x if isinstance(x, tuple | list | frozenset | set | dict) else [x]


def _classes(model: nn.Module) -> list[type[nn.Module]]:
    """The classes of a model that are not torch's, with their bases."""
    return list(
        dict.fromkeys(
            base
            for module in model.modules()
            for base in type(module).__mro__
            if issubclass(base, nn.Module) and not _of_torch(base)
        )
    )


def _words(model: nn.Module) -> set[str] | None:
    """All names and strings in the code that a call leads to; None where attributes are asked for by other names."""
    if any(_hooked(module) for module in model.modules()):
        return None
    functions = _code(model)
    words = {word for function in functions for word in _names(function.__code__)}
    return None if words & BY_OTHER_NAMES or len(functions) > MOST_FUNCTIONS else words


def _code(model: nn.Module) -> list[FunctionType]:
    """The functions that a call may lead to."""
    modules, classes = list(model.modules()), _classes(model)
    waiting: list[Any] = [vars(base).get("forward") for base in classes]
    waiting += [value for module in modules for value in vars(module).values() if not isinstance(value, nn.Module)]
    words: set[str] = set()
    functions: dict[FunctionType, None] = {}
    while waiting and len(functions) <= MOST_FUNCTIONS:
        for function in _functions(waiting.pop()):
            if function in functions or _of_torch(function):
                continue
            functions[function] = None
            closure = inspect.getclosurevars(function) if function.__closure__ else None
            own = _names(function.__code__)
            waiting += closure.nonlocals.values() if closure else ()
            for name in own - words:
                waiting += [vars(base)[name] for base in classes if name in vars(base)]
            waiting += [function.__globals__[name] for name in own if name in function.__globals__]
            words |= own
    return list(functions)


def _hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _of_torch(x: Callable[..., Any]) -> bool:
    return (getattr(x, "__module__", None) or "").partition(".")[0] in ("torch", "builtins")


def _functions(x: Any) -> Iterator[FunctionType]:
    """The functions that make up a method, a property or a decorated function."""
    if isinstance(x, property):
        parts: list[Any] = [x.fget]
    elif isinstance(x, type) and not _of_torch(x):
        parts = list(vars(x).values())
    else:
        parts = [getattr(x, "__func__", x), getattr(x, "__wrapped__", None), getattr(x, "func", None)]
    yield from (part for part in parts if isinstance(part, FunctionType))


def _names(code: CodeType) -> set[str]:
    """Attributes, globals and strings of a function, and of those inside it."""
    inner = [_names(part) for part in code.co_consts if isinstance(part, CodeType)]
    strings = {part for part in code.co_consts if isinstance(part, str)}
    return set(code.co_names).union(strings, *inner)
