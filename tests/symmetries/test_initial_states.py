"""Recurrent layers from any initial state: the units are found, and hold at other lengths, batches and states."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from net_family import Net, lin, names, par
from nets import FAMILIES
from oracle import check_function, expect, infer, signature
from torch import Tensor, nn

UNITS = 3
CELLS = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}
State = Callable[[Net, Tensor, int], Tensor]


def zeros(m: Net, x: Tensor, rows: int) -> Tensor:
    return torch.zeros(rows, len(x), UNITS, dtype=x.dtype)


def zeros_by_moves(m: Net, x: Tensor, rows: int) -> Tensor:
    row = x.new_zeros(1, UNITS).repeat(len(x), 1).unsqueeze(0)
    return torch.cat([row.detach().clone()] * rows, 0).to(x.dtype)


def zeros_stacked(m: Net, x: Tensor, rows: int) -> Tensor:
    return torch.stack([torch.full((len(x), UNITS), 0.0, dtype=x.dtype) for _ in range(rows)])


def zeros_expanded(m: Net, x: Tensor, rows: int) -> Tensor:
    return torch.zeros_like(x[:, :1, :1]).view(1, -1, 1).expand(rows, -1, UNITS).contiguous()


ZEROS: dict[str, State] = {
    "none": zeros,
    "zeros": zeros,
    "moved": zeros_by_moves,
    "stacked": zeros_stacked,
    "expanded": zeros_expanded,
}


def learned(m: Net, x: Tensor, rows: int) -> Tensor:
    return m.first.expand(-1, len(x), -1).contiguous()


def learned_tanh(m: Net, x: Tensor, rows: int) -> Tensor:
    return torch.tanh(m.first).repeat(1, len(x), 1)


def learned_by_rows(m: Net, x: Tensor, rows: int) -> Tensor:
    return torch.stack([row.expand(len(x), -1) for row in (m.first0, m.first1, m.first2, m.first3)[:rows]])


def learned_joined(m: Net, x: Tensor, rows: int) -> Tensor:
    return torch.cat([row.expand(len(x), -1)[None] for row in (m.first0, m.first1, m.first2, m.first3)[:rows]])


def computed(m: Net, x: Tensor, rows: int) -> Tensor:
    return m.bridge(x.mean(1)).view(len(x), rows, UNITS).transpose(0, 1).contiguous()


def computed_in_chunks(m: Net, x: Tensor, rows: int) -> Tensor:
    return torch.stack(m.bridge(x.mean(1)).chunk(rows, -1))


# Rows of one tensor index the same units: the layers and directions are tied. Else each has its own.
TIED: dict[str, State] = {"learned": learned, "learned_tanh": learned_tanh}
APART: dict[str, State] = {
    "rows": learned_by_rows,
    "joined": learned_joined,
    "computed": computed,
    "chunks": computed_in_chunks,
}


def net(cell: str, state: State | None, layers: int, both: bool, **options: Any) -> Net:
    rows = layers * (2 if both else 1)

    def forward(m: Net, x: Tensor) -> Tensor:
        first = None
        if state is not None:
            first = state(m, x, rows)
            first = (first, first.clone()) if cell == "lstm" else first
        y, last = m.core(x, first)
        last = last[0] + last[1] if isinstance(last, tuple) else last
        return torch.cat([m.head(y).mean(1), m.last(last.transpose(0, 1).flatten(1))], 1)

    core = CELLS[cell](4, UNITS, layers, bidirectional=both, batch_first=True, **options)
    heads = {"head": lin(UNITS * (2 if both else 1), 2), "last": lin(UNITS * rows, 2)}
    parts: dict[str, Any] = {f"first{k}": par(1, UNITS) for k in range(rows)}
    parts |= {"first": par(rows, 1, UNITS), "bridge": lin(4, rows * UNITS)}
    own = names(state.__code__) if state is not None else set()
    return Net(forward, core=core, **heads, **{name: part for name, part in parts.items() if name in own})


STATES = {**ZEROS, **TIED, **APART}
CASES = [
    pytest.param(*case, marks=[] if case[2:] == (2, True) and case[1] != "rnn" else pytest.mark.slow)
    for case in itertools.product(STATES, CELLS, (1, 2), (False, True))
]


@pytest.mark.parametrize(("kind", "cell", "layers", "both"), CASES)
def test_units_of_every_layer(kind: str, cell: str, layers: int, both: bool) -> None:
    """One group a layer and direction; one for all of them where one tensor has a row for each."""
    torch.manual_seed(0)
    rows = layers * (2 if both else 1)
    model, _, sym = infer(net(cell, None if kind == "none" else STATES[kind], layers, both), (torch.randn(2, 4, 4),))
    assert signature(sym) == expect(f"{UNITS}*{1 if kind in TIED else rows}")
    for batch, length in ((2, 4), (3, 1), (1, 7)):
        check_function(model, (torch.randn(batch, length, 4, dtype=torch.float64),), sym, trials=2)


LOOPS = [name for name in FAMILIES if name.startswith(("one_step_", "cells_from", "cell_from"))]


@pytest.mark.parametrize("name", LOOPS)
def test_loops_at_other_lengths(name: str) -> None:
    """What a loop of few steps tells holds for longer ones, and what it does not tell is fixed."""
    torch.manual_seed(0)
    model, (x,), sym = infer(*FAMILIES[name].make())
    for length in (1, 2, 5):
        check_function(model, (torch.randn(3, length, x.shape[-1], dtype=x.dtype),), sym)
