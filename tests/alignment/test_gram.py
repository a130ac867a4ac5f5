"""Inner products of slices, against einsum, also in pieces."""

from __future__ import annotations

import pytest
import torch

from coset.alignment import objective as room
from coset.alignment.objective import gram, inner


@pytest.mark.parametrize("piece", [7, 2**24])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_gram(piece: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "PIECE", piece)
    a, b = (torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(k)).to(dtype) for k in (0, 1))
    wide = (a.double(), b.double())
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    cases = {
        ((), (1,)): torch.einsum("aibc,ajbc->ij", *wide)[None],
        ((0,), (2,)): torch.einsum("abic,abjc->aij", *wide),
        ((3, 0), (1,)): torch.einsum("ainb,ajnb->baij", *wide).flatten(0, 1),
        ((0,), (1, 2)): torch.einsum("aimb,ajnb->aimjn", *wide).reshape(2, 12, 12),
    }
    for (batch, units), expected in cases.items():
        product = gram(a, b, batch, units)
        assert product.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        torch.testing.assert_close(product.double(), expected, rtol=tolerance, atol=tolerance)
    assert inner(a, b) == pytest.approx(float((wide[0] * wide[1]).sum()), rel=1e-4)


def test_a_vector() -> None:
    a, b = torch.randn(4), torch.randn(4)
    assert torch.allclose(gram(a, b, (), (0,))[0], torch.outer(a, b))
