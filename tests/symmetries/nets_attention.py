"""Attention, by every way that projections are written and split."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from net_family import Net, Sample, add, conv, family, image, lin, par
from torch import Tensor, nn

from coset import zoo


def dot_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def _matmul_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), -1) @ v


def split_heads(x: Tensor, heads: int) -> Tensor:
    b, n, c = x.shape
    return x.view(b, n, heads, c // heads).transpose(1, 2)


def _chunk(y: Tensor, h: int) -> list[Tensor]:
    return [split_heads(part, h) for part in y.chunk(3, -1)]


def _split_sizes(y: Tensor, h: int) -> list[Tensor]:
    n = y.shape[-1] // 3
    return [split_heads(part, h) for part in y.split([n, n, n], 2)]


def _three_heads_dim(y: Tensor, h: int) -> list[Tensor]:
    b, n, c = y.shape
    return list(y.reshape(b, n, 3, h, c // 3 // h).permute(2, 0, 3, 1, 4).unbind(0))


def _three_select(y: Tensor, h: int) -> list[Tensor]:
    b, n, c = y.shape
    y = y.view(b, n, 3, h, c // 3 // h)
    return [y[:, :, k].transpose(1, 2) for k in range(3)]


def _three_chunk(y: Tensor, h: int) -> list[Tensor]:
    b, n, c = y.shape
    y = y.view(b, n, 3, h, c // 3 // h).transpose(1, 3)
    return [part.squeeze(2) for part in y.chunk(3, 2)]


def _heads_three_dim_split(y: Tensor, h: int) -> list[Tensor]:
    b, n, c = y.shape
    d = c // 3 // h
    return [part.transpose(1, 2) for part in y.reshape(b, n, h, 3 * d).split(d, -1)]


def _heads_three_dim_slices(y: Tensor, h: int) -> list[Tensor]:
    b, n, c = y.shape
    d = c // 3 // h
    y = y.view(b, n, h, 3 * d)
    return [y[..., k * d : (k + 1) * d].transpose(1, 2) for k in range(3)]


def _heads_three_dim_select(y: Tensor, h: int) -> list[Tensor]:
    b, n, c = y.shape
    y = y.view(b, n, h, 3, c // 3 // h)
    return [y[..., k, :].transpose(1, 2) for k in range(3)]


def _heads_dim_three(y: Tensor, h: int) -> list[Tensor]:
    b, n, c = y.shape
    return [part.transpose(1, 2) for part in y.view(b, n, h, c // 3 // h, 3).unbind(-1)]


def _all_heads_split(y: Tensor, h: int) -> list[Tensor]:
    b, n, c = y.shape
    return list(y.view(b, n, 3 * h, c // 3 // h).transpose(1, 2).split([h, h, h], 1))


def _einops_like(y: Tensor, h: int) -> list[Tensor]:
    """rearrange(qkv, "b n (three h d) -> three b h n d", three=3)."""
    b, n, c = y.shape
    y = y.reshape(b, n, 3, h, c // 3 // h).permute(2, 0, 3, 1, 4)
    return [y[0], y[1], y[2]]


QKV = {
    "chunk": _chunk,
    "split_sizes": _split_sizes,
    "3hd_unbind": _three_heads_dim,
    "3hd_select": _three_select,
    "3hd_chunk": _three_chunk,
    "h3d_split": _heads_three_dim_split,
    "h3d_slices": _heads_three_dim_slices,
    "h3d_select": _heads_three_dim_select,
    "hd3_unbind": _heads_dim_three,
    "all_heads_split": _all_heads_split,
    "einops": _einops_like,
}


def _attention_net(
    project: Callable[[Net, Tensor], list[Tensor]],
    attend: Callable[..., Tensor] = dot_attention,
    **parts: nn.Module | Tensor,
) -> Sample:
    """Embed 3 -> 8, one pre-norm attention block with 4 heads of 2, norm, 8 -> 2."""

    def forward(m: Net, x: Tensor) -> Tensor:
        x = m.embed(x)
        y = attend(*project(m, m.norm(x)))
        x = x + m.out(y.transpose(1, 2).reshape(x.shape))
        return m.head(m.norm2(x))

    full = {"embed": lin(3, 8), "norm": nn.LayerNorm(8), "out": lin(8, 8), "norm2": nn.LayerNorm(8), "head": lin(8, 2)}
    return Net(forward, **full, **parts), (torch.randn(2, 5, 3),)


ATTENTION = "8 4 2/4*2"
for _name, _take in QKV.items():
    add(
        f"attention_{_name}",
        ATTENTION,
        lambda _take=_take: _attention_net(lambda m, x: _take(m.qkv(x), 4), qkv=lin(8, 24)),
    )
add(
    "attention_fused_matmul",
    ATTENTION,
    lambda: _attention_net(lambda m, x: _three_heads_dim(m.qkv(x), 4), _matmul_attention, qkv=lin(8, 24)),
)


def _separate(m: Net, x: Tensor) -> list[Tensor]:
    return [split_heads(m.q(x), 4), split_heads(m.k(x), 4), split_heads(m.v(x), 4)]


for _name, _attend in {"sdpa": dot_attention, "matmul": _matmul_attention}.items():
    add(
        f"attention_separate_{_name}",
        ATTENTION,
        lambda _attend=_attend: _attention_net(_separate, _attend, q=lin(8, 8), k=lin(8, 8), v=lin(8, 8)),
    )


def _einsum_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = torch.einsum("bhid,bhjd->bhij", q, k).softmax(-1)
    return torch.einsum("bhij,bhjd->bhid", weights, v)


def _linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = F.elu(q) + 1, F.elu(k) + 1
    total = torch.einsum("bhnd,bhne->bhde", k, v)
    return torch.einsum("bhnd,bhde->bhne", q, total) / (q * k.sum(2, keepdim=True)).sum(-1, keepdim=True)


add(
    "attention_einsum",
    ATTENTION,
    lambda: _attention_net(_separate, _einsum_attention, q=lin(8, 8), k=lin(8, 8), v=lin(8, 8)),
)
add(
    "attention_linear",
    ATTENTION,
    lambda: _attention_net(_separate, _linear_attention, q=lin(8, 8), k=lin(8, 8), v=lin(8, 8)),
)


def _stacked(m: Net, x: Tensor) -> list[Tensor]:
    return list(torch.einsum("bnc,thdc->tbhnd", x, m.w).unbind(0))


def _stacked_select(m: Net, x: Tensor) -> list[Tensor]:
    return [torch.einsum("bnc,hdc->bhnd", x, m.w[k]) for k in range(3)]


add("attention_stacked_einsum", ATTENTION, lambda: _attention_net(_stacked, w=par(3, 4, 2, 8)))
add("attention_stacked_select", ATTENTION, lambda: _attention_net(_stacked_select, w=par(3, 4, 2, 8)))


def _head_weights(m: Net, x: Tensor) -> list[Tensor]:
    return [torch.einsum("bnc,chd->bhnd", x, w) for w in (m.wq, m.wk, m.wv)]


add(
    "attention_head_weights",
    ATTENTION,
    lambda: _attention_net(_head_weights, wq=par(8, 4, 2), wk=par(8, 4, 2), wv=par(8, 4, 2)),
)


def _qk_norm(m: Net, x: Tensor) -> list[Tensor]:
    q, k, v = _separate(m, x)
    return [m.q_norm(q), m.k_norm(k), v]


# One gain a position in the head, shared by the heads: the inner order is too.
add(
    "attention_qk_norm",
    "8 4 2 2/4",
    lambda: _attention_net(
        _qk_norm, q=lin(8, 8), k=lin(8, 8), v=lin(8, 8), q_norm=nn.RMSNorm(2, 1e-5), k_norm=nn.RMSNorm(2, 1e-5)
    ),
)
add(
    "attention_qk_norm_plain",
    ATTENTION,
    lambda: _attention_net(
        _qk_norm,
        q=lin(8, 8),
        k=lin(8, 8),
        v=lin(8, 8),
        q_norm=nn.LayerNorm(2, elementwise_affine=False),
        k_norm=nn.LayerNorm(2, elementwise_affine=False),
    ),
)


@family(ATTENTION)
def attention_learned_bias() -> Sample:
    """A bias for each head, query and key: it follows the heads."""

    def forward(m: Net, x: Tensor) -> Tensor:
        x = m.embed(x)
        q, k, v = _separate(m, m.norm(x))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=m.bias)
        return m.head(m.norm2(x + m.out(y.transpose(1, 2).reshape(x.shape))))

    net, args = _attention_net(_separate, q=lin(8, 8), k=lin(8, 8), v=lin(8, 8), bias=par(4, 5, 5))
    net.function = forward
    return net, args


@family("8 2/4*2")
def attention_alibi() -> Sample:
    """A constant slope a head fixes the heads, and leaves each head its own inner orders."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625], dtype=q.dtype).view(4, 1, 1)
        distance = torch.arange(5)[None, :] - torch.arange(5)[:, None]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=slopes * distance)

    return _attention_net(_separate, attend, q=lin(8, 8), k=lin(8, 8), v=lin(8, 8))


