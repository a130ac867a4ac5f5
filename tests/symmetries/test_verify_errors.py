"""What cannot be verified is said in one sentence."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from net_family import Net, lin
from oracle import deviation, randomise, signature
from samples import mlp
from torch import Tensor, nn

import coset
from coset import SymmetryError


def one_sentence(error: BaseException) -> str:
    text = str(error)
    assert "\n" not in text
    assert len(text) < 500
    return text


def test_a_model_that_cannot_be_traced() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = lin(3, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x) if float(x.sum()) > 0 else -self.a(x)

    with pytest.raises(SymmetryError) as caught:
        coset.symmetry(Branching(), (torch.randn(2, 3),))
    assert "Branching" in one_sentence(caught.value)


@pytest.mark.parametrize("mask", ["select", "nonzero"])
def test_sizes_that_depend_on_the_data(mask: str) -> None:
    """Either fixed or refused in a sentence, but no crash."""

    def forward(m: Net, x: Tensor) -> Tensor:
        h = F.gelu(m.a(x))
        if mask == "select":
            return m.b(h) + h[h > 0].sum()
        return m.b(h).index_select(0, torch.nonzero(x[:, 0] > -9).flatten()).sum(0)

    model, args = Net(forward, a=lin(3, 4), b=lin(4, 2)), (torch.randn(5, 3),)
    try:
        sym = coset.symmetry(model, args)
    except SymmetryError as error:
        one_sentence(error)
    else:
        model = randomise(model)
        image = sym.act(sym.random(), model.state_dict())
        assert deviation(model, (args[0].double(),), image) < 1e-9


def test_strict_names_the_op() -> None:
    model = Net(lambda m, x: m.b(torch.special.bessel_j0(m.a(x))), a=lin(3, 4), b=lin(4, 2))
    args = (torch.randn(4, 3),)
    with pytest.raises(SymmetryError, match="bessel_j0"):
        coset.symmetry(model, args, strict=True)
    sym = coset.symmetry(model, args)
    assert any(f.tensor == "a.weight" and "bessel_j0" in f.op for f in sym.fixed)
    assert coset.symmetry(mlp()[0], mlp()[1], strict=True).groups


def test_strict_is_quiet_where_nothing_is_lost() -> None:
    """An unknown op on the input touches nothing that could move."""
    model = Net(lambda m, x: m.b(F.gelu(m.a(torch.fft.rfft(x).abs()))), a=lin(2, 4), b=lin(4, 2))
    assert signature(coset.symmetry(model, (torch.randn(4, 3),), strict=True)) == {"4": 1}


def test_wrong_inputs_are_said() -> None:
    model, _ = mlp()
    with pytest.raises(SymmetryError) as caught:
        coset.symmetry(model, (torch.randn(4, 5),))
    one_sentence(caught.value)
