"""Small nets of many kinds, among them those whose groups meet only one another, for `bench planted` and tests."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coset import zoo

Sample = tuple[nn.Module, tuple[Any, ...]]
NETS: dict[str, Callable[[], Sample]] = {}


class Formula(nn.Module):
    """A module from a function of itself and the inputs, with parts."""

    def __init__(self, function: Callable[..., Any], **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


def net(make: Callable[[], Sample]) -> Callable[[], Sample]:
    """Register a net under the name of the function that makes it, with its example inputs."""
    NETS[make.__name__] = make
    return make


def weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape) / math.sqrt(shape[-1]))


def of_zoo(spec: str) -> Callable[[], Sample]:
    def make() -> Sample:
        model = zoo.build(spec)
        return model, zoo.example_input(model)

    return make


NETS |= {
    "mlp": of_zoo("mlp:6-8-7-4"),
    "resnet": of_zoo("resnet20:width=0.25"),
    "vit": of_zoo("vit:dim=16,depth=1,heads=2,patch=16"),
    "gpt": of_zoo("gpt:dim=16,depth=2,heads=2"),
}


@net
def deep_linear() -> Sample:
    return nn.Sequential(*(nn.Linear(n, m, bias=False) for n, m in ((1, 6), *[(6, 6)] * 5, (6, 1)))), (
        torch.ones(4, 1),
    )


@net
def tensor_train() -> Sample:
    def function(m: Any, x: Tensor) -> Any:
        h = torch.einsum("bn,nr->br", x[:, 0], m.first)
        for k, core in enumerate((m.second, m.third, m.fourth), 1):
            h = torch.einsum("br,bn,rns->bs", h, x[:, k], core)
        return h

    cores = {"first": weight(2, 8), "second": weight(8, 2, 7), "third": weight(7, 2, 8), "fourth": weight(8, 2, 3)}
    return Formula(function, **cores), (torch.randn(5, 4, 2),)


@net
def tensor_train_of_one_core() -> Sample:
    def function(m: Any, x: Tensor) -> Any:
        h = m.start.expand(len(x), -1)
        for k in range(x.shape[1]):
            h = torch.einsum("br,bn,rns->bs", h, x[:, k], m.core)
        return h @ m.end

    return Formula(function, start=weight(12), core=weight(12, 2, 12), end=weight(12, 1)), (torch.randn(3, 4, 2),)


@net
def tensor_train_layer() -> Sample:
    def function(m: Any, x: Tensor) -> Any:
        h = F.relu(m.inputs(x)).reshape(-1, 4, 4, 4)
        h = torch.einsum("bijk,ipr,rjqs,skt->bpqt", h, m.first, m.second, m.third)
        return m.outputs(F.relu(h.reshape(len(x), -1)))

    cores = {"first": weight(4, 4, 8), "second": weight(8, 4, 4, 8), "third": weight(8, 4, 4)}
    return Formula(function, inputs=nn.Linear(8, 64), **cores, outputs=nn.Linear(64, 5)), (torch.randn(3, 8),)


@net
def tensor_ring() -> Sample:
    def function(m: Any, x: Tensor) -> Any:
        h = torch.einsum("bi,ris->brs", x[:, 0], m.core)
        for k in range(1, 4):
            h = torch.einsum("brs,bi,sit->brt", h, x[:, k], m.core)
        return torch.einsum("brs,sr->b", h, m.close)

    return Formula(function, core=weight(6, 3, 6), close=weight(6, 6)), (torch.randn(4, 4, 3),)


@net
def ring_of_matrices() -> Sample:
    def function(m: Any, x: Tensor) -> Any:
        return x.sum() * torch.einsum("ij,jk,ki->", m.first, m.second, m.third)

    return Formula(function, first=weight(4, 5), second=weight(5, 6), third=weight(6, 4)), (torch.randn(3, 2),)


@net
def cp_layer() -> Sample:
    def function(m: Any, x: Tensor) -> Any:
        h = F.relu(m.inputs(x)) @ torch.einsum("r,pr,qr->pq", m.sizes, m.rows, m.columns)
        return m.outputs(F.relu(h))

    parts = {"sizes": weight(5), "rows": weight(8, 5), "columns": weight(7, 5)}
    return Formula(function, inputs=nn.Linear(4, 8), **parts, outputs=nn.Linear(7, 2)), (torch.randn(4, 4),)


@net
def tucker_layer() -> Sample:
    def function(m: Any, x: Tensor) -> Any:
        h = F.relu(m.inputs(x)).reshape(-1, 4, 5)
        return m.outputs(torch.tanh(torch.einsum("bij,ip,jq,pqr->br", h, m.first, m.second, m.core)))

    parts = {"first": weight(4, 3), "second": weight(5, 4), "core": weight(3, 4, 6)}
    return Formula(function, inputs=nn.Linear(3, 20), **parts, outputs=nn.Linear(6, 2)), (torch.randn(3, 3),)


@net
def bilinear() -> Sample:
    def function(m: Any, x: Tensor) -> Any:
        h = F.relu(m.inputs(x))
        h = F.relu(m.pairs(h, h))
        return m.outputs(h, h)

    parts = {"inputs": nn.Linear(4, 6), "pairs": nn.Bilinear(6, 6, 8), "outputs": nn.Bilinear(8, 8, 2)}
    return Formula(function, **parts), (torch.randn(4, 4),)


@net
def categorical_latents() -> Sample:
    def function(m: Any, x: Tensor) -> Any:
        z = m.encode(F.relu(m.inputs(x))).reshape(-1, 6, 5).softmax(-1)
        return m.outputs(F.relu(m.decode(z.reshape(-1, 30))))

    ends = {"inputs": nn.Linear(3, 8), "encode": nn.Linear(8, 30), "decode": nn.Linear(30, 7)}
    return Formula(function, **ends, outputs=nn.Linear(7, 3)), (torch.rand(4, 3),)


@net
def categorical_latents_of_a_table() -> Sample:
    def function(m: Any, x: Tensor) -> Any:
        z = m.encode(F.relu(m.inputs(x))).reshape(-1, 5, 4).softmax(-1) @ m.table
        return m.outputs(F.relu(m.decode(z)).sum(1))

    ends = {"inputs": nn.Linear(3, 8), "encode": nn.Linear(8, 20), "decode": nn.Linear(6, 7)}
    return Formula(function, **ends, table=weight(4, 6), outputs=nn.Linear(7, 3)), (torch.rand(4, 3),)


@net
def categorical_latents_in_time() -> Sample:
    def function(m: Any, x: Tensor) -> Any:
        h, z = x.new_zeros(len(x), 10), x.new_zeros(len(x), 12)
        for _ in range(3):
            h = m.step(torch.cat([z, m.inputs(x)], -1), h)
            z = m.encode(h).view(-1, 4, 3).softmax(-1).reshape(-1, 12)
        return m.outputs(torch.cat([h, z], -1))

    ends = {"inputs": nn.Linear(3, 2), "encode": nn.Linear(10, 12), "outputs": nn.Linear(22, 3)}
    return Formula(function, **ends, step=nn.GRUCell(14, 10)), (torch.randn(2, 3),)


@net
def slot_attention() -> Sample:
    def function(m: Any, x: Tensor) -> Any:
        x = m.norm_inputs(m.inputs(x))
        keys, values, slots = m.keys(x), m.values(x), m.slots.expand(len(x), -1, -1)
        for _ in range(2):
            scores = torch.einsum("bid,bjd->bij", m.queries(m.norm_slots(slots)), keys) / 4
            scores = scores.softmax(1) + 1e-8
            updates = torch.einsum("bjd,bij->bid", values, scores / scores.sum(-1, keepdim=True))
            slots = m.step(updates.reshape(-1, 16), slots.reshape(-1, 16)).reshape(slots.shape)
            slots = slots + m.narrow(F.relu(m.wide(m.norm_wide(slots))))
        image = m.outputs(slots)
        return (image[..., :3] * image[..., 3:].softmax(1)).sum(1)

    parts: dict[str, nn.Module] = {name: nn.Linear(16, 16, bias=False) for name in ("queries", "keys", "values")}
    parts |= {f"norm_{name}": nn.LayerNorm(16) for name in ("inputs", "slots", "wide")}
    parts |= {"inputs": nn.Linear(3, 16), "wide": nn.Linear(16, 20), "narrow": nn.Linear(20, 16)}
    return (
        Formula(function, **parts, slots=weight(1, 4, 16), step=nn.GRUCell(16, 16), outputs=nn.Linear(16, 4)),
        (torch.randn(2, 6, 3),),
    )


@net
def capsules() -> Sample:
    def function(m: Any, x: Tensor) -> Any:
        votes = torch.einsum("bid,ijde->bije", m.inputs(x).reshape(-1, 5, 4), m.routes)
        agreement = torch.zeros_like(votes[..., 0])
        for _ in range(2):
            out = (agreement.softmax(2).unsqueeze(-1) * votes).sum(1)
            agreement = agreement + (votes * out.unsqueeze(1)).sum(-1)
        return out.norm(dim=-1)

    return Formula(function, inputs=nn.Linear(6, 20), routes=weight(5, 3, 4, 6)), (torch.randn(4, 6),)


@net
def unet() -> Sample:
    def function(m: Any, x: Tensor) -> Any:
        a = F.relu(m.down(x))
        b = F.relu(m.bottom(F.max_pool2d(a, 2)))
        return m.outputs(F.relu(m.up(torch.cat([F.interpolate(b, scale_factor=2), a], 1))))

    sizes = {"down": (1, 6), "bottom": (6, 9), "up": (15, 7), "outputs": (7, 1)}
    convolutions = {name: nn.Conv2d(n, m, 3, padding=1) for name, (n, m) in sizes.items()}
    return Formula(function, **convolutions), (torch.randn(2, 1, 8, 8),)


def recurrent(core: nn.Module, width: int) -> Sample:
    inputs = 1 if isinstance(core, nn.RNN) else 3
    return Formula(lambda m, x: m.outputs(m.core(x)[0]), core=core, outputs=nn.Linear(width, 1)), (
        torch.randn(2, 5, inputs),
    )


@net
def rnn() -> Sample:
    return recurrent(nn.RNN(1, 16, 2, batch_first=True, bias=False), 16)


@net
def lstm() -> Sample:
    return recurrent(nn.LSTM(3, 8, 2, batch_first=True), 8)


@net
def gru_both_ways() -> Sample:
    return recurrent(nn.GRU(3, 8, batch_first=True, bidirectional=True), 16)


@net
def attention_of_products() -> Sample:
    def function(m: Any, x: Tensor) -> Any:
        h = m.inputs(x)
        q, k, v = (part(h).reshape(*x.shape[:2], 3, 4).transpose(1, 2) for part in (m.queries, m.keys, m.values))
        h = h + m.back(((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2))
        return m.outputs(h)

    maps = {name: nn.Linear(12, 12, bias=False) for name in ("queries", "keys", "values", "back")}
    return Formula(function, inputs=nn.Linear(1, 12), **maps, outputs=nn.Linear(12, 1)), (torch.randn(2, 5, 1),)


@net
def experts() -> Sample:
    def function(m: Any, x: Tensor) -> Any:
        h = F.relu(m.inputs(x))
        inner = F.relu(torch.einsum("bd,edh->beh", h, m.wide))
        return m.outputs((torch.einsum("beh,ehd->bed", inner, m.narrow) * m.gate(h).softmax(-1).unsqueeze(-1)).sum(1))

    ends = {"inputs": nn.Linear(3, 6), "gate": nn.Linear(6, 4), "outputs": nn.Linear(6, 2)}
    return Formula(function, **ends, wide=weight(4, 6, 7), narrow=weight(4, 7, 6)), (torch.randn(4, 3),)


@net
def tied_autoencoder() -> Sample:
    def function(m: Any, x: Tensor) -> Any:
        h = torch.sigmoid(F.linear(torch.sigmoid(x @ m.first + m.bias), m.second))
        return torch.sigmoid(h @ m.second) @ m.first.T

    return Formula(function, first=weight(4, 8), bias=weight(8), second=weight(6, 8)), (torch.randn(4, 4),)


@net
def siamese() -> Sample:
    def function(m: Any, x: Tensor, y: Tensor) -> Any:
        u, v = (m.second(F.relu(m.first(z))) for z in (x, y))
        return m.outputs((u - v).abs())

    parts = {"first": nn.Linear(3, 8), "second": nn.Linear(8, 7), "outputs": nn.Linear(7, 1)}
    return Formula(function, **parts), (torch.randn(4, 3), torch.randn(4, 3))


@net
def hypernetwork() -> Sample:
    def function(m: Any, x: Tensor, z: Tensor) -> Any:
        h = F.relu(m.inputs(z))
        return F.relu(x @ m.first(h).reshape(6, 4).T) @ m.second(h).reshape(2, 6).T

    parts = {"inputs": nn.Linear(3, 9), "first": nn.Linear(9, 24), "second": nn.Linear(9, 12)}
    return Formula(function, **parts), (torch.randn(5, 4), torch.randn(3))


@net
def hidden_markov() -> Sample:
    def function(m: Any, x: Tensor) -> Any:
        h = m.start.softmax(-1)
        for k in range(x.shape[1]):
            h = h @ m.steps.softmax(-1) * m.tokens.softmax(-1)[:, x[:, k]].T
        return h.sum(-1).log()

    parts = {"start": weight(7), "steps": weight(7, 7), "tokens": weight(7, 5)}
    return Formula(function, **parts), (torch.randint(0, 5, (3, 4)),)


@net
def codebook() -> Sample:
    def function(m: Any, x: Tensor) -> Any:
        h = m.encode(F.relu(m.inputs(x)))
        nearest = (-(h.unsqueeze(1) - m.codes).square().sum(-1)).softmax(-1)
        return m.outputs(F.relu(m.decode(nearest @ m.codes)))

    parts = {"inputs": nn.Linear(3, 8), "encode": nn.Linear(8, 4), "decode": nn.Linear(4, 9)}
    return Formula(function, **parts, codes=weight(7, 4), outputs=nn.Linear(9, 3)), (torch.randn(4, 3),)
