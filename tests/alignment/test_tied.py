"""Tied tensors count once, and a state may leave their second names out, as many checkpoints do."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import coset
from coset.alignment.objective import InnerProduct, Objective
from coset.core import state as states


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.up, self.down = nn.Embedding(20, 6), nn.Linear(6, 9), nn.Linear(9, 6)
        self.head = nn.Linear(6, 20, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embedding(tokens)
        out: Tensor = self.head(h + self.down(nn.functional.gelu(self.up(h))))
        return out


def networks() -> tuple[coset.Symmetry, list[dict[str, Tensor]]]:
    models = []
    for seed in range(2):
        torch.manual_seed(seed)
        models.append(Tied())
    return coset.symmetry(models[0], (torch.randint(20, (2, 5)),)), [states.of(model) for model in models]


def test_either_name_is_enough() -> None:
    sym, (a, b) = networks()
    assert sym.tied == {"head.weight": "embedding.weight"}
    assert coset.Symmetry.from_json(sym.to_json()).tied == sym.tied
    whole = coset.align(a, b, sym)
    for left_out in ("head.weight", "embedding.weight"):
        first, second = ({n: x for n, x in state.items() if n != left_out} for state in (a, b))
        assert sym.missing(first) == []
        assert coset.align(first, second, sym).objective == whole.objective
    assert sym.missing({"up.weight"}) == ["embedding.weight", "up.bias", "down.weight", "down.bias", "head.weight"]


def test_a_tied_tensor_counts_once() -> None:
    sym, (a, b) = networks()
    once = float(states.inner(*({n: x for n, x in state.items() if n != "head.weight"} for state in (a, b))))
    assert abs(Objective(sym, [InnerProduct(a, b)]).value(sym.identity()) - once) < 1e-4
