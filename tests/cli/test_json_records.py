"""Results as JSON and back."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from coset.cli.json_records import from_record, to_record


@dataclass(frozen=True)
class Inner:
    count: int
    size: float
    rate: float | None = None


@dataclass(frozen=True, eq=False)
class Outer:
    rows: tuple[Inner, ...]
    index: Tensor
    values: Tensor
    absent: Tensor | None
    exact: bool


def test_there_and_back() -> None:
    value = Outer(
        (Inner(3, 0.1), Inner(4, math.inf, -math.inf)),
        torch.tensor([[1, 2], [3, 4]]),
        torch.tensor([1 / 3, math.inf, -math.inf, 2.0], dtype=torch.float64),
        None,
        True,
    )
    copy = from_record(Outer, json.loads(json.dumps(to_record(value), allow_nan=False)))
    assert (copy.rows, copy.absent, copy.exact) == (value.rows, None, True)
    assert torch.equal(copy.index, value.index) and copy.index.dtype == torch.int64
    assert torch.equal(copy.values, value.values) and copy.values.dtype == torch.float64


@pytest.mark.parametrize("values", [[1.0, 2.0], [math.nan, 1.0]])
def test_a_tensor_alone(values: list[float]) -> None:
    value = torch.tensor(values, dtype=torch.float64)
    copy = from_record(Tensor, json.loads(json.dumps(to_record(value), allow_nan=False)))
    assert torch.equal(copy.nan_to_num(7.0), value.nan_to_num(7.0)) and copy.dtype == torch.float64
