"""JSON from files of anybody: bounded before it is used, and read field by field, so that each fault is one sentence.

What `json` alone lets through or raises about: nesting that overflows the stack, numbers of any length, NaN and
infinities, a key twice, half a character. Here all of these are faults of the text, as a missing comma is.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from coset.core.errors import CosetError, StateError
from coset.core.files import Fault, require_file

DEPTH = 64  # of lists and objects in one another
DIGITS = 20  # of a whole number: those of 64 bits, the largest seed
BYTES = 2**26  # of a file of JSON
WORD = 60  # characters of what a file says that are repeated in a message


class _FaultError(ValueError):
    """What is wrong with a text that `json` takes."""


def parse(text: str, where: str, error: Fault = StateError) -> Any:
    """The value of a JSON text that may come from anybody.

    where: what the text is, at the beginning of the sentence that says what is wrong with it. error: of that sentence.
    """
    try:
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_int=_whole,
            parse_float=_number,
            parse_constant=_number,
        )
        _check(value)
    except RecursionError:
        raise error(f"{where} is JSON that is nested more than {DEPTH} times.") from None
    except json.JSONDecodeError as fault:
        raise error(f"{where} is not JSON (line {fault.lineno}: {fault.msg}).") from None
    except _FaultError as fault:
        raise error(f"{where} is JSON {fault}.") from None
    return value


def read(path: Path, where: str | None = None, error: Fault = StateError) -> Any:
    """The value of a file of JSON; `where` is for messages, the path if None."""
    return parse(read_text(path, error), where or str(path), error)


def read_text(path: Path, error: Fault = StateError) -> str:
    """The text of a file, refused if it is none or larger than any that is read for its JSON."""
    try:
        require_file(path, error)
        if path.stat().st_size > BYTES:
            raise error(f"{path} is larger than {BYTES >> 20} MiB, and no file of this kind is.")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise error(f"{path} is not text in UTF-8.") from None
    except OSError as fault:
        raise error(f"{path} cannot be read: {fault.strerror or fault}.") from fault


def shown(value: object) -> str:
    """A value of a file as a message repeats it: short, and in characters that a terminal prints."""
    text = ascii(value) if not isinstance(value, str) else repr(value)
    return text if len(text) <= WORD else f"{text[: WORD - 3]}..."


class JsonObject(Mapping[str, Any]):
    """An object of JSON whose fields are asked for by type: what is missing or of another type is named.

    where: what the object is, at the beginning of the sentences. error: of those.
    """

    def __init__(self, value: object, where: str, error: Fault = StateError) -> None:
        self.where, self.error = where, error
        if not isinstance(value, dict):
            raise error(f"{where} is {shown(value)} and no JSON object.")
        self._values: dict[str, Any] = value

    def __getitem__(self, name: str) -> Any:
        """Of any type."""
        if name not in self._values:
            raise self.error(f"{self.where} has no {name!r}.")
        return self._values[name]

    def __contains__(self, name: object) -> bool:
        return name in self._values  # the inherited test looks for a KeyError

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def text(self, name: str, choices: Sequence[str] = ()) -> str:
        """One of the choices, if there are some."""
        value = self[name]
        if not isinstance(value, str) or (choices and value not in choices):
            raise self._fault(name, " or ".join(choices) or "a text")
        return value

    def whole(self, name: str, least: int = 0) -> int:
        """A whole number that fits 64 bits with a sign."""
        value = self[name]
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**63:
            raise self._fault(name, f"a whole number from {least}")
        return value

    def number(self, name: str) -> float:
        """A number; all are finite."""
        value = self[name]
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self._fault(name, "a number")
        return float(value)

    def optional_number(self, name: str) -> float | None:
        """None where the field is null or missing."""
        return None if self._values.get(name) is None else self.number(name)

    def flag(self, name: str) -> bool:
        """True or false."""
        value = self[name]
        if not isinstance(value, bool):
            raise self._fault(name, "true or false")
        return value

    def items_of(self, name: str) -> list[Any]:
        """A list of anything."""
        value = self[name]
        if not isinstance(value, list):
            raise self._fault(name, "a list")
        return value

    def texts(self, name: str) -> list[str]:
        """A list of texts, each there once."""
        value = self.items_of(name)
        if not all(isinstance(item, str) for item in value):
            raise self._fault(name, "a list of texts")
        if len(set(value)) < len(value):
            raise self._fault(name, "a list that names nothing twice")
        return value

    def object(self, name: str) -> JsonObject:
        """An object within this one."""
        return JsonObject(self[name], f"{name!r} of {self.where}", self.error)

    def objects(self, name: str) -> list[JsonObject]:
        """A list of objects."""
        where = f"{name!r} of {self.where}"
        return [JsonObject(item, f"item {k} of {where}", self.error) for k, item in enumerate(self.items_of(name))]

    def series(self, name: str) -> list[float]:
        """A list of numbers."""
        value = self.items_of(name)
        if not all(isinstance(item, int | float) and not isinstance(item, bool) for item in value):
            raise self._fault(name, "a list of numbers")
        return [float(item) for item in value]

    def numbers(self, name: str) -> dict[str, float]:
        """An object that holds numbers only."""
        inner = self.object(name)
        return {key: inner.number(key) for key in inner}

    def names(self, name: str) -> dict[str, str]:
        """An object that holds texts only."""
        inner = self.object(name)
        return {key: inner.text(key) for key in inner}

    def _fault(self, name: str, expected: str) -> CosetError:
        return self.error(f"{name!r} of {self.where} is {shown(self._values[name])} and not {expected}.")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise _FaultError(f"that has {shown(name)} twice in one object")
    return result


def _whole(digits: str) -> int:
    if len(digits) > DIGITS:
        raise _FaultError(f"with a whole number of {len(digits)} digits")
    return int(digits)


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _FaultError(f"with the number {shown(text)}, which is not finite")
    return value


def _check(value: Any) -> None:
    """Refuse deep nesting, which other code goes through by recursion, and text that no file could hold."""
    level = [value]
    for _ in range(DEPTH + 1):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inner += item.keys()
                inner += item.values()
            elif isinstance(item, list):
                inner += item
            elif isinstance(item, str) and not item.isascii():
                try:
                    item.encode()
                except UnicodeEncodeError:
                    raise _FaultError(f"with half a character in {ascii(item)[:WORD]}") from None
        level = inner
        if not level:
            return
    raise RecursionError
