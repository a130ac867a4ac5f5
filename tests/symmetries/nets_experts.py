"""Mixtures of experts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from net_family import Net, Sample, add, family, lin, par, seq
from torch import Tensor, nn


def _moe(mix: Callable[[Net, Tensor, Tensor], Tensor], parts: Callable[[], dict[str, Any]]) -> Callable[[], Sample]:
    def make() -> Sample:
        def forward(m: Net, x: Tensor) -> Tensor:
            x = m.embed(x)
            return m.head(x + mix(m, x, m.router(x)))

        return Net(forward, embed=lin(2, 4), router=lin(4, 3), head=lin(4, 2), **parts()), (torch.randn(6, 2),)

    return make


def _stacked_experts() -> dict[str, Any]:
    return {"w1": par(3, 5, 4), "b1": par(3, 5), "w2": par(3, 4, 5)}


def _dense(m: Net, x: Tensor, logits: Tensor) -> Tensor:
    hidden = F.gelu(torch.einsum("nd,ehd->neh", x, m.w1) + m.b1)
    return torch.einsum("ne,neh,edh->nd", logits.softmax(-1), hidden, m.w2)


def _dense_bmm(m: Net, x: Tensor, logits: Tensor) -> Tensor:
    rows = x.expand(3, *x.shape)
    hidden = F.gelu(torch.bmm(rows, m.w1.transpose(1, 2)) + m.b1[:, None])
    return (torch.bmm(hidden, m.w2.transpose(1, 2)) * logits.softmax(-1).t()[..., None]).sum(0)


def _top_one_hot(m: Net, x: Tensor, logits: Tensor) -> Tensor:
    values, places = logits.softmax(-1).topk(2, -1)
    weights = (F.one_hot(places, 3).to(values.dtype) * values[..., None]).sum(1)
    hidden = F.gelu(torch.einsum("nd,ehd->neh", x, m.w1) + m.b1)
    return torch.einsum("ne,neh,edh->nd", weights, hidden, m.w2)


def _top_scatter(m: Net, x: Tensor, logits: Tensor) -> Tensor:
    values, places = logits.softmax(-1).topk(2, -1)
    weights = torch.zeros_like(logits).scatter(1, places, values / values.sum(-1, keepdim=True))
    hidden = F.gelu(torch.einsum("nd,ehd->neh", x, m.w1) + m.b1)
    return torch.einsum("ne,neh,edh->nd", weights, hidden, m.w2)


def _top_gather(m: Net, x: Tensor, logits: Tensor) -> Tensor:
    """Weights of the chosen experts are looked up by their number."""
    values, places = logits.softmax(-1).topk(2, -1)
    hidden = F.gelu(torch.einsum("nd,nkhd->nkh", x, m.w1[places]) + m.b1[places])
    return torch.einsum("nk,nkh,nkdh->nd", values, hidden, m.w2[places])


def _loop_modules(m: Net, x: Tensor, logits: Tensor) -> Tensor:
    weights = logits.softmax(-1)
    return sum(weights[:, k : k + 1] * expert(x) for k, expert in enumerate(m.experts))  # type: ignore[return-value]


def _loop_stacked(m: Net, x: Tensor, logits: Tensor) -> Tensor:
    weights = logits.softmax(-1)
    total = torch.zeros_like(x)
    for k in range(3):
        total = total + weights[:, k, None] * F.linear(F.gelu(F.linear(x, m.w1[k], m.b1[k])), m.w2[k])
    return total


def _loop_top(m: Net, x: Tensor, logits: Tensor) -> Tensor:
    values, places = logits.softmax(-1).topk(2, -1)
    total = torch.zeros_like(x)
    for k, expert in enumerate(m.experts):
        total = total + ((places == k) * values).sum(-1, keepdim=True) * expert(x)
    return total


def _expert_list() -> dict[str, Any]:
    return {"experts": nn.ModuleList([seq(lin(4, 5), nn.GELU(), lin(5, 4)) for _ in range(3)])}


add("moe_dense_einsum", "4 3 5/3", _moe(_dense, _stacked_experts))
add("moe_dense_bmm", "4 3 5/3", _moe(_dense_bmm, _stacked_experts))
add("moe_top_one_hot", "4 3 5/3", _moe(_top_one_hot, _stacked_experts))
add("moe_top_scatter", "4 3 5/3", _moe(_top_scatter, _stacked_experts))
# The inner order may be another for each expert here too, but the looked-up weights are indexed by rank.
add("moe_top_gather", "4 3 5/3", _moe(_top_gather, _stacked_experts))
add("moe_loop_modules", "4 5*3", _moe(_loop_modules, _expert_list))
add("moe_loop_top", "4 5*3", _moe(_loop_top, _expert_list))
add(
    "moe_loop_stacked",
    None,
    _moe(_loop_stacked, _stacked_experts),
    log_order=math.lgamma(5) + 3 * math.lgamma(6),
)


@family("5/4 6 3/4")
def weights_of_a_label() -> Sample:
    """Each label has layers of its own, looked up in tables: its hidden units are free, beside those of the others."""

    def forward(m: Net, x: Tensor, labels: Tensor) -> Tensor:
        for table in (m.first, m.second, m.third):
            x = torch.einsum("bi,bio->bo", x, table[labels]).tanh()
        return m.out(x)

    tables = {"first": par(4, 2, 5), "second": par(4, 5, 3), "third": par(4, 3, 6)}
    return Net(forward, **tables, out=lin(6, 2)), (torch.randn(7, 2), torch.randint(4, (7,)))
