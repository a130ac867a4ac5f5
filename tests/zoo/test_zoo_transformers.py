"""Attention, positions and masking of the transformers against independent computations."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coset.core.errors import ModelError
from coset.zoo import GPT, ViT
from coset.zoo.gpt import CausalAttention, SwiGLU
from coset.zoo.rope import Rope, rope_tables, rotate
from coset.zoo.vit import FusedAttention

HEADS = {"dim": 16, "heads": 4, "depth": 2, "vocab": 11, "context": 12}
GPTS = [
    {},
    {"kv_heads": 2, "tied": False},
    {"rope": True, "swiglu": True, "norm": "rms"},
    {"rope": True, "kv_heads": 1},
]


def test_fused_attention_equals_torch_multihead_attention() -> None:
    ours = FusedAttention(12, 3)
    theirs = nn.MultiheadAttention(12, 3, batch_first=True)
    with torch.no_grad():
        ours.qkv.bias.normal_()
    theirs.load_state_dict(
        {
            "in_proj_weight": ours.qkv.weight,
            "in_proj_bias": ours.qkv.bias,
            "out_proj.weight": ours.out.weight,
            "out_proj.bias": ours.out.bias,
        }
    )
    x = torch.randn(2, 5, 12)
    torch.testing.assert_close(ours(x), theirs(x, x, x)[0])


@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_vit_knows_positions_only_through_its_embedding(pool: str) -> None:
    torch.manual_seed(0)
    model = ViT(dim=8, depth=2, heads=2, patch=4, image_size=8, pool=pool).eval()
    (x,) = model.example_inputs(2)
    swapped = torch.cat([x[..., 4:], x[..., :4]], -1)  # the left and the right patches change places
    assert not torch.allclose(model(x), model(swapped), atol=1e-5)
    with torch.no_grad():
        model.positions.zero_()
    torch.testing.assert_close(model(x), model(swapped))


def test_vit_refuses_another_image_size() -> None:
    with pytest.raises(ModelError, match=r"expected images of shape \(3, 32, 32\), got \(3, 28, 28\)"):
        ViT(dim=8, depth=1, heads=2)(torch.randn(1, 3, 28, 28))


def test_vit_has_mlps_of_any_width() -> None:
    shapes = [ViT(dim=8, depth=1, heads=2, hidden=h).state_dict()["blocks.0.mlp.0.weight"].shape for h in (None, 20)]
    assert shapes == [(32, 8), (20, 8)]
    with pytest.raises(ModelError, match="hidden must be positive, got 0"):
        ViT(hidden=0)


def test_rope_scores_depend_on_relative_positions_only() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 3, 6, 8, generator=generator)

    def scores(shift: int) -> Tensor:
        tables = rope_tables(torch.arange(6) + shift, 8)
        return rotate(q, *tables) @ rotate(k, *tables).transpose(-1, -2)

    torch.testing.assert_close(scores(0), scores(37), atol=1e-4, rtol=1e-4)
    assert not torch.allclose(scores(0), q @ k.transpose(-1, -2), atol=1e-2)


def test_rope_equals_complex_multiplication() -> None:
    x = torch.randn(2, 3, 6, 8)
    frequency = torch.tensor([10000.0 ** (-2 * i / 8) for i in range(4)])
    phase = torch.polar(torch.ones(6, 4), torch.arange(6)[:, None] * frequency)
    turned = torch.complex(x[..., :4], x[..., 4:]) * phase
    torch.testing.assert_close(Rope(9, 8)(x), torch.cat([turned.real, turned.imag], -1))


def test_rope_tables_are_not_part_of_the_state() -> None:
    assert not [name for name in GPT(rope=True).state_dict() if "cos" in name or "sin" in name]


def test_swiglu_formula() -> None:
    layer = SwiGLU(6)
    x = torch.randn(5, 6)
    gate = x @ layer.gate.weight.T
    expected = (gate / (1 + (-gate).exp()) * (x @ layer.up.weight.T)) @ layer.down.weight.T
    torch.testing.assert_close(layer(x), expected)
    assert layer.up.out_features == 16


@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("rope", [False, True])
def test_grouped_query_attention_is_full_attention_with_repeated_heads(kv_heads: int, rope: bool) -> None:
    torch.manual_seed(0)
    grouped = GPT(**HEADS, kv_heads=kv_heads, rope=rope)
    full = GPT(**HEADS, rope=rope)
    state = grouped.state_dict()
    for name in state:
        if name.endswith(("key.weight", "value.weight")):
            heads = state[name].reshape(kv_heads, 4, 16)
            state[name] = heads.repeat_interleave(4 // kv_heads, 0).reshape(16, 16)
    full.load_state_dict(state)
    (tokens,) = grouped.example_inputs(3)
    torch.testing.assert_close(grouped(tokens), full(tokens))


@pytest.mark.parametrize("options", GPTS)
def test_the_future_does_not_change_the_past(options: dict[str, object]) -> None:
    torch.manual_seed(0)
    model = GPT(**HEADS, **options)
    (tokens,) = model.example_inputs(2)
    other = tokens.clone()
    other[:, 7] = (other[:, 7] + 1) % 11
    before, after = model(tokens), model(other)
    torch.testing.assert_close(before[:, :7], after[:, :7])
    changed = (before - after).abs().amax((0, 2))[7:]
    assert (changed > 1e-5).all()  # and every later token does see it


@pytest.mark.parametrize("turned", [False, True])
def test_causal_attention_equals_a_loop_over_queries(turned: bool) -> None:
    torch.manual_seed(0)
    layer = CausalAttention(16, 4, 2, Rope(12, 4) if turned else None)
    x = torch.randn(6, 16)
    tables = rope_tables(torch.arange(6), 4) if turned else (torch.ones(6, 2), torch.zeros(6, 2))
    heads = []
    for h in range(4):
        own, shared = slice(4 * h, 4 * h + 4), slice(4 * (h // 2), 4 * (h // 2) + 4)
        q = rotate(x @ layer.query.weight[own].T, *tables)
        k = rotate(x @ layer.key.weight[shared].T, *tables)
        v = x @ layer.value.weight[shared].T
        rows = [(k[: t + 1] @ q[t] / 2).softmax(0) @ v[: t + 1] for t in range(6)]
        heads.append(torch.stack(rows))
    torch.testing.assert_close(layer(x[None])[0], torch.cat(heads, 1) @ layer.out.weight.T)


@pytest.mark.parametrize("rope", [False, True])
def test_gpt_knows_the_order_of_earlier_tokens(rope: bool) -> None:
    torch.manual_seed(0)
    model = GPT(**{**HEADS, "depth": 1}, rope=rope)  # a second causal layer would know the order anyway
    a, b = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[2, 1, 3, 4]])
    assert not torch.allclose(model(a)[0, -1], model(b)[0, -1], atol=1e-5)


def test_tied_head_is_the_embedding() -> None:
    tied, untied = GPT(**HEADS), GPT(**HEADS, tied=False)
    assert "head.weight" not in tied.state_dict()
    untied.load_state_dict({**tied.state_dict(), "head.weight": tied.embedding.weight})
    (tokens,) = tied.example_inputs()
    torch.testing.assert_close(tied(tokens), untied(tokens))


def test_logits_give_a_uniform_guess_at_the_start() -> None:
    torch.manual_seed(0)
    model = GPT(**HEADS)
    (tokens,) = model.example_inputs(8)
    loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(-1, 1).flatten())
    assert abs(loss.item() - torch.tensor(11.0).log().item()) < 0.1


def test_gpt_refuses_too_many_tokens() -> None:
    with pytest.raises(ModelError, match="13 tokens do not fit the context of 12"):
        GPT(**HEADS)(torch.zeros(1, 13, dtype=torch.long))
