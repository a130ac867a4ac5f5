"""Scaled dot-product attention in one op, with grouped-query heads."""

from __future__ import annotations

from coset.symmetries.rules.random import with_noise
from coset.symmetries.rules.reshape import expand_to, reshape_to
from coset.symmetries.tape import NONLINEAR, Call, Letter, Result, Value, rule
from coset.symmetries.terms import units

FUSED = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
)


@rule(["scaled_dot_product_attention", *FUSED])
def attention(call: Call) -> Result:
    """softmax(q k^T + mask) v over (..., heads, tokens, dim)."""
    query, key, value = call.tensor("query"), call.tensor("key"), call.tensor("value")
    key, value = _match_heads(call, query, key), _match_heads(call, query, value)
    batch: list[Letter] = list(range(len(query.axes) - 2))
    scores = call.tape.multiply([(query, [*batch, "s", "e"]), (key, [*batch, "t", "e"])], [*batch, "s", "t"])
    mask = call.maybe("attn_mask") or call.maybe("attn_bias")
    if mask is not None:
        scores = call.tape.broadcast("add", [scores, mask])
    weights = call.tape.map(scores, NONLINEAR, over=[len(scores.axes) - 1])
    if call.get("is_causal"):
        for axis in (-1, -2):
            call.tape.fix(weights.axes[axis], "causal mask")
    if call.get("dropout_p", 0.0) > 0:
        weights = with_noise(call, weights)
    out = call.tape.multiply([(weights, [*batch, "s", "t"]), (value, [*batch, "t", "f"])], [*batch, "s", "f"])
    rest: list[Value | None] = [None] * (len(call.shapes) - 1)
    return [out, *rest] if rest else out


def _match_heads(call: Call, query: Value, other: Value) -> Value:
    """Grouped queries: each key/value head serves a run of query heads, its copies interchangeable."""
    rank = len(query.axes)
    if rank < 3 or query.shape[-3] == other.shape[-3] or other.shape[-3] == 1:
        return other
    heads, copies = other.shape[-3], query.shape[-3] // other.shape[-3]
    lead, tail = other.axes[:-3], other.axes[-2:]
    wide = call.regroup(other, [*[[t] for t in lead], [other.axes[-3]], [units(1)], *[[t] for t in tail]])
    shape = [*[t.size for t in lead], heads, copies, *[t.size for t in tail]]
    copied = expand_to(call, wide, shape)
    return call.as_value(reshape_to(call, copied, [*shape[:-4], heads * copies, *shape[-2:]]))
