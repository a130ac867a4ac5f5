"""Recurrent and state-space nets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from net_family import Net, Sample, add, family, lin, par
from nets_language import RMSNorm
from torch import Tensor, nn


def _recurrent(kind: Callable[..., nn.Module], **options: Any) -> Callable[[], Sample]:
    def make() -> Sample:
        def forward(m: Net, x: Tensor) -> Tensor:
            y, last = m.core(m.embed(x))
            last = last[0] if isinstance(last, tuple) else last
            return torch.cat([m.head(y).flatten(1), m.last(last.transpose(0, 1).flatten(1))], 1)

        core = kind(4, 3, batch_first=True, **options)
        out = options.get("proj_size", 3) * (2 if options.get("bidirectional") else 1)
        rows = out * options.get("num_layers", 1)
        return Net(forward, embed=lin(5, 4), core=core, head=lin(out, 2), last=lin(rows, 2)), (torch.randn(2, 4, 5),)

    return make


add("lstm", "4 3", _recurrent(nn.LSTM))
add("lstm_deep_both", "4 3*4", _recurrent(nn.LSTM, num_layers=2, bidirectional=True))
add("lstm_projected", "4 3*4 2*4", _recurrent(nn.LSTM, num_layers=2, bidirectional=True, proj_size=2))
add("gru", "4 3", _recurrent(nn.GRU))
add("gru_deep_both", "4 3*4", _recurrent(nn.GRU, num_layers=2, bidirectional=True, bias=False))
add("rnn_tanh", "4 3", _recurrent(nn.RNN))
add("rnn_relu_deep_both", "4 3*4", _recurrent(nn.RNN, num_layers=2, bidirectional=True, nonlinearity="relu"))


def _cell(kind: type[nn.Module]) -> Callable[[], Sample]:
    def make() -> Sample:
        def forward(m: Net, x: Tensor) -> Tensor:
            h = x.new_zeros(x.shape[0], 3)
            state = (h, h) if kind is nn.LSTMCell else h
            for t in range(x.shape[1]):
                state = m.core(x[:, t], state)
            return m.head(state[0] if kind is nn.LSTMCell else state)

        return Net(forward, core=kind(5, 3), head=lin(3, 2)), (torch.randn(2, 3, 5),)

    return make


add("lstm_cell", "3", _cell(nn.LSTMCell))
add("gru_cell", "3", _cell(nn.GRUCell))
add("rnn_cell", "3", _cell(nn.RNNCell))


@family("5 4 3 2")
def mamba() -> Sample:
    """A selective state space: 4 channels, 3 states shared by the channels, rank-2 steps."""

    def forward(m: Net, x: Tensor) -> Tensor:
        x = m.embed(x)
        u, z = m.inner(m.norm(x)).chunk(2, -1)
        u = F.silu(m.conv(u.transpose(1, 2))[..., : u.shape[1]].transpose(1, 2))
        rank, b, c = m.select(u).split([2, 3, 3], -1)
        step = F.softplus(m.step(rank))
        a = -torch.exp(m.a_log)
        state, rows = u.new_zeros(u.shape[0], 4, 3), []
        for t in range(u.shape[1]):
            state = torch.exp(step[:, t, :, None] * a) * state + (step * u)[:, t, :, None] * b[:, t, None]
            rows.append((state * c[:, t, None]).sum(-1))
        y = (torch.stack(rows, 1) + u * m.d) * F.silu(z)
        return m.head(x + m.out(y))

    return Net(
        forward,
        embed=lin(3, 5),
        norm=RMSNorm(5),
        inner=lin(5, 8),
        conv=nn.Conv1d(4, 4, 2, padding=1, groups=4),
        select=lin(4, 8),
        step=lin(2, 4),
        a_log=par(4, 3),
        d=par(4),
        out=lin(4, 5),
        head=lin(5, 2),
    ), (torch.randn(2, 3, 3),)
