"""Weights that are tied by lying in one memory, where loading one overwrites the other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from net_family import Net, lin, par
from oracle import signature
from torch import Tensor, nn

import coset


def transposed() -> Net:
    net = Net(lambda m, x: m.d(F.gelu(m.m(F.gelu(m.e(x))))), e=linear(4, 6), m=lin(6, 6), d=linear(6, 4))
    net.d.weight.data = net.e.weight.data.t()
    return net


def alike() -> Net:
    net = Net(lambda m, x: m.o(F.gelu(m.c(F.gelu(m.b(F.gelu(m.a(x))))))), a=lin(4, 6), b=linear(6, 6), c=linear(6, 6),
              o=lin(6, 2))  # fmt: skip
    net.c.weight.data = net.b.weight.data
    return net


def set_to() -> Net:
    net = alike()
    net.c.weight = nn.Parameter(torch.randn(6, 6))
    with torch.no_grad():
        net.c.weight.set_(net.b.weight)
    return net


def regrouped() -> Net:
    def forward(m: Net, x: Tensor) -> Tensor:
        return m.o(F.gelu(m.a(x))) + m.o(F.gelu(F.linear(x, m.flat.view(6, 4))))

    net = Net(forward, a=linear(4, 6), o=lin(6, 2), flat=par(24))
    net.flat.data = net.a.weight.data.view(24)
    return net


def rows() -> Net:
    net = Net(lambda m, x: m.o(F.gelu(torch.cat([m.a(x), m.b(x)], -1))), a=linear(4, 6), b=linear(4, 3), o=lin(9, 2))
    net.b.weight.data = net.a.weight.data[2:5]
    return net


def overlapping() -> Net:
    net = Net(lambda m, x: m.o(F.gelu(m.a(x)) + F.gelu(m.b(x))), a=linear(4, 5), b=linear(4, 5), o=lin(5, 2))
    table = torch.randn(7, 4)
    net.a.weight.data, net.b.weight.data = table[:5], table[1:6]
    return net


def gain_and_bias() -> Net:
    net = Net(lambda m, x: m.b(F.relu(m.a(x) * m.gain)), a=lin(3, 4), b=lin(4, 2), gain=par(4))
    net.a.bias.data = net.gain.data
    return net


def strided() -> Net:
    net = Net(lambda m, x: m.b(F.relu(m.a(x))) + m.d(F.relu(m.c(x))), a=linear(4, 5), b=lin(5, 2), c=linear(4, 5),
              d=lin(5, 2))  # fmt: skip
    table = torch.randn(10, 4)
    net.a.weight.data, net.c.weight.data = table[::2], table[1::2]
    return net


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


NETS: dict[Callable[[], Net], tuple[str, int]] = {
    transposed: ("6", 4),
    alike: ("6", 4),
    set_to: ("6", 4),
    regrouped: ("6", 4),
    rows: ("3 1 2", 4),
    overlapping: ("", 4),
    gain_and_bias: ("4", 3),
    strided: ("5 5", 4),
}


@pytest.mark.parametrize("make", NETS, ids=lambda make: make.__name__)
def test_loading_an_image_keeps_the_function(make: Callable[[], Net]) -> None:
    """What is written under one name is read under the other, so both must be the same image."""
    groups, inputs = NETS[make]
    model = make()
    x = torch.randn(3, inputs)
    sym = coset.symmetry(model, x)
    for k in range(5):
        model = make()
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        with torch.no_grad():
            expected = model(x)
            model.load_state_dict(sym.act(sym.random(torch.Generator().manual_seed(k), scalings=True), before))
            assert torch.allclose(model(x), expected, atol=1e-4)
    sizes = sorted(group.size for group in sym.groups)
    assert sizes == sorted(int(size) for size in groups.split() if int(size) > 1)


def test_memory_that_is_not_shared_ties_nothing() -> None:
    """Two halves of one buffer, as flattened parameters are."""
    net = Net(lambda m, x: m.o(F.gelu(m.a(x)) + F.gelu(m.b(x))), a=linear(4, 5), b=linear(4, 5), o=lin(5, 2))
    flat = torch.randn(40)
    net.a.weight.data, net.b.weight.data = flat[:20].view(5, 4), flat[20:].view(5, 4)
    assert signature(coset.symmetry(net, torch.randn(2, 4))) == {"5": 1}
