"""Small models with an example each, whose groups are known."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from net_family import Net, conv, image, lin, seq
from torch import Tensor, nn

Sample = tuple[nn.Module, tuple[Any, ...]]


def mlp() -> Sample:
    return seq(lin(3, 4), nn.GELU(), lin(4, 5), nn.GELU(), lin(5, 2)), (torch.randn(4, 3),)


def relu_mlp() -> Sample:
    return seq(lin(3, 4), nn.ReLU(), lin(4, 2)), (torch.randn(8, 3),)


def batch_normed() -> Sample:
    return seq(conv(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), conv(4, 2, 1)), (image(),)


def attention() -> Sample:
    def forward(m: Net, x: Tensor) -> Tensor:
        q, k, v = (p(x).view(2, 5, 2, 4).transpose(1, 2) for p in (m.q, m.k, m.v))
        return m.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 5, 8))

    return Net(forward, q=lin(3, 8), k=lin(3, 8), v=lin(3, 8), o=lin(8, 2)), (torch.randn(2, 5, 3),)
