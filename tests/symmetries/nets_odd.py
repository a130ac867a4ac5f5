"""Odd ops: what coset does not know must fix, and never break."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from net_family import Net, Sample, conv, family, lin, par, simple
from torch import Tensor, nn

simple("fft_over_units", "5", lambda m, x: m.d(F.relu(m.c(torch.fft.rfft(m.a(x)).abs()))), c=lin(3, 5), d=lin(5, 2))
simple("sort_units", "4", lambda m, x: m.b(m.a(x).sort(-1).values))
simple("sort_descending_and_places", None, lambda m, x: m.b(m.a(x).sort(-1, descending=True)[1].to(x.dtype)))
simple("cumsum_units", "", lambda m, x: m.b(m.a(x).cumsum(-1)))
simple("cumprod_units", "", lambda m, x: m.b(m.a(x).cumprod(-1)))
simple("cummax_units", "", lambda m, x: m.b(m.a(x).cummax(-1).values))
simple("median_values", "4", lambda m, x: m.b(m.a(x) * m.a(x).median(-1, keepdim=True).values))
simple("median_places", "", lambda m, x: m.b(F.relu(m.a(x))) + m.a(x).median(-1, keepdim=True).indices)
simple("kthvalue_places", "", lambda m, x: m.b(F.relu(m.a(x))) + m.a(x).kthvalue(2, -1, keepdim=True).indices)
simple("argmax_places", "", lambda m, x: m.b(F.relu(m.a(x))) + m.a(x).argmax(-1, keepdim=True))
simple("max_places", "", lambda m, x: m.b(F.relu(m.a(x))) + m.a(x).max(-1, keepdim=True)[1])
simple("mask_by_mean", "4", lambda m, x: m.b(torch.where(m.a(x) > m.a(x).mean(-1, keepdim=True), m.a(x), 0.0)))
simple("top_k_units", "4", lambda m, x: m.b(m.a(x) * (m.a(x) >= m.a(x).topk(2, -1).values[:, -1:])))
simple("softmax_units", "4", lambda m, x: m.b(m.a(x).softmax(-1)))
simple("logsumexp_units", "4", lambda m, x: m.b(m.a(x) - m.a(x).logsumexp(-1, keepdim=True)))
simple("gram_tokens", "4", lambda m, x: (m.a(x) @ m.a(x).transpose(0, 1)).tanh())
simple(
    "gram_units",
    "4",
    lambda m, x: m.c(torch.einsum("ni,nj->nij", m.a(x), m.a(x)).flatten(1)),
    c=lambda: lin(16, 2),
)
simple(
    "outer_product",
    "4 5",
    lambda m, x: m.d((m.a(x)[:, :, None] * m.c(x)[:, None]).flatten(1)),
    c=lambda: lin(3, 5),
    d=lambda: lin(20, 2),
)
simple("square", "4", lambda m, x: m.b(m.a(x) * m.a(x)))
simple("concat_with_itself", "4", lambda m, x: m.c(torch.cat([m.a(x), m.a(x)], 1).relu()), c=lambda: lin(8, 2))
simple(
    "concat_relu",
    "4",
    lambda m, x: m.c(torch.cat([m.a(x).relu(), (-m.a(x)).relu()], 1)),
    c=lambda: lin(8, 2),
)
simple(
    "permuted_residual",
    "5",
    lambda m, x: m.d(F.gelu(m.c(m.a(x) + m.a(x)[:, [2, 0, 3, 1]]))),
    c=lambda: lin(4, 5),
    d=lambda: lin(5, 2),
)
simple(
    "flipped_units",
    "5",
    lambda m, x: m.d(F.gelu(m.c(m.a(x) + m.a(x).flip(1)))),
    c=lambda: lin(4, 5),
    d=lambda: lin(5, 2),
)
simple(
    "rolled_units",
    "5",
    lambda m, x: m.d(F.gelu(m.c(m.a(x) + m.a(x).roll(1, 1)))),
    c=lambda: lin(4, 5),
    d=lambda: lin(5, 2),
)
simple(
    "rolled_flat", "5", lambda m, x: m.d(F.gelu(m.c(m.a(x) + m.a(x).roll(1)))), c=lambda: lin(4, 5), d=lambda: lin(5, 2)
)
simple("shared_twice", "4", lambda m, x: m.b(F.relu(m.c(F.relu(m.c(m.a(x)))))), c=lambda: lin(4, 4))
simple("tied_autoencoder", "4", lambda m, x: F.linear(F.relu(m.a(x)), m.a.weight.t(), m.c), c=lambda: par(3))
simple("maxout", "3 2/3", lambda m, x: m.d(m.c(x).view(-1, 3, 2).amax(-1)), c=lambda: lin(3, 6), d=lambda: lin(3, 2))
simple("glu", "4", lambda m, x: m.b(F.glu(m.c(x))), c=lambda: lin(3, 8))
simple(
    "bilinear",
    "4 5 6",
    lambda m, x: m.e(F.gelu(m.d(m.a(x), m.c(x)))),
    c=lambda: lin(3, 5),
    d=lambda: nn.Bilinear(4, 5, 6),
    e=lambda: lin(6, 2),
)
simple(
    "einsum_two_layers",
    "4 5",
    lambda m, x: torch.einsum("ni,hi,oh->no", m.a(x).tanh(), m.c, m.d),
    c=lambda: par(5, 4),
    d=lambda: par(2, 5),
)
simple("sirens", "4", lambda m, x: m.b(torch.sin(3 * m.a(x))))
simple("cosine_similarity", "4", lambda m, x: F.cosine_similarity(m.a(x)[:, None], m.c, dim=-1), c=lambda: par(5, 4))
simple("cdist", None, lambda m, x: torch.cdist(m.a(x), m.c), c=lambda: par(5, 4))
simple("normalise", "4", lambda m, x: m.b(F.normalize(m.a(x), dim=-1)))
simple("local_response", None, lambda m, x: m.b(F.local_response_norm(m.a(x)[..., None], 3)[..., 0]))
simple("std_of_units", "4", lambda m, x: m.a(x).tanh().std(-1, keepdim=True) + m.b(m.a(x).tanh()))
simple("var_of_units", "4", lambda m, x: m.a(x).tanh().var(-1, keepdim=True) + m.b(m.a(x).tanh()))
simple("std_alone", "4", lambda m, x: m.a(x).tanh().std(-1, keepdim=True))
simple("cast_to_int", "4", lambda m, x: m.b((3 * m.a(x).relu()).long().to(x.dtype)))
simple("cast_to_bool", "4", lambda m, x: m.b(m.a(x).relu().bool().to(x.dtype)))
simple("clamp_as_relu", "4", lambda m, x: m.b(m.a(x).clamp(min=0)))
simple("hardtanh_uneven", "4", lambda m, x: m.b(F.hardtanh(m.a(x), -1.0, 0.3)))
simple("relu6", "4", lambda m, x: m.b(F.relu6(m.a(x))))
simple(
    "film",
    "4 5",
    lambda m, x: m.b(m.a(x) * m.d(F.relu(m.c(x))).chunk(2, -1)[0] + m.d(m.c(x).relu()).chunk(2, -1)[1]),
    c=lambda: lin(3, 5),
    d=lambda: lin(5, 8),
)
simple(
    "masked_linear",
    None,
    lambda m, x: m.b(F.relu(F.linear(x, m.a.weight * m.mask, m.a.bias))),
    mask=lambda: torch.tensor([[1.0, 0, 0], [1, 1, 0], [1, 1, 1], [0, 1, 1]]),
)
simple("buffer_as_weight", "4", lambda m, x: m.b(F.relu(F.linear(x, m.w))), w=lambda: torch.randn(4, 3))
simple("overwrite_zero", None, lambda m, x: m.b(_overwrite(m.a(x), 0.0)))
simple("overwrite_scaled", "2*2", lambda m, x: m.b(_double_some(m.a(x))))
simple("overwrite_column", None, lambda m, x: m.b(_column(m.a(x))))
simple("masked_assign", "4", lambda m, x: m.b(_masked(m.a(x))))
simple("stacked_layers", None, lambda m, x: m.b(_layers(m.w, m.a(x))), w=lambda: par(3, 4, 4))
simple(
    "stacked_by_layer",
    None,
    lambda m, x: m.b(_residual_layers(m.u, m.d, m.a(x))),
    u=lambda: par(3, 5, 4),
    d=lambda: par(3, 4, 5),
    log_order=math.lgamma(5) + 3 * math.lgamma(6),
)
simple("index_add_rows", None, lambda m, x: m.b(F.relu(m.a(x)) + _index_add(m.rows)), rows=lambda: par(3, 4))
simple("index_put_rows", None, lambda m, x: m.b(F.relu(m.a(x)) + _index_put(m.rows)), rows=lambda: par(3, 4))
simple("index_copy_rows", None, lambda m, x: m.b(F.relu(m.a(x)) + _index_copy(m.rows)), rows=lambda: par(3, 4))
simple("scatter_rows", None, lambda m, x: m.b(F.relu(m.a(x)) + _scatter(m.rows)), rows=lambda: par(3, 4))
simple("masked_by_scalar", "4", lambda m, x: m.b(m.a(x).masked_fill(m.a(x) > 0.5, 0.25)))
simple(
    "fill_by_parameter",
    "4",
    lambda m, x: m.b(torch.where(m.a(x) > 0.2, m.a(x), m.s)),
    s=lambda: nn.Parameter(torch.tensor(0.3)),
)
simple("unit_numbers", "", lambda m, x: m.b(m.a(x) * torch.arange(4)))
simple("linspace_gains", "", lambda m, x: m.b(m.a(x) * torch.linspace(0, 1, 4)))
simple("eye_added", "4", lambda m, x: m.b(m.a(x) @ (torch.eye(4, dtype=x.dtype) + 0.1)))
simple("diagonal", None, lambda m, x: m.b(m.a(x) + torch.diagonal(m.w)), w=lambda: par(4, 4))
simple("diag_embed", None, lambda m, x: m.b(m.a(x) @ torch.diag_embed(m.w)), w=lambda: par(4))
simple("trace_einsum", None, lambda m, x: m.b(m.a(x)) + torch.einsum("ii->", m.w), w=lambda: par(4, 4))
simple(
    "kron",
    None,
    lambda m, x: m.d(F.linear(x, torch.kron(m.u, m.v)).tanh()),
    u=lambda: par(2, 3),
    v=lambda: par(3, 1),
    d=lambda: lin(6, 2),
)
simple("unfold_units", None, lambda m, x: m.c(m.a(x).unfold(1, 2, 1).flatten(1)), c=lambda: lin(6, 2))
simple("repeat_units", "4 2/4", lambda m, x: m.c(m.a(x).repeat(1, 2).relu()), c=lambda: lin(8, 2))
simple("repeat_interleave_units", "4 2/4", lambda m, x: m.c(m.a(x).repeat_interleave(2, 1).relu()), c=lambda: lin(8, 2))
simple(
    "every_other_unit",
    "2*2",
    lambda m, x: m.c(m.a(x)[:, ::2]) + m.d(m.a(x)[:, 1::2].relu()),
    c=lambda: lin(2, 2),
    d=lambda: lin(2, 2),
)
simple("every_other_shifted", None, lambda m, x: m.c(m.a(x)[:, 1::2]), c=lambda: lin(2, 2))
simple("every_other_past", None, lambda m, x: m.c(m.e(x)[:, 2::2]), e=lambda: lin(3, 6), c=lambda: lin(2, 2))
simple("sub_units_reversed", None, lambda m, x: m.b(m.a(x) + torch.cat([m.a(x)[:, 2:], m.a(x)[:, :2]], 1)))
simple("blocks_at_odds", None, lambda m, x: m.e(_cat_add(m.a(x), m.c(x))), c=lambda: lin(3, 3), e=lambda: lin(7, 2))
simple(
    "embedding_bag", "4", lambda m, x: m.b(m.t(x)).tanh(), x=torch.randint(5, (3, 4)), t=lambda: nn.EmbeddingBag(5, 4)
)
simple("prelu_units", "4", lambda m, x: m.b(m.p(m.a(x))), p=lambda: nn.PReLU(4))
simple("unpool", None, lambda m, x: _unpool(m, x))
simple("stack_of_two", "4", lambda m, x: m.b(torch.stack([m.a(x), m.a(x).tanh()], 1).mean(1)))
simple(
    "stack_of_different",
    "4*2",
    lambda m, x: m.d(F.relu(torch.stack([m.a(x), m.c(x)], -1).flatten(1))),
    c=lambda: lin(3, 4),
    d=lambda: lin(8, 2),
)
simple(
    "complex_weights",
    None,
    lambda m, x: torch.view_as_real(m.a(x).to(torch.complex128) @ torch.view_as_complex(m.w)).flatten(1),
    w=lambda: par(4, 2, 2),
)
simple(
    "spatial_fft",
    None,
    lambda m, x: m.k(torch.fft.rfft2(m.c(x)).abs()),
    x=torch.randn(2, 3, 5, 5),
    c=lambda: conv(3, 4, 2),
    k=lambda: conv(4, 2, 1),
)
simple(
    "deep_set",
    "4 5",
    lambda m, x: m.d(m.c(F.relu(m.a(x))).sum(0, keepdim=True).relu()),
    c=lambda: lin(4, 5),
    d=lambda: lin(5, 2),
)
simple("max_over_units", "4", lambda m, x: m.b(m.a(x)) + m.a(x).amax(-1, keepdim=True))
simple(
    "min_max_pair",
    "4 5",
    lambda m, x: m.b(torch.maximum(m.a(x), m.d(m.c(x).relu()))),
    c=lambda: lin(3, 5),
    d=lambda: lin(5, 4),
)
simple("batch_norm_inputs", "4", lambda m, x: m.b(F.relu(m.a(m.n(x)))), n=lambda: nn.BatchNorm1d(3))
simple("batch_norm_train_mode", "4", lambda m, x: m.b(F.batch_norm(m.a(x), None, None, training=True)))
simple("dead_parameter", "4", lambda m, x: m.b(F.relu(m.a(x))), unused=lambda: par(4, 3))
simple("embedding_of_arange", "4", lambda m, x: m.b(m.a(x) + m.t(torch.arange(3))), t=lambda: nn.Embedding(3, 4))
simple("units_by_arange", "4", lambda m, x: m.b(m.a(x)[:, torch.arange(4)].relu()))
simple("one_hot_numbers", "", lambda m, x: m.b(m.a(x) * F.one_hot(torch.arange(4), 4).to(x.dtype).cumsum(0).sum(0)))
simple("long_constant_index", None, lambda m, x: m.b(m.a(x)[:, m.order]), order=lambda: torch.tensor([1, 3, 0, 2]))

simple(
    "repeat_then_slice", None, lambda m, x: m.c(F.relu(m.a(x)).repeat_interleave(2, -1)[:, 1:6]), c=lambda: lin(5, 2)
)
simple(
    "rezero",
    "4",
    lambda m, x: m.b(m.a(x) + m.s * F.gelu(m.c(m.a(x)))),
    c=lambda: lin(4, 4),
    s=lambda: nn.Parameter(torch.tensor(0.5)),
)
simple("tensordot", "4", lambda m, x: torch.tensordot(m.a(x).tanh(), m.w, dims=([1], [1])), w=lambda: par(2, 4))
simple(
    "multi_dot",
    "4 5",
    lambda m, x: torch.linalg.multi_dot([x, m.u, m.w, m.v]),
    u=lambda: par(3, 4),
    w=lambda: par(4, 5),
    v=lambda: par(5, 2),
)
simple("einsum_diagonal", None, lambda m, x: m.b(torch.einsum("bi,ii->bi", m.a(x).tanh(), m.w)), w=lambda: par(4, 4))
simple("differences", "", lambda m, x: m.c(torch.diff(m.a(x), dim=-1)), c=lambda: lin(3, 2))
simple("matrix_norm", "4", lambda m, x: m.b(m.a(x) / torch.linalg.matrix_norm(m.a(x))))
simple(
    "weight_standardised",
    "4",
    lambda m, x: m.b(F.relu(F.linear(x, m.a.weight - m.a.weight.mean(1, keepdim=True), m.a.bias))),
)
simple("always_dropout", None, lambda m, x: m.b(F.dropout(m.a(x).relu(), 0.5, True)))
simple("random_gains", "", lambda m, x: m.b(m.a(x).relu() * torch.rand(4, dtype=x.dtype)))
simple(
    "layer_norm_of_two_axes",
    "2 3/2",
    lambda m, x: m.d(m.n(m.c(x).view(-1, 2, 3)).flatten(1)),
    c=lambda: lin(3, 6),
    n=lambda: nn.LayerNorm([2, 3]),
    d=lambda: lin(6, 2),
)
simple("two_outputs", "", lambda m, x: (m.b(m.a(x).relu()), m.a(x)))
simple("outputs_in_a_dict", "4", lambda m, x: {"logits": m.b(m.a(x).relu()), "nothing": None})
simple(
    "linear_attention_cumsum",
    "4 5",
    lambda m, x: m.o(torch.einsum("nd,nde->ne", m.a(x), torch.einsum("nd,ne->nde", m.k(x), m.v(x)).cumsum(0))),
    k=lambda: lin(3, 4),
    v=lambda: lin(3, 5),
    o=lambda: lin(5, 2),
)


@family(None)
def heads_in_windows() -> Sample:
    """Depthwise convolutions of their own over groups of heads, as CoaT has them: (a + b) x c meets a x c + b x c."""

    def forward(m: Net, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, v = (p(x).reshape(b, n, 6, 4).transpose(1, 2) for p in (m.q, m.v))
        tall = v.transpose(-1, -2).reshape(b, 24, 3, 3)
        both = torch.cat([c(part) for c, part in zip((m.c, m.d), tall.split([8, 16], 1), strict=True)], 1)
        out = q * both.reshape(b, 6, 4, 9).transpose(-1, -2)
        return m.o(out.transpose(1, 2).reshape(b, n, 24))

    parts = {"c": conv(8, 8, 3, padding=1, groups=8), "d": conv(16, 16, 3, padding=1, groups=16)}
    return Net(forward, q=lin(5, 24), v=lin(5, 24), o=lin(24, 2), **parts), (torch.randn(2, 9, 5),)


def _overwrite(h: Tensor, value: float) -> Tensor:
    h = h.clone()
    h[:, :2] = value
    return h.tanh()


def _double_some(h: Tensor) -> Tensor:
    h = h.clone()
    h[:, :2] *= 2
    return h.tanh()


def _column(h: Tensor) -> Tensor:
    h = h.clone()
    h[:, 1] = h[:, 0]
    return h.tanh()


def _masked(h: Tensor) -> Tensor:
    h = h.clone()
    h[h < 0] = 0.0
    return h


def _layers(w: Tensor, h: Tensor) -> Tensor:
    for k in range(3):
        h = F.gelu(h @ w[k])
    return h


def _residual_layers(u: Tensor, d: Tensor, h: Tensor) -> Tensor:
    for k in range(3):
        h = h + F.linear(F.gelu(F.linear(h, u[k])), d[k])
    return h


def _index_add(rows: Tensor) -> Tensor:
    return torch.zeros(3, 4, dtype=rows.dtype).index_add(0, torch.tensor([2, 0, 2]), rows)


def _index_put(rows: Tensor) -> Tensor:
    out = torch.zeros(3, 4, dtype=rows.dtype)
    out[torch.tensor([2, 0, 1])] = rows
    return out


def _index_copy(rows: Tensor) -> Tensor:
    return torch.zeros(3, 4, dtype=rows.dtype).index_copy(0, torch.tensor([2, 0, 1]), rows)


def _scatter(rows: Tensor) -> Tensor:
    index = torch.tensor([2, 0, 1])[:, None].expand(3, 4)
    return torch.zeros(3, 4, dtype=rows.dtype).scatter(0, index, rows)


def _cat_add(a: Tensor, c: Tensor) -> Tensor:
    """Blocks of 4 and 3 met by blocks of 3 and 4."""
    return F.gelu(torch.cat([a, c], 1) + torch.cat([c, a], 1))


def _unpool(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)[:, None]
    y, places = F.max_pool1d(h, 2, return_indices=True)
    return m.b(F.max_unpool1d(y, places, 2)[:, 0])
