"""Checks of settings, before any work is done."""

from __future__ import annotations

import math
from numbers import Integral
from typing import get_args, get_type_hints

from coset.core.errors import CosetError


def check_choices(settings: object) -> None:
    """Refuse a word that is none of those its field allows, and a fraction where that is a whole number."""
    for name, hint in get_type_hints(type(settings)).items():
        value = getattr(settings, name)
        if hint is int and not isinstance(value, Integral):
            raise CosetError(f"{type(settings).__name__}: {name} must be a whole number, not {value!r}.")
        choices = get_args(hint)
        if choices and isinstance(choices[0], str) and value not in choices:
            raise CosetError(f"{type(settings).__name__}: {name} must be {' or '.join(choices)}, not {value!r}.")


def check_positive(settings: object, *names: str) -> None:
    """Refuse a number that is not positive and finite; None is no number."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and not 0 < value < math.inf:
            raise CosetError(f"{type(settings).__name__}: {name} must be positive and finite, not {value!r}.")