@family("8 4 2 2")
def attention_multi_query() -> Sample:
    def project(m: Net, x: Tensor) -> list[Tensor]:
        return [split_heads(m.q(x), 4), m.k(x)[:, None], m.v(x)[:, None]]

    return _attention_net(project, _matmul_attention, q=lin(8, 8), k=lin(8, 2), v=lin(8, 2))


@family("8 4*2 2/4*2")
def attention_talking_heads() -> Sample:
    """A linear map over heads before and after the softmax: query heads and value heads are apart."""

    def forward(m: Net, x: Tensor) -> Tensor:
        x = m.embed(x)
        q, k, v = _separate(m, m.norm(x))
        weights = torch.einsum("bhij,gh->bgij", q @ k.transpose(-1, -2), m.mix).softmax(-1)
        return m.head(m.norm2(x + m.out((weights @ v).transpose(1, 2).reshape(x.shape))))

    net, args = _attention_net(_separate, q=lin(8, 8), k=lin(8, 8), v=lin(8, 8), mix=par(4, 4))
    net.function = forward
    return net, args


@family("8 2 2/2*3")
def attention_falcon() -> Sample:
    """Fused (kv heads, queries of each + 2, dim): two queries a key."""

    def project(m: Net, x: Tensor) -> list[Tensor]:
        b, n, _ = x.shape
        y = m.qkv(x).view(b, n, 2, 4, 2)
        q, k, v = y[..., :-2, :], y[..., [-2], :], y[..., [-1], :]
        k, v = k.expand(q.shape), v.expand(q.shape)
        return [part.flatten(2, 3).transpose(1, 2) for part in (q, k, v)]

    return _attention_net(project, qkv=lin(8, 16))


