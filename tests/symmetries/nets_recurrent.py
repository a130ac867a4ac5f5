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


def _seq2seq(kind: type[nn.RNNBase], layers: int = 1) -> Callable[[], Sample]:
    """The decoder starts from the last states of the encoder, layer by layer, and gets its output back."""

    def make() -> Sample:
        def forward(m: Net, x: Tensor, y: Tensor) -> Tensor:
            _, state = m.encoder(x)
            rows = []
            token = y[:, :1]
            for _ in range(2):
                out, state = m.decoder(token, state)
                rows.append(m.head(out))
                token = rows[-1]
            return torch.cat(rows, 1)

        parts = {"encoder": kind(5, 3, layers, batch_first=True), "decoder": kind(2, 3, layers, batch_first=True)}
        return Net(forward, **parts, head=lin(3, 2)), (torch.randn(2, 4, 5), torch.randn(2, 3, 2))

    return make


add("seq2seq_lstm", "3", _seq2seq(nn.LSTM))
add("seq2seq_gru_deep", "3*2", _seq2seq(nn.GRU, 2))
add("seq2seq_rnn", "3", _seq2seq(nn.RNN))


def _both_ways(how: str) -> Callable[[], Sample]:
    """A decoder that starts from both directions of an encoder of two layers: from their sum, or joined.

    With a sum the two directions of a layer are tied; joined, the decoder's units are in two blocks.
    """

    def make() -> Sample:
        def forward(m: Net, x: Tensor, y: Tensor) -> Tensor:
            _, last = m.encoder(x)
            forth, back = last[0 : len(last) : 2], last[1 : len(last) : 2]
            first = forth + back if how == "sum" else torch.cat([forth, back], 2)
            out, _ = m.decoder(y, first)
            return m.head(out)

        units = 3 if how == "sum" else 6
        parts = {
            "encoder": nn.GRU(5, 3, 2, batch_first=True, bidirectional=True),
            "decoder": nn.GRU(2, units, 2, batch_first=True),
        }
        return Net(forward, **parts, head=lin(units, 2)), (torch.randn(2, 4, 5), torch.randn(2, 3, 2))

    return make


add("seq2seq_sum_of_directions", "3*2", _both_ways("sum"))
add("seq2seq_joined_directions", "3*4", _both_ways("cat"))


@family("6 4 3*3")
def captioner() -> Sample:
    """States of two layers computed from an image feature by maps of their own: one for both layers' cells."""

    def forward(m: Net, x: Tensor, tokens: Tensor) -> Tensor:
        feature = torch.relu(m.feature(x))
        hidden = torch.tanh(m.hidden(feature)).view(-1, 2, 3).transpose(0, 1).contiguous()
        cell = torch.stack([m.cell0(feature), m.cell1(feature)])
        out, _ = m.core(m.embed(tokens), (hidden, cell))
        return m.head(m.inner(out).relu())

    return Net(
        forward,
        feature=lin(5, 6),
        hidden=lin(6, 6),
        cell0=lin(6, 3),
        cell1=lin(6, 3),
        embed=nn.Embedding(7, 4),
        core=nn.LSTM(4, 3, 2, batch_first=True),
        inner=lin(3, 3),
        head=lin(3, 2),
    ), (torch.randn(2, 5), torch.randint(7, (2, 4)))


@family("4 2")
def lstm_projected_from_learned() -> Sample:
    """Hidden units behind the projection, 2, and cells, 4, have states of their own."""

    def forward(m: Net, x: Tensor) -> Tensor:
        state = (m.h0.expand(1, len(x), -1).contiguous(), m.c0.expand(1, len(x), -1).contiguous())
        return m.head(m.core(x, state)[0])

    parts = {"core": nn.LSTM(5, 4, batch_first=True, proj_size=2), "h0": par(1, 1, 2), "c0": par(1, 1, 4)}
    return Net(forward, **parts, head=lin(2, 3)), (torch.randn(2, 3, 5),)


