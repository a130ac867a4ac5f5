"""Dataclasses of numbers and tensors as JSON, and back."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor

T = TypeVar("T")


def to_record(x: Any) -> Any:
    """Lists for tensors and tuples, objects for dataclasses; JSON has no infinity, so such numbers are words."""
    if is_dataclass(x):
        return {field.name: to_record(getattr(x, field.name)) for field in fields(x)}
    if isinstance(x, Tensor):
        return to_record(x.tolist())
    if isinstance(x, list | tuple):
        return [to_record(each) for each in x]
    return str(x) if isinstance(x, float) and not math.isfinite(x) else x


def from_record(kind: type[T], x: Any) -> T:
    """What `to_record` was given, as the types of fields say: tensors are of int64 or float64."""
    value: T = _read(kind, x)
    return value


def _read(kind: Any, x: Any) -> Any:
    if NoneType in (choices := get_args(kind)):
        return None if x is None else _read(choices[0], x)
    if kind is Tensor:
        values = np.array(x)
        return torch.from_numpy(values if values.dtype.kind == "i" else values.astype(np.float64))
    if get_origin(kind) is tuple:
        return tuple(_read(choices[0], each) for each in x)
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{field.name: _read(hints[field.name], x[field.name]) for field in fields(kind)})  # type: ignore[operator]
    return kind(x)