def _mha(heads: int = 4, **options: Any) -> Callable[[], Sample]:
    weights = options.pop("weights", False)

    def make() -> Sample:
        def forward(m: Net, x: Tensor) -> Any:
            x = m.embed(x)
            y, weights_out = m.attention(x, x, x, need_weights=weights)
            out = m.head(m.norm(x + y))
            return (out, weights_out) if weights else out

        attention = nn.MultiheadAttention(8, heads, batch_first=True, **options)
        return Net(forward, embed=lin(3, 8), attention=attention, norm=nn.LayerNorm(8), head=lin(8, 2)), (
            torch.randn(2, 5, 3),
        )

    return make


add("mha", ATTENTION, _mha())
add("mha_weights", ATTENTION, _mha(weights=True))
add("mha_bias_kv", ATTENTION, _mha(add_bias_kv=True))
add("mha_zero_attn", ATTENTION, _mha(add_zero_attn=True))


@family("8 6 7 4 2/4*2")
def mha_cross() -> Sample:
    def forward(m: Net, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        x = m.embed(x)
        return m.head(x + m.attention(x, m.keys(y), m.values(z), need_weights=False)[0])

    attention = nn.MultiheadAttention(8, 4, kdim=6, vdim=7, batch_first=True)
    net = Net(forward, embed=lin(3, 8), keys=lin(3, 6), values=lin(3, 7), attention=attention, head=lin(8, 2))
    return net, (torch.randn(2, 5, 3), torch.randn(2, 6, 3), torch.randn(2, 6, 3))


def _vit(layer: Callable[[], nn.Module]) -> Callable[[], Sample]:
    def make() -> Sample:
        def forward(m: Net, x: Tensor) -> Tensor:
            x = m.patches(x).flatten(2).transpose(1, 2)
            x = torch.cat([m.cls.expand(x.shape[0], -1, -1), x], 1) + m.pos
            return m.head(m.norm(m.layer(x))[:, 0])

        parts = {"patches": conv(3, 8, 3, 3), "cls": par(1, 1, 8), "pos": par(1, 5, 8), "layer": layer()}
        return Net(forward, **parts, norm=nn.LayerNorm(8), head=lin(8, 2)), (image(),)

    return make


add(
    "vit_encoder_layer",
    ATTENTION + " 5",
    _vit(lambda: nn.TransformerEncoderLayer(8, 4, 5, 0.0, "gelu", batch_first=True, norm_first=True)),
)
add(
    "vit_encoder_post_norm",
    ATTENTION + " 5",
    _vit(lambda: nn.TransformerEncoderLayer(8, 4, 5, 0.1, "relu", batch_first=True)),
)
add("vit_zoo", "8*1 4 2/4*2 32", lambda: (zoo.ViT(8, 1, 4, 4, 8, 3, 2), (torch.randn(2, 3, 8, 8),)))


@family("8 4*3 2/4*6 5*2", slow=True)
def transformer_module() -> Sample:
    # Source and target streams share the embedding, so they are one group of 8.
    def forward(m: Net, x: Tensor, y: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(4, dtype=m.head.weight.dtype)
        # Said and not detected: torch would compare the mask's numbers, which torch.export cannot follow.
        return m.head(m.core(m.embed(x), m.embed(y), tgt_mask=mask, tgt_is_causal=True))

    core = nn.Transformer(8, 4, 1, 1, 5, 0.0, batch_first=True)
    return Net(forward, embed=nn.Embedding(7, 8), core=core, head=lin(8, 2)), (
        torch.randint(7, (2, 5)),
        torch.randint(7, (2, 4)),
    )


def _folded(x: Tensor, heads: int) -> Tensor:
    return torch.cat(x.split(x.shape[2] // heads, 2), 0)


@family("5 6 2*2 3/2*2")
def set_transformer() -> Sample:
    """Two blocks whose heads lie in the batch, the second with learned seeds for queries (Lee et al. 2019)."""

    def block(m: Net, x: Tensor, y: Tensor) -> Tensor:
        q, k, v = (_folded(layer(z), 2) for layer, z in ((m.q, x), (m.k, y), (m.v, y)))
        h = torch.cat((q + _matmul_attention(q, k, v)).split(len(x), 0), 2)
        return h + F.relu(m.o(h))

    def forward(m: Net, x: Tensor) -> Tensor:
        h = block(m.first, x, x)
        return m.out(block(m.second, m.seeds.expand(len(x), -1, -1), h)).sum(1)

    def layers(queries: int, keys: int) -> Net:
        return Net(block, q=lin(queries, 6), k=lin(keys, 6), v=lin(keys, 6), o=lin(6, 6))

    return Net(forward, first=layers(3, 3), second=layers(6, 6), seeds=par(1, 5, 6), out=lin(6, 2)), (
        torch.randn(2, 4, 3),
    )


@family("6 2")
def blocks_beside_each_other() -> Sample:
    """In another order the blocks are slices, whose units are those of each other."""

    def forward(m: Net, x: Tensor) -> Tensor:
        first, second = m.c(m.a(x).tanh()).split(2, 1)
        return m.b(torch.cat([second, first], 0).tanh())

    return Net(forward, a=lin(3, 6), c=lin(6, 4), b=lin(2, 2)), (torch.randn(3, 3),)