@family("4")
def gru_without_a_batch() -> Sample:
    def forward(m: Net, x: Tensor) -> Tensor:
        return m.head(m.core(x, m.h0)[0])

    return Net(forward, core=nn.GRU(3, 4), h0=par(1, 4), head=lin(4, 2)), (torch.randn(5, 3),)


@family("")
def gru_from_an_input() -> Sample:
    """The state is an input of the model, so its units are named."""

    def forward(m: Net, x: Tensor, h: Tensor) -> Tensor:
        return m.head(m.core(x, h)[0])

    return Net(forward, core=nn.GRU(3, 4), head=lin(4, 2)), (torch.randn(5, 2, 3), torch.randn(1, 2, 4))


@family("4")
def rnn_relu_from_learned() -> Sample:
    """A positive factor a unit: the state that it starts from takes it."""

    def forward(m: Net, x: Tensor) -> Tensor:
        return m.head(m.core(x, m.h0.repeat(1, x.shape[1], 1))[0])

    return Net(forward, core=nn.RNN(3, 4, nonlinearity="relu"), h0=par(1, 1, 4), head=lin(4, 2)), (
        torch.randn(5, 2, 3),
    )


@family("4*2")
def cells_from_one_zero() -> Sample:
    """Two cells, one above the other, start from the same zeros, which do not tie them."""

    def forward(m: Net, x: Tensor) -> Tensor:
        zero = x.new_zeros(x.shape[0], 4)
        below, above = (zero, zero), zero
        for t in range(x.shape[1]):
            below = m.below(x[:, t], below)
            above = m.above(below[0], above)
        return m.head(above)

    return Net(forward, below=nn.LSTMCell(3, 4), above=nn.GRUCell(4, 4), head=lin(4, 2)), (torch.randn(2, 3, 3),)


@family("4")
def cell_from_learned() -> Sample:
    def forward(m: Net, x: Tensor) -> Tensor:
        h, c = m.h0.expand(len(x), -1), m.c0.expand(len(x), -1)
        for t in range(x.shape[1]):
            h, c = m.core(x[:, t], (h, c))
        return m.head(h)

    return Net(forward, core=nn.LSTMCell(3, 4), h0=par(4), c0=par(4), head=lin(4, 2)), (torch.randn(2, 3, 3),)


def _one_step(step: Callable[[Net, Tensor, Tensor], Tensor], **parts: Any) -> Callable[[], Sample]:
    """A loop over time that these inputs run once, from zeros."""

    def make() -> Sample:
        def forward(m: Net, x: Tensor) -> Tensor:
            h = x.new_zeros(x.shape[0], 4)
            for t in range(x.shape[1]):
                h = step(m, x[:, t], h)
            return m.head(h)

        own = {name: part() for name, part in parts.items()}
        return Net(forward, **own, head=lin(4, 2)), (torch.randn(2, 1, 3),)

    return make


# The first step says nothing of the columns that later ones enter by: the trace of two steps does.
add(
    "one_step_rnn",
    "4",
    _one_step(lambda m, x, h: torch.tanh(m.a(x) + m.u(h)), a=lambda: lin(3, 4), u=lambda: lin(4, 4)),
)
add("one_step_joined", "4", _one_step(lambda m, x, h: torch.tanh(m.a(torch.cat([x, h], 1))), a=lambda: lin(7, 4)))
add("one_step_cell", "4", _one_step(lambda m, x, h: m.core(x, h), core=lambda: nn.RNNCell(3, 4)))
add(
    "one_step_normed",
    "4",
    _one_step(
        lambda m, x, h: torch.relu(m.a(torch.cat([h, x], 1))),
        a=lambda: torch.nn.utils.parametrizations.weight_norm(lin(7, 4)),
    ),
)
# Here the state is also added to what it becomes, which says it.
add(
    "one_step_leaky",
    "4",
    _one_step(lambda m, x, h: h + 0.1 * (torch.tanh(m.a(x) + m.u(h)) - h), a=lambda: lin(3, 4), u=lambda: lin(4, 4)),
)
