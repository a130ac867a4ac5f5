"""Which attributes the code of a model's own classes asks for when it is called.

A layer that an older version has left behind is in the state, and no call can reach it: no method that `forward` leads
to says its name. Where code looks attributes up by names that it makes, nothing can be told.
"""

from __future__ import annotations

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


def _words(model: nn.Module) -> set[str] | None:
    """All names and strings in the code that a call leads to; None where attributes are asked for by other names."""
    modules = list(model.modules())
    if any(_hooked(module) for module in modules):
        return None
    classes = dict.fromkeys(
        base
        for module in modules
        for base in type(module).__mro__
        if issubclass(base, nn.Module) and not _of_torch(base)
    )
    waiting: list[Any] = [vars(base).get("forward") for base in classes]
    waiting += [value for module in modules for value in vars(module).values() if not isinstance(value, nn.Module)]
    words: set[str] = set()
    functions: set[FunctionType] = set()
    while waiting:
        for function in _functions(waiting.pop()):
            if function in functions or _of_torch(function):
                continue
            functions.add(function)
            closure = inspect.getclosurevars(function) if function.__closure__ else None
            own = _names(function.__code__)
            waiting += closure.nonlocals.values() if closure else ()
            for name in own - words:
                waiting += [vars(base)[name] for base in classes if name in vars(base)]
            waiting += [function.__globals__[name] for name in own if name in function.__globals__]
            words |= own
    return None if words & BY_OTHER_NAMES or len(functions) > MOST_FUNCTIONS else words


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
