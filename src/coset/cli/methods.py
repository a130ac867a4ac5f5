"""Methods of inference as the command line gives them: a name, and settings as text."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from coset.core.errors import CosetError
from coset.inference.adversarial import Adversarial
from coset.inference.deep_ensemble import DeepEnsemble
from coset.inference.hmc import HMC
from coset.inference.laplace import Laplace
from coset.inference.map import MAP
from coset.inference.sghmc import SGHMC
from coset.inference.sgld import SGLD
from coset.inference.symmetrized_vi import SymmetrizedVI
from coset.inference.vi import VI
from coset.training.loop import Method

METHODS: dict[str, type[Method]] = {
    "map": MAP,
    "vi": VI,
    "symmetrized-vi": SymmetrizedVI,
    "laplace": Laplace,
    "sgld": SGLD,
    "sghmc": SGHMC,
    "hmc": HMC,
    "deep-ensemble": DeepEnsemble,
    "adversarial": Adversarial,
}
_KINDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    NoneType: "none",
    Sequence[float]: "numbers with commas between them",
}
M = TypeVar("M")


def build(name: str, given: Sequence[str]) -> Method:
    """The method `name` with settings NAME=VALUE; those of a method within another are `base.NAME`, and
    those of an attack `attack.NAME`.
    """
    if name not in METHODS:
        raise CosetError(f"There is no method {name!r}{_suggest(name, METHODS)}: choose {', '.join(METHODS)}.")
    return _make(METHODS[name], read(METHODS[name], name, given))


def read(kind: type, name: str, given: Sequence[str], fixed: Collection[str] = ()) -> dict[str, Any]:
    """The settings NAME=VALUE of a dataclass, which messages call `name`, as values; `fixed` ones cannot be set."""
    known = {key: hint for key, hint in _settings(kind).items() if key not in fixed}
    values = _pairs(given)
    for key in values:
        if key not in known:
            raise CosetError(
                f"--set {key}: {name} has no such setting{_suggest(key, known)}, only {', '.join(sorted(known))}."
            )
    return {key: _value(key, text, known[key]) for key, text in values.items()}


def _pairs(given: Sequence[str]) -> dict[str, str]:
    values: dict[str, str] = {}
    for word in given:
        key, equals, text = word.partition("=")
        if not (key and equals and text):
            raise CosetError(f"--set {word!r} cannot be read: write NAME=VALUE, such as epochs=100.")
        if key in values:
            raise CosetError(f"--set {key} is given twice.")
        values[key] = text
    return values


def _settings(kind: type) -> dict[str, Any]:
    """The type of each setting, by name."""
    hints = get_type_hints(kind)
    found: dict[str, Any] = {}
    for field in fields(kind):
        hint = hints[field.name]
        inner = _settings(hint) if is_dataclass(hint) and isinstance(hint, type) else None
        found |= {field.name: hint} if inner is None else {f"{field.name}.{key}": t for key, t in inner.items()}
    return found


def _make(kind: type[M], values: Mapping[str, Any]) -> M:
    """An instance with these values; dots lead into a field that is a dataclass itself."""
    own: dict[str, Any] = {key: value for key, value in values.items() if "." not in key}
    hints = get_type_hints(kind)
    for outer in {key.partition(".")[0] for key in values if "." in key}:
        inner = {key.removeprefix(f"{outer}."): value for key, value in values.items() if key.startswith(f"{outer}.")}
        own[outer] = _make(hints[outer], inner)
    return kind(**own)


def _value(key: str, text: str, hint: Any) -> Any:
    """`text` as a value of the type `hint`: a number, a bool, one of some words, none, or numbers."""
    options = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    for option in options:
        try:
            return _as(text, option)
        except ValueError:
            continue
    words = [word for option in options if get_origin(option) is Literal for word in get_args(option)]
    wanted = " or ".join(words or [_KINDS[option] for option in options])
    raise CosetError(f"--set {key}={text}: {key} must be {wanted}{_suggest(text, words)}.")


def _as(text: str, kind: Any) -> Any:
    if get_origin(kind) is Literal:
        return _choice(text, {word: word for word in get_args(kind)})
    if kind is bool:
        return _choice(text.lower(), {"true": True, "false": False})
    if kind is NoneType:
        return _choice(text.lower(), {"none": None})
    if get_origin(kind) is Sequence:
        return [float(number) for number in text.strip("[]()").split(",") if number]
    return kind(text)


def _choice(text: str, values: Mapping[str, Any]) -> Any:
    if text not in values:
        raise ValueError
    return values[text]


def _suggest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]}?)" if close else ""
