"""Checks of constructor arguments: torch builds a layer of width 0 without a word, so we ask first."""

from math import isfinite

from coset.core.errors import ModelError


def require_positive(owner: str, **values: float) -> None:
    """Raise ModelError unless every value is positive and finite."""
    for name, value in values.items():
        if not (isfinite(value) and value > 0):
            raise ModelError(f"{owner}: {name} must be positive, got {value}.")


def require_choice(owner: str, name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise ModelError unless `value` is one of `choices`."""
    if value not in choices:
        raise ModelError(f"{owner}: {name} must be one of {', '.join(choices)}, got {value!r}.")


def require_multiple(owner: str, name: str, value: int, unit_name: str, unit: int) -> None:
    """Raise ModelError unless `value` is a multiple of `unit`."""
    if value % unit:
        raise ModelError(f"{owner}: {name}={value} must be a multiple of {unit_name}={unit}.")
