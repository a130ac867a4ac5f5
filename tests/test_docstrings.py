"""`help` explains every public name: all arguments, and an example that runs.

Examples may use the names of `namespace` without making them; the reference says so at its head.
"""

from __future__ import annotations

import doctest
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import coset
from coset import assignment, data, plot, zoo

DUNDERS = ("__call__", "__matmul__", "__getitem__")


def public() -> Iterator[tuple[str, Any]]:
    """The functions and classes that users call, with the name they call them by."""
    for name in coset.__all__:
        yield f"coset.{name}", getattr(coset, name)
    for room in (assignment, coset.state, data, plot, zoo):
        for name in room.__all__:
            yield f"{room.__name__}.{name}", getattr(room, name)


def documented() -> list[Any]:
    """Each function and class once, and the public methods of classes."""
    objects: dict[int, Any] = {}
    for name, thing in public():
        if not (inspect.isfunction(thing) or inspect.isclass(thing)) or not thing.__module__.startswith("coset."):
            continue
        objects.setdefault(id(thing), pytest.param(thing, True, id=name))
        if inspect.isclass(thing) and not issubclass(thing, Exception):
            for key, value in vars(thing).items():
                # Of a class, so that it has the docstring of the method it overrides.
                method = getattr(thing, key) if isinstance(value, classmethod | staticmethod) else value
                if inspect.isroutine(method) and (not key.startswith("_") or key in DUNDERS):
                    objects.setdefault(id(method), pytest.param(method, False, id=f"{name}.{key}"))
    return list(objects.values())


def arguments(thing: Any) -> list[str]:
    """The names that a caller gives."""
    if inspect.isclass(thing) and issubclass(thing, Exception):
        return []
    try:
        parameters = inspect.signature(thing).parameters
    except ValueError:  # of a class without a constructor of its own
        return []
    return [name for name in parameters if name not in ("self", "cls") and not name.startswith("_")]


def sections(thing: Any) -> dict[str, str]:
    """The sections of a docstring in Google style by name; of a class with those of its constructor."""
    text = inspect.getdoc(thing) or ""
    if inspect.isclass(thing) and "__init__" in vars(thing):
        text += "\n" + (inspect.getdoc(thing.__init__) or "")
    parts = re.split(r"^(Args|Returns|Raises|Example|Yields):\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.fixture(scope="module")
def namespace() -> dict[str, Any]:
    """What examples may use: two trained networks, their model, data and symmetry, a posterior, a population."""
    torch.manual_seed(0)
    digits = data.load("digits")
    model = zoo.build("mlp:64-16-10")
    a, b = coset.fit(model, digits.train, coset.MAP(epochs=3), replicas=2)
    sym = coset.symmetry(model, (digits.test.inputs[:2],))
    (posterior,) = coset.fit(model, digits.train, coset.VI(epochs=1))
    population = coset.collect(model, digits.train, 8, coset.Collect(epochs=1))
    names = {"model": model, "digits": digits, "a": a, "b": b, "sym": sym}
    return {"coset": coset, "torch": torch, "posterior": posterior, "population": population, **names}


@pytest.mark.parametrize("thing", [pytest.param(one.values[0], id=one.id) for one in documented()])
def test_every_argument_is_explained(thing: Any) -> None:
    summary = (inspect.getdoc(thing) or "").split("\n\n")[0]
    assert summary, "has no docstring"
    text = sections(thing).get("Args", "")
    explained = re.findall(r"^ {4}\*{0,2}(\w+)(?: \([^)]*\))?:", text, flags=re.MULTILINE)
    missing = [name for name in arguments(thing) if name not in explained]
    assert not missing, f"Args: lacks {', '.join(missing)}"
    unknown = [name for name in explained if name not in arguments(thing)]
    assert not unknown, f"Args: names {', '.join(unknown)}, which it does not take"


@pytest.mark.parametrize("thing", [pytest.param(one.values[0], id=one.id) for one in documented() if one.values[1]])
def test_examples_run(thing: Any, namespace: dict[str, Any], tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if inspect.isclass(thing) and issubclass(thing, Exception):
        return
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    text = inspect.getdoc(thing) or ""
    if inspect.isclass(thing) and ">>>" not in text:
        text = inspect.getdoc(thing.__init__) or ""
    examples = doctest.DocTestParser().get_doctest(text, dict(namespace), thing.__qualname__, None, 0)
    assert examples.examples, "has no example"
    output: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    runner.run(examples, out=output.append)
    assert runner.failures == 0, "".join(output)
