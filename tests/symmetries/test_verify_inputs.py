"""Symmetries hold without weights, and on other inputs than the example."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from net_family import Net, conv, image, lin, par
from oracle import deviation, randomise, signature
from samples import attention
from torch import Tensor, nn

import coset
from coset import zoo


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_meta_models(device: str) -> None:
    with torch.device("meta"):
        model, _ = attention()
    sym = coset.symmetry(model, (torch.randn(2, 5, 3, device=device),))
    assert sym.verification is None
    assert signature(sym) == {"2": 1, "4/2": 2}
    real, args = attention()
    assert coset.symmetry(real, args).to_json() == sym.to_json()
    assert deviation(real.double(), (args[0].double(),), sym.act(sym.random(), real.state_dict())) < 1e-9


def test_rows_beyond_the_example_are_not_free() -> None:
    """A learned position that the example is too short to use is no free unit: a longer input will use it."""

    def forward(m: Net, x: Tensor) -> Tensor:
        return m.o(F.gelu(m.e(x) + m.pos[: x.shape[1]]))

    model = randomise(Net(forward, e=nn.Embedding(7, 4), pos=par(9, 4), o=lin(4, 2)))
    sym = coset.symmetry(model, (torch.randint(7, (2, 5)),))
    assert signature(sym) == {"4": 1}
    for trial in range(3):
        state = sym.act(sym.random(scalings=trial > 0), model.state_dict())
        assert deviation(model, (torch.randint(7, (2, 9)),), state) < 1e-9


def test_a_causal_mask_beyond_the_example_is_not_free() -> None:
    def forward(m: Net, x: Tensor) -> Tensor:
        n = x.shape[1]
        h = m.e(x)
        scores = (m.q(h) @ m.k(h).transpose(1, 2)).masked_fill(m.mask[:n, :n] == 0, -1e9)
        return m.o(scores.softmax(-1) @ h)

    model = Net(forward, e=nn.Embedding(7, 4), q=lin(4, 3), k=lin(4, 3), o=lin(4, 2), mask=torch.ones(9, 9).tril())
    model = randomise(model)
    sym = coset.symmetry(model, (torch.randint(7, (2, 5)),))
    state = sym.act(sym.random(scalings=True), model.state_dict())
    assert deviation(model, (torch.randint(7, (2, 9)),), state) < 1e-9


def test_gpt_of_the_zoo_at_another_length() -> None:
    model = randomise(zoo.GPT(7, 12, 8, 1, 2))
    sym = coset.symmetry(model, (torch.randint(7, (2, 5)),))
    state = sym.act(sym.random(scalings=True), model.state_dict())
    for length in (1, 5, 12):
        assert deviation(model, (torch.randint(7, (3, length)),), state) < 1e-9


def test_another_batch_size_and_image_size() -> None:
    def forward(m: Net, x: Tensor) -> Tensor:
        return m.out(F.adaptive_avg_pool2d(F.relu(m.bn(m.a(x))), 1).flatten(1))

    model = randomise(Net(forward, a=conv(3, 4, 3), bn=nn.BatchNorm2d(4), out=lin(4, 2)))
    sym = coset.symmetry(model, (image(3, 6).double(),))
    state = sym.act(sym.random(scalings=True), model.state_dict())
    for x in (torch.randn(1, 3, 6, 6), torch.randn(5, 3, 9, 4)):
        assert deviation(model, (x.double(),), state) < 1e-9


@pytest.mark.parametrize("tokens", [1, 2])
def test_examples_of_size_one(tokens: int) -> None:
    """A single example or token must not make more things look interchangeable."""

    def forward(m: Net, x: Tensor) -> Tensor:
        q, k, v = (p(x).view(*x.shape[:2], 2, 4).transpose(1, 2) for p in (m.q, m.k, m.v))
        return m.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    model = randomise(Net(forward, q=lin(3, 8), k=lin(3, 8), v=lin(3, 8), o=lin(8, 2)))
    sym = coset.symmetry(model, (torch.randn(1, tokens, 3).double(),))
    state = sym.act(sym.random(scalings=True), model.state_dict())
    assert deviation(model, (torch.randn(2, 6, 3).double(),), state) < 1e-9
