"""Language models and other transformers."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from net_family import Net, Sample, add, conv, family, image, lin, par
from nets_attention import dot_attention, split_heads
from torch import Tensor, nn

from coset import zoo

add(
    "gpt_tied",
    "8 2 4/2*2 32",
    lambda: (zoo.GPT(7, 6, 8, 1, 2), (torch.randint(7, (2, 6)),)),
)
add(
    "gpt_rope_gqa_swiglu",
    "16 2 2/2 4/2 42",
    lambda: (
        zoo.GPT(7, 6, 16, 1, 4, kv_heads=2, rope=True, swiglu=True, tied=False, norm="rms"),
        (torch.randint(7, (2, 6)),),
    ),
)


@family("8 2 4/2*2 5")
def gpt_tied_modules() -> Sample:
    """The head and the embedding share one parameter under two names."""

    def forward(m: Net, x: Tensor) -> Tensor:
        y = m.embed(x) + m.pos[: x.shape[1]]
        n = m.norm(y)
        q, k, v = (split_heads(part, 2) for part in m.qkv(n).split(8, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y + m.out(mixed.transpose(1, 2).reshape(y.shape))
        y = y + m.down(F.gelu(m.up(m.norm2(y)), approximate="tanh"))
        return m.head(m.norm3(y))

    parts = {f"norm{k}": nn.LayerNorm(8) for k in ("", 2, 3)}
    net = Net(
        forward,
        embed=nn.Embedding(7, 8),
        pos=par(9, 8),
        qkv=lin(8, 24),
        out=lin(8, 8),
        up=lin(8, 5),
        down=lin(5, 8),
        head=lin(8, 7, bias=False),
        **parts,
    )
    net.head.weight = net.embed.weight
    return net, (torch.randint(7, (2, 6)),)


class RMSNorm(nn.Module):
    """As written in Llama: float32 statistics, gain after the cast."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def _angles(n: int, d: int, like: Tensor) -> Tensor:
    frequency = 1.0 / (100.0 ** (torch.arange(0, d, 2) / d))
    return torch.outer(torch.arange(n).float(), frequency).to(like.dtype)


