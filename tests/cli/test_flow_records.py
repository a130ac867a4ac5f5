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
    given = Outer(
        (Inner(3, 0.1), Inner(4, math.inf, -math.inf)),
        torch.tensor([[1, 2], [3, 4]]),
        torch.tensor([1 / 3, math.inf, -math.inf, 2.0], dtype=torch.float64),
        None,
        True,
    )
    found = from_record(Outer, json.loads(json.dumps(to_record(given), allow_nan=False)))
    assert (found.rows, found.absent, found.exact) == (given.rows, None, True)
    assert torch.equal(found.index, given.index) and found.index.dtype == torch.int64
    assert torch.equal(found.values, given.values) and found.values.dtype == torch.float64


@pytest.mark.parametrize("values", [[1.0, 2.0], [math.nan, 1.0]])
def test_a_tensor_alone(values: list[float]) -> None:
    given = torch.tensor(values, dtype=torch.float64)
    found = from_record(Tensor, json.loads(json.dumps(to_record(given), allow_nan=False)))
    assert torch.equal(found.nan_to_num(7.0), given.nan_to_num(7.0)) and found.dtype == torch.float64
