"""Choices and loops that hold graphs: their units are found inside, and those beside them are left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from net_family import Net, lin, par
from oracle import expect, randomise, run, signature
from torch import Tensor, nn
from torch._higher_order_ops.map import map as along
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

import coset


def chosen(m: Net, x: Tensor) -> Tensor:
    """The units of both ways are those that go in; one way has units of its own."""
    h = m.a(x).relu()
    return m.b(torch.cond(x.sum() > 0, lambda h: m.d(m.c(h).relu()).relu(), lambda h: 2 * h, (h,)))


def recurrent(m: Net, x: Tensor) -> Tensor:
    """An Elman network that scans the first axis from zeros."""

    def step(h: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(m.c(h) + m.a(u))
        return h, 2 * h

    last, every = scan(step, torch.zeros(x.shape[1], 6, dtype=x.dtype), x)
    return m.b(every) + m.b(last)


def cell(m: Net, x: Tensor) -> Tensor:
    """What is remembered is read one step later: of what only the last step writes nothing would be known."""

    def step(state: tuple[Tensor, Tensor], u: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        h, memory = state
        return (memory.tanh(), m.a(u) + memory), h.clone()

    zeros = torch.zeros(x.shape[1], 6, dtype=x.dtype)
    return m.b(scan(step, (zeros, zeros), x)[1])


def repeated(m: Net, x: Tensor) -> Tensor:
    """Steps of a residual network, until a number of its own says so."""

    def on(k: Tensor, h: Tensor) -> Tensor:
        return (k < 3) & (h.sum() < 1e3)

    def step(k: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return k + 1, h + m.d(m.c(h).relu())

    return m.b(while_loop(on, step, (torch.zeros((), dtype=torch.int64), m.a(x)))[1])


def mapped(m: Net, x: Tensor) -> Tensor:
    return m.b(along(lambda u: m.c(m.a(u).relu()).tanh(), x))


def numbered(m: Net, x: Tensor) -> Tensor:
    """The places of a learned sequence that is scanned are told apart, its units are not."""
    return m.b(scan(lambda h, u: (h + u, h * u), m.a(x), m.w)[1].tanh())


wide = {"c": (6, 7), "d": (7, 6)}
MODELS: dict[str, tuple[Callable[..., Any], tuple[int, ...], dict[str, Any], str, int]] = {
    "cond": (chosen, (5, 4), wide, "6 7", 13),
    "scan": (recurrent, (3, 2, 4), {"c": (6, 6)}, "6", 0),
    "scan of a memory": (cell, (3, 2, 4), {}, "6", 0),
    "while_loop": (repeated, (5, 4), wide, "6 7", 7),
    "map": (mapped, (3, 2, 4), {"c": (6, 6)}, "6*2", 6),
    "scan of weights": (numbered, (5, 4), {"w": par(6, 6)}, "6", 0),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "scan" else [pytest.mark.slow]) for name in MODELS]
)
def test_groups_and_factors(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    function, shape, layers, groups, factors = MODELS[name]
    parts = {k: lin(*size) if isinstance(size, tuple) else size for k, size in layers.items()}
    model = randomise(Net(function, a=lin(4, 6), b=lin(6, 3), **parts))
    x = torch.randn(shape, dtype=torch.float64)
    sym = coset.symmetry(model, x, strict=True)
    assert signature(sym) == expect(groups)
    assert sum(one.size for one in sym.scalings if one.kind == "scaling") == factors
    assert sym.verification is not None and sym.verification.conclusive and sym.notes == ()
    assert capfd.readouterr() == ("", "")
    generator = torch.Generator().manual_seed(1)
    for inputs in (x, -x):
        before = run(model, model.state_dict(), (inputs,))
        after = run(model, sym.act(sym.random(generator, scalings=True), model.state_dict()), (inputs,))
        assert float((after - before).abs().max()) < 1e-9 * float(before.abs().max())


def test_a_condition_holds_its_units_and_no_others() -> None:
    """The scale of what is compared with a number is fixed, and of what stands beside it is not."""

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c, self.d = lin(4, 6), lin(6, 3), lin(4, 5), lin(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.a(x).relu()
            h = torch.cond(h.sum() > 1, lambda h: h, lambda h: 2 * h, (h,))
            return self.b(h) + self.d(self.c(x).relu())

    sym = coset.symmetry(Gated(), torch.randn(5, 4), strict=True)
    assert signature(sym) == expect("5 6")
    assert [one.size for one in sym.scalings] == [5]
