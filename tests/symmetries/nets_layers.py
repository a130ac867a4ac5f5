"""Reparametrised layers, and layers that make weights of their own."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from net_family import Net, Sample, conv, family, image, lin, par, seq
from torch import Tensor, nn


@family("4")
def weight_norm() -> Sample:
    norm = nn.utils.parametrizations.weight_norm
    return seq(norm(lin(3, 4)), nn.ReLU(), norm(lin(4, 2))), (torch.randn(3, 3),)


@family("4 5")
def weight_norm_conv_old() -> Sample:
    norm = nn.utils.weight_norm
    return seq(norm(conv(3, 4, 3)), nn.ReLU(), norm(nn.ConvTranspose2d(4, 5, 2)), nn.GELU(), conv(5, 2, 1)), (image(),)


@family("4")
def spectral_norm() -> Sample:
    norm = nn.utils.parametrizations.spectral_norm
    return seq(norm(lin(3, 4)), nn.ReLU(), norm(lin(4, 2))), (torch.randn(3, 3),)


@family("4")
def spectral_norm_conv() -> Sample:
    norm = nn.utils.parametrizations.spectral_norm
    return seq(norm(conv(3, 4, 3)), nn.ReLU(), norm(conv(4, 2, 1))), (image(),)


@family("4 5")
def orthogonal() -> Sample:
    norm = nn.utils.parametrizations.orthogonal
    layers = [norm(lin(3, 4), orthogonal_map="matrix_exp"), nn.GELU(), lin(4, 5), nn.GELU(), lin(5, 2)]
    return seq(*layers), (torch.randn(3, 3),)


@family("4 2")
def lora() -> Sample:
    def forward(m: Net, x: Tensor) -> Tensor:
        return m.b(F.gelu(F.linear(x, m.a.weight + m.up @ m.down, m.a.bias)))

    return Net(forward, a=lin(3, 4), b=lin(4, 2), up=par(4, 2), down=par(2, 3)), (torch.randn(3, 3),)


@family("4 5")
def hypernetwork() -> Sample:
    """The weights of the second layer are the output of another net."""

    def forward(m: Net, x: Tensor, z: Tensor) -> Tensor:
        w = m.make(F.tanh(m.embed(z))).view(4, 3)
        return m.out(F.gelu(F.linear(x, w)))

    net = Net(forward, embed=lin(2, 5), make=lin(5, 12), out=lin(4, 2))
    return net, (torch.randn(3, 3), torch.randn(2))


@family("2 3/2 3 4/3")
def capsules() -> Sample:
    def squash(x: Tensor) -> Tensor:
        n = x.pow(2).sum(-1, keepdim=True)
        return n / (1 + n) * x / (n + 1e-9).sqrt()

    def forward(m: Net, x: Tensor) -> Tensor:
        u = squash(m.a(x).view(-1, 2, 3))
        votes = torch.einsum("jiod,bjd->bjio", m.w, u)
        logits = torch.zeros(votes.shape[:3], dtype=x.dtype)
        for _ in range(2):
            v = squash((logits.softmax(2)[..., None] * votes).sum(1))
            logits = logits + (votes * v[:, None]).sum(-1)
        return m.out(v.flatten(1))

    return Net(forward, a=lin(5, 6), w=par(2, 3, 4, 3), out=lin(12, 2)), (torch.randn(3, 5),)


@family("4 5")
def vector_quantised() -> Sample:
    """The nearest of five codes: codes are units."""

    def forward(m: Net, x: Tensor) -> Tensor:
        h = m.a(x)
        nearest = (h[:, None] - m.codes[None]).pow(2).sum(-1).argmin(-1)
        return m.b(F.embedding(nearest, m.codes) + 0.1 * h)

    return Net(forward, a=lin(3, 4), b=lin(4, 2), codes=par(5, 4)), (torch.randn(6, 3),)
