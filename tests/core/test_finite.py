"""`is_finite`: every NaN and infinity is found, wherever it is, in every kind of tensor."""

import math

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from coset.core.state import finite_rows, is_finite

REAL = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2)


@given(st.integers(1, 300), st.data(), st.sampled_from(REAL), st.sampled_from([math.nan, math.inf, -math.inf]))
def test_one_bad_value_is_found(size: int, data: st.DataObject, dtype: torch.dtype, bad: float) -> None:
    x = torch.linspace(-1, 1, size)
    assert is_finite(x.to(dtype))
    x[data.draw(st.integers(0, size - 1))] = bad
    for view in (x, x.expand(3, -1).T, x.repeat_interleave(2)[::2]):
        assert not is_finite(view.to(dtype))


@pytest.mark.parametrize("bad", [complex(math.nan, 0), complex(0, math.inf)])
def test_of_complex_numbers_both_parts_count(bad: complex) -> None:
    x = torch.ones(5, dtype=torch.complex64)
    assert is_finite(x) and is_finite(x.conj())
    x[3] = bad
    assert not is_finite(x) and not is_finite(x.conj())


@pytest.mark.parametrize(
    "x",
    [
        torch.zeros(0),
        torch.zeros(2, 0),
        torch.tensor(torch.finfo(torch.float32).max),
        torch.tensor([1, 2]),
        torch.tensor([True]),
        torch.ones(2, requires_grad=True),
    ],
)
def test_what_cannot_be_infinite_is_not(x: Tensor) -> None:
    assert is_finite(x)


@given(st.integers(2, 5), st.data(), st.sampled_from([*REAL, torch.complex64]))
def test_each_row_for_itself(rows: int, data: st.DataObject, dtype: torch.dtype) -> None:
    x = torch.linspace(-1, 1, rows * 6).view(rows, 2, 3)
    bad = data.draw(st.integers(0, rows - 1))
    x[bad, 1, data.draw(st.integers(0, 2))] = math.nan
    assert finite_rows(x.to(dtype)).tolist() == [row != bad for row in range(rows)]
    assert finite_rows(torch.zeros(rows, 0)).all() and finite_rows(torch.zeros(rows, dtype=torch.int64)).all()