def rotate_half(x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    angles = _angles(x.shape[-2], x.shape[-1], x)
    cos, sin = torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()
    return x * cos + torch.cat([-b, a], -1) * sin


def rotate_complex(x: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous())
    angles = _angles(x.shape[-2], x.shape[-1], x)
    turns = torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(pairs * turns).flatten(-2)


def rotate_pairs(x: Tensor) -> Tensor:
    a, b = x[..., ::2], x[..., 1::2]
    angles = _angles(x.shape[-2], x.shape[-1], x)
    cos, sin = angles.cos(), angles.sin()
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


def repeat_interleave(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    n = q.shape[1] // k.shape[1]
    return F.scaled_dot_product_attention(q, k.repeat_interleave(n, 1), v.repeat_interleave(n, 1), is_causal=True)


def repeat_expand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    def wide(x: Tensor) -> Tensor:
        b, h, n, d = x.shape
        return x[:, :, None].expand(b, h, q.shape[1] // h, n, d).reshape(b, -1, n, d)

    return F.scaled_dot_product_attention(q, wide(k), wide(v), is_causal=True)


def enable_gqa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def grouped_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    b, h, n, d = q.shape
    q = q.view(b, k.shape[1], -1, n, d)
    mask = torch.full((n, n), float("-inf"), dtype=q.dtype).triu(1)
    weights = (torch.einsum("bkrid,bkjd->bkrij", q, k) / math.sqrt(d) + mask).softmax(-1)
    return torch.einsum("bkrij,bkjd->bkrid", weights, v).reshape(b, h, n, d)


def _llama(rope: Callable[[Tensor], Tensor], attend: Callable[..., Tensor], gate: str = "silu") -> Callable[[], Sample]:
    def make() -> Sample:
        def forward(m: Net, x: Tensor) -> Tensor:
            x = m.embed(x)
            y = m.norm1(x)
            b, n, _ = y.shape
            q, k, v = (p(y).view(b, n, -1, 4).transpose(1, 2) for p in (m.q, m.k, m.v))
            mixed = attend(rope(q), rope(k), v)
            x = x + m.o(mixed.transpose(1, 2).reshape(b, n, -1))
            y = m.norm2(x)
            if gate == "fused":
                g, u = m.gate_up(y).chunk(2, -1)
                y = F.silu(g) * u
            elif gate == "gelu":
                y = F.gelu(m.gate(y)) * m.up(y)
            else:
                y = F.silu(m.gate(y)) * m.up(y)
            return m.head(m.norm3(x + m.down(y)))

        def no_bias(a: int, b: int) -> nn.Module:
            return lin(a, b, bias=False)

        parts = {"gate_up": no_bias(6, 10)} if gate == "fused" else {"gate": no_bias(6, 5), "up": no_bias(6, 5)}
        return Net(
            forward,
            embed=nn.Embedding(7, 6),
            q=no_bias(6, 16),
            k=no_bias(6, 8),
            v=no_bias(6, 8),
            o=no_bias(16, 6),
            norm1=RMSNorm(6),
            norm2=RMSNorm(6),
            norm3=RMSNorm(6),
            down=no_bias(5, 6),
            head=no_bias(6, 7),
            **parts,
        ), (torch.randint(7, (2, 5)),)

    return make


# Two key heads, two queries for each, values of 4 a key head; rotations fix the inner order of queries and keys.
LLAMA = "6 2 2/2 4/2 5"
add("llama_half_interleave", LLAMA, _llama(rotate_half, repeat_interleave))
add("llama_half_expand", LLAMA, _llama(rotate_half, repeat_expand, "gelu"))
add("llama_half_gqa", LLAMA, _llama(rotate_half, enable_gqa, "fused"))
add("llama_half_einsum", LLAMA, _llama(rotate_half, grouped_einsum))
add("llama_complex", LLAMA, _llama(rotate_complex, repeat_interleave))
add("llama_pairs", LLAMA, _llama(rotate_pairs, repeat_expand))
# Without rotations the inner order of queries and keys is free for each key head.
add("llama_no_rope", LLAMA + " 4/2", _llama(lambda x: x, repeat_expand))


@family("6 2*3 3/2*6 5*2")
def t5() -> Sample:
    """Encoder and decoder on one shared embedding; relative bias by buckets, learned for each head."""

    def attend(p: nn.ModuleDict, x: Tensor, y: Tensor, bias: Tensor | None) -> Tensor:
        q, k, v = (split_heads(p[n](z), 2) for n, z in (("q", x), ("k", y), ("v", y)))
        scores = q @ k.transpose(-1, -2)
        weights = (scores if bias is None else scores + bias).softmax(-1)
        return p["o"]((weights @ v).transpose(1, 2).reshape(x.shape))

    def relative(table: nn.Embedding, n: int, causal: bool, dtype: torch.dtype) -> Tensor:
        distance = torch.arange(n)[None, :] - torch.arange(n)[:, None]
        bias = table(distance.clamp(-2, 2) + 2).permute(2, 0, 1)
        return bias + torch.full((n, n), -1e9, dtype=dtype).triu(1) if causal else bias

    def forward(m: Net, source: Tensor, target: Tensor) -> Tensor:
        x, y = m.shared(source), m.shared(target)
        n = m.n[0](x)
        x = x + attend(m.enc, n, n, relative(m.enc_bias, x.shape[1], False, x.dtype))
        x = m.n[1](x + m.enc["down"](F.relu(m.enc["up"](m.n[2](x)))))
        n = m.n[3](y)
        y = y + attend(m.dec, n, n, relative(m.dec_bias, y.shape[1], True, x.dtype))
        y = y + attend(m.cross, m.n[4](y), x, None)
        y = m.n[5](y + m.dec["down"](F.relu(m.dec["up"](m.n[6](y)))))
        return F.linear(y * 6**-0.5, m.shared.weight)

    def block(ff: bool) -> nn.ModuleDict:
        names = {n: lin(6, 6, bias=False) for n in "qkvo"}
        return nn.ModuleDict(names | ({"up": lin(6, 5, bias=False), "down": lin(5, 6, bias=False)} if ff else {}))

    return Net(
        forward,
        shared=nn.Embedding(7, 6),
        n=nn.ModuleList([RMSNorm(6) for _ in range(7)]),
        enc=block(True),
        dec=block(True),
        cross=block(False),
        enc_bias=nn.Embedding(5, 2),
        dec_bias=nn.Embedding(5, 2),
    ), (torch.randint(7, (2, 5)), torch.randint(7, (2, 4)))


@family("4 2 2/2*2 5 6")
def swin() -> Sample:
    """Shifted windows of 2 x 2 on 4 x 4 tokens, relative position bias, patch merging."""

    def forward(m: Net, x: Tensor) -> Tensor:
        x = m.patches(x).permute(0, 2, 3, 1)
        b, h, w, c = x.shape
        y = torch.roll(m.norm1(x), (-1, -1), (1, 2))
        y = y.view(b, 2, 2, 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, c)
        q, k, v = m.qkv(y).reshape(-1, 4, 3, 2, c // 2).permute(2, 0, 3, 1, 4)
        bias = m.table[m.index.view(-1)].view(4, 4, 2).permute(2, 0, 1)
        weights = q @ k.transpose(-2, -1) + bias
        weights = weights.view(b, 4, 2, 4, 4) + m.shift[None, :, None]
        y = weights.view(-1, 2, 4, 4).softmax(-1) @ v
        y = m.out(y.transpose(1, 2).reshape(-1, 4, c))
        y = y.view(b, 2, 2, 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        x = x + torch.roll(y, (1, 1), (1, 2))
        x = x + m.down(F.gelu(m.up(m.norm2(x))))
        x = torch.cat([x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)], -1)
        return m.head(m.norm4(m.merge(m.norm3(x))).mean((1, 2)))

    place = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
    apart = place[:, None] - place[None] + 1
    net = Net(
        forward,
        patches=conv(3, 4, 2, 2),
        norm1=nn.LayerNorm(4),
        qkv=lin(4, 12),
        out=lin(4, 4),
        table=par(9, 2),
        norm2=nn.LayerNorm(4),
        up=lin(4, 5),
        down=lin(5, 4),
        norm3=nn.LayerNorm(16),
        merge=lin(16, 6, bias=False),
        norm4=nn.LayerNorm(6),
        head=lin(6, 2),
    )
    net.register_buffer("index", apart[..., 0] * 3 + apart[..., 1], persistent=False)
    net.register_buffer("shift", torch.where(torch.rand(4, 4, 4) > 0.7, -9.0, 0.0).double(), persistent=False)
    return net, (image(3, 8),)


@family("4 5 6")
def mlp_mixer() -> Sample:
    def forward(m: Net, x: Tensor) -> Tensor:
        x = m.patches(x).flatten(2).transpose(1, 2)
        x = x + m.t2(F.gelu(m.t1(m.norm1(x).transpose(1, 2)))).transpose(1, 2)
        x = x + m.c2(F.gelu(m.c1(m.norm2(x))))
        return m.head(x)

    return Net(
        forward,
        patches=conv(3, 4, 3, 3),
        norm1=nn.LayerNorm(4),
        t1=lin(4, 5),
        t2=lin(5, 4),
        norm2=nn.LayerNorm(4),
        c1=lin(4, 6),
        c2=lin(6, 4),
        head=lin(4, 2),
    ), (image(),)


@family("3 4 5 2 2/2*2")
def perceiver() -> Sample:
    """Learned latents are units too: nothing tells them apart."""

    def forward(m: Net, x: Tensor) -> Tensor:
        y = m.latents.expand(x.shape[0], -1, -1)
        q, k, v = split_heads(m.q(y), 2), split_heads(m.k(m.embed(x)), 2), split_heads(m.v(m.embed(x)), 2)
        y = y + m.o(dot_attention(q, k, v).transpose(1, 2).reshape(y.shape))
        return m.head(y.mean(1))

    return Net(
        forward,
        latents=par(3, 4),
        embed=lin(3, 5),
        q=lin(4, 4),
        k=lin(5, 4),
        v=lin(5, 4),
        o=lin(4, 4),
        head=lin(4, 2),
    ), (torch.randn(2, 6, 3),)
