"""Rules without verification, as on the meta device: what they claim of odd arguments holds, and no less is claimed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from net_family import Net, lin, par
from oracle import check_function, infer, signature
from torch import Tensor, nn

NUMBERS = torch.linalg.eigvalsh
CASES: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], str]] = {
    "half of any matrix": (lambda w, v: NUMBERS(w), "5"),
    "a difference from its transpose": (lambda w, v: NUMBERS(w - w.t()), "5"),
    "a sum with twice its transpose": (lambda w, v: NUMBERS(w.add(w.t(), alpha=2)), "5"),
    "rows by a softmax": (lambda w, v: NUMBERS((w + w.t()).softmax(-1)), "5"),
    "a sum with its transpose": (lambda w, v: NUMBERS(w + w.t()), "4 5"),
    "products of rows": (lambda w, v: NUMBERS(torch.tanh(w @ w.t())), "4*2 5"),
    "products and ones": (lambda w, v: NUMBERS(v @ v.t() / 5 + torch.eye(4, dtype=v.dtype)), "4*2 5"),
    "a product of both": (lambda w, v: NUMBERS((w + w.t()) * torch.einsum("ij,kj->ik", v, v)), "4 5"),
    "half for a rank": (lambda w, v: torch.linalg.matrix_rank(w, hermitian=True).to(w), "5"),
    "half for an inverse": (lambda w, v: torch.linalg.pinv(w, hermitian=True), "5"),
    "all for an inverse": (lambda w, v: torch.linalg.pinv(w @ w.t(), hermitian=True), "4*2 5"),
    "values above a bound": (lambda w, v: torch.linalg.pinv(w, atol=1.0), "4*2 5"),
    "a clamp the wrong way round": (lambda w, v: w.clamp(1.0, -1.0), "4*2 5"),
}


@pytest.mark.parametrize("name", CASES)
def test_functions_of_weights(name: str) -> None:
    function, groups = CASES[name]

    def forward(m: Net, x: Tensor) -> Tensor:
        return m.b((m.a(x) @ m.w).tanh() @ m.v @ m.v.t()) + (function(m.w, m.v) ** 3).sum()

    parts: dict[str, nn.Module | Tensor] = {"a": lin(3, 4), "w": par(4, 4), "v": par(4, 5), "b": lin(4, 2)}
    model, args, sym = infer(Net(forward, **parts), (torch.randn(3, 3),), verify=False)
    expected = {size: int(times or 1) for size, _, times in (word.partition("*") for word in groups.split())}
    assert signature(sym) == expected
    check_function(model, args, sym)
