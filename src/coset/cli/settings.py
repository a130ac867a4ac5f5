"""Settings that the command line gives as NAME=VALUE or as options of their own, read by the types of a dataclass."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from coset.core.errors import CosetError

_TYPES = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    NoneType: "none",
    Sequence[float]: "numbers with commas between them",
}
M = TypeVar("M")


def read(
    kind: type,
    owner: str,
    words: Sequence[str],
    options: Mapping[str, Any] | None = None,
    fixed: Collection[str] = (),
) -> dict[str, Any]:
    """Values by name, as `build` takes them: those of NAME=VALUE, and those of options that are not None.

    kind: the dataclass that has the settings, which messages call `owner`. fixed: settings that cannot be set.
    """
    hints = {name: hint for name, hint in _hints(kind).items() if name not in fixed}
    values: dict[str, Any] = {}
    for name, text in _pairs(words).items():
        if name not in hints:
            raise CosetError(
                f"--set {name}: {owner} has no such setting{suggestion(name, hints)}, only {', '.join(sorted(hints))}."
            )
        values[name] = _value(name, text, hints[name])
    for name, value in (options or {}).items():
        if value is None:
            continue
        if name in values:
            raise CosetError(f"{name} is given twice, by --set and by an option of its own: leave one out.")
        _check_word(name, value, hints[name])
        values[name] = value
    return values


def build(kind: type[M], values: Mapping[str, Any]) -> M:
    """An instance with these values; dots lead into a field that is a dataclass itself."""
    own: dict[str, Any] = {name: value for name, value in values.items() if "." not in name}
    hints = get_type_hints(kind)
    for outer in {name.partition(".")[0] for name in values if "." in name}:
        prefix = f"{outer}."
        inner = {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}
        own[outer] = build(hints[outer], inner)
    return kind(**own)


def choice(option: str, text: str, choices: Iterable[str]) -> Any:
    """The text, refused by the name of its option unless it is one of the choices."""
    choices = list(choices)
    if text not in choices:
        raise CosetError(f"{option} must be {' or '.join(choices)}, not {text!r}{suggestion(text, choices)}.")
    return text


def suggestion(name: str, choices: Iterable[str]) -> str:
    """` (did you mean NAME?)`, if one of the choices is close."""
    close = difflib.get_close_matches(name, list(choices), n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def _check_word(name: str, value: object, hint: Any) -> None:
    """Refuse a text that is none of the words of the type, by the name of its option."""
    words = _words(hint)
    if words and isinstance(value, str):
        choice(f"--{name.replace('_', '-')}", value, words)


def _pairs(words: Sequence[str]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not (name and equals and text):
            raise CosetError(f"--set {word!r} cannot be read: write NAME=VALUE, such as epochs=100.")
        if name in texts:
            raise CosetError(f"--set {name} is given twice.")
        texts[name] = text
    return texts


def _hints(kind: type) -> dict[str, Any]:
    """The type of each setting, by name."""
    hints = get_type_hints(kind)
    names: dict[str, Any] = {}
    for field in fields(kind):
        hint = hints[field.name]
        inner = _hints(hint) if is_dataclass(hint) and isinstance(hint, type) else None
        names |= {field.name: hint} if inner is None else {f"{field.name}.{name}": t for name, t in inner.items()}
    return names


def _value(name: str, text: str, hint: Any) -> Any:
    """`text` as a value of the type `hint`: a number, a bool, one of some words, none, or numbers."""
    types = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    for one in types:
        try:
            return _as(text, one)
        except ValueError:
            continue
    words = _words(hint)
    expected = " or ".join(words or [_TYPES[one] for one in types])
    raise CosetError(f"--set {name}={text}: {name} must be {expected}{suggestion(text, words)}.")


def _words(hint: Any) -> list[str]:
    types = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    return [word for one in types if get_origin(one) is Literal for word in get_args(one)]


def _as(text: str, kind: Any) -> Any:
    if get_origin(kind) is Literal:
        return _word(text, {word: word for word in get_args(kind)})
    if kind is bool:
        return _word(text.lower(), {"true": True, "false": False})
    if kind is NoneType:
        return _word(text.lower(), {"none": None})
    if get_origin(kind) is Sequence:
        return [float(number) for number in text.strip("[]()").split(",") if number]
    return kind(text)


def _word(text: str, values: Mapping[str, Any]) -> Any:
    if text not in values:
        raise ValueError
    return values[text]
